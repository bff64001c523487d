"""What the server must know of the noise that nodes add (``privacy``). A change may be longer by its norm."""

from strategies.features.base import ServerFeature


class Privacy(ServerFeature):
    """Allows for the noise of honest nodes."""

    def noise(self) -> float:
        """Return the standard deviation of the noise on each weight."""
        privacy = self.run.config.privacy
        return 0.0 if privacy.name == "none" else privacy.noise

"""What the server must know of the noise that nodes add (``privacy``). A change may be longer by its norm."""

from strategies.features.base import ServerFeature


class Privacy(ServerFeature):
    """Allows for the noise of honest nodes."""

    def description(self) -> str:
        """Return a line with the largest epsilon that the run spends."""
        privacy, rounds = self.run.config.privacy, self.run.rounds
        if privacy.name == "none":
            return ""
        return (
            f"privacy: each node's update is cut to norm {privacy.clipping_norm:g} and given noise of standard "
            f"deviation {privacy.noise:.3g}; after {rounds} rounds epsilon is {privacy.spent(rounds):.3g} at delta "
            f"{privacy.delta:g}"
        )

    def noise(self) -> float:
        """Return the standard deviation of the noise on each weight."""
        privacy = self.run.config.privacy
        return 0.0 if privacy.name == "none" else privacy.noise

"""The one family of errors that a user's mistake or a broken federation may raise."""

from typing import Self

from fedshift_core.limits import MOST_REMEDY, message, plain


class FedShiftError(Exception):
    """Something a person can mend: the message says what was found and what is allowed.

    It is shown without a traceback. Messages are one or two lines long; whatever is in them, each line that anybody
    is shown is bounded and without control characters (:func:`fedshift_core.limits.message`).
    """

    def __init__(self, text: str | None, remedy: str = "") -> None:
        """Make an error.

        Args:
            text: What was found and what is allowed; what is too long is cut.
            remedy: Commands and places that mend it, in lines of their own, which stay whole: half a command would do
                something else.
        """
        self.text, self.remedy = text, remedy
        told = [message(text or "(no reason given)"), *(plain(line, MOST_REMEDY) for line in remedy.splitlines())]
        super().__init__("\n".join(told))

    def under(self, where: str) -> Self:
        """Return the error with a place before it, such as a file's name; its remedy stays as it is."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        FedShiftError.__init__(other, f"{where}: {self.text or '(no reason given)'}", self.remedy)
        return other


class DataError(FedShiftError):
    """Images or labels are missing, broken, or not what the data set promises."""


class ConfigError(FedShiftError):
    """A configuration key or value is not allowed.

    Attributes:
        keys: The key that each line is about, part by part; fewer than lines, or none, where that is not known.
    """

    def __init__(self, text: str | None, remedy: str = "", keys: tuple[tuple[str | int, ...], ...] = ()) -> None:
        super().__init__(text, remedy)
        self.keys = keys


class FederationError(FedShiftError):
    """The federation cannot start or cannot go on."""


#: What the same command meets again: nothing to try a second time.
REFUSALS = (ConfigError, DataError)

"""The errors that a user's mistake or a broken federation may raise."""

from typing import Self

from fedshift_core.limits import MOST_REMEDY, message, plain


class FedShiftError(Exception):
    """An error that a person can correct: the message says what was found and what is allowed.

    It is shown without a traceback. Messages have one or two lines; each shown line has a bounded length and no
    control characters (:func:`fedshift_core.limits.message`).
    """

    def __init__(self, text: str | None, remedy: str = "") -> None:
        """Make an error.

        Args:
            text: What was found and what is allowed; a long text is shortened.
            remedy: Commands and places that help, on lines of their own, which are not shortened: a part of a
                command would do something else.
        """
        self.text, self.remedy = text, remedy
        lines = [message(text or "(no reason given)"), *(plain(line, MOST_REMEDY) for line in remedy.splitlines())]
        super().__init__("\n".join(lines))

    def under(self, where: str) -> Self:
        """Return the error with a place before it, such as a file's name; its remedy does not change."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        FedShiftError.__init__(other, f"{where}: {self.text or '(no reason given)'}", self.remedy)
        return other


class RequestError(FedShiftError):
    """A request is refused.

    The text is made of the request and of what the refuser lets anybody know, so whoever asked may see it: it holds
    nothing of files, labels, counts or values.
    """


class NotFiniteError(FedShiftError):
    """Training came to numbers that are not finite."""


class DataError(FedShiftError):
    """Images or labels are missing, broken, or not what the data set promises."""


class ConfigError(FedShiftError):
    """A configuration key or value is not allowed.

    Attributes:
        keys: The key of each line, part by part; fewer than lines, or none, if unknown.
    """

    def __init__(self, text: str | None, remedy: str = "", keys: tuple[tuple[str | int, ...], ...] = ()) -> None:
        super().__init__(text, remedy)
        self.keys = keys


class FederationError(FedShiftError):
    """The federation cannot start or cannot go on."""


class StorageError(FedShiftError):
    """A node cannot write or read what it keeps on its disk between messages."""


class ForgottenError(FedShiftError):
    """A node no longer has what only the memory of its process held."""


#: Errors that the same command meets again, so that a retry is useless.
REFUSALS = (ConfigError, DataError)

"""The one family of errors that a user's mistake or a broken federation may raise."""


class FedShiftError(Exception):
    """Something a person can mend: the message says what was found and what is allowed.

    It is shown without a traceback. Messages are one or two lines long.
    """


class DataError(FedShiftError):
    """Images or labels are missing, broken, or not what the data set promises."""


class ConfigError(FedShiftError):
    """A configuration key or value is not allowed."""


class FederationError(FedShiftError):
    """The federation cannot start or cannot go on."""

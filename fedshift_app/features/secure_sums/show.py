"""Shown of secure sums: what they protected."""

from fedshift_core.shown import History, Shown

KEY = "secure_sums"  # of a round's line


def show(history: History) -> Shown:
    """Return a line on who saw what."""
    if history.config.federation.secure_sums:
        return Shown(protection=("Secure sums: the server saw sums over nodes alone.",))
    return Shown(protection=("Secure sums: none; the server saw the weights of each node.",))

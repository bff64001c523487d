"""Shown of test images that were not scored (``fedshift_core.losses`` makes its line)."""

from fedshift_core.losses import MISSING_TESTS
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.shown import History, Shown


def show(history: History) -> Shown:
    """Return them by averaged round; nothing where none is missing."""
    averaged = history.scored[-LAST_ROUNDS:]
    missing = {str(r.server_round): r.shown[MISSING_TESTS] for r in averaged if MISSING_TESTS in r.shown}
    return Shown({MISSING_TESTS: missing} if missing else {})

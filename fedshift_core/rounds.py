"""Names of rounds, and which of them a reported mean is over."""

from collections.abc import Sequence

LAST_ROUNDS = 5  # the papers report the mean of the last five rounds
#: What a run with ``rounds=0`` scores, which trains and chooses nothing.
INITIAL_MODEL = "initial model"


def round_name(number: int) -> str:
    """Return ``round 3``, or what a run with ``rounds=0`` scored."""
    return f"round {number}" if number else f"the {INITIAL_MODEL}"


def last_rounds(number: int, kind: str = "") -> str:
    """Return ``last round``, ``last 2 rounds``, ...; ``kind`` stands before the noun."""
    return f"last {kind}round" if number == 1 else f"last {number} {kind}rounds"


def apart(rounds: Sequence[int], last: int) -> bool:
    """Tell whether rounds, in their order, are other than the last ones of a run that ended after round ``last``."""
    return list(rounds) != list(range(last - len(rounds) + 1, last + 1))


def span(rounds: Sequence[int]) -> str:
    """Return ``60 to 100``; of two rounds ``5 and 10``."""
    return (" and " if len(rounds) == 2 else " to ").join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))

"""Sets of runs that stand in one comparison, of any runs: those of the tables of a board, and of ``fedshift claims``.

The rule is ``compare``'s: all settings equal but for the method, its own settings, and the seed, whichever folders the
runs lie in. Runs that it would refuse together (a seed that comes twice with different numbers) stand apart by
arithmetic, then by folder.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedshift.lab.tables.compare import leave_one_out
from fedshift.lab.tables.compare.table import Asked, Numbers, numbers_of
from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results import differences
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.loading import Given, Run
from fedshift_core.errors import ConfigError
from fedshift_core.limits import some

MOST_NAMED = 2  # runs that a line names
#: By what runs that do not compare are separated, one after the other.
_APART: tuple[Callable[[Run], str], ...] = (
    lambda run: run.surroundings.get("arithmetic", ""),
    lambda run: str(run.place.parent),
)


def comparisons(runs: Sequence[Run], score: str, left_out: list[str]) -> Iterator[tuple[list[Run], Numbers]]:
    """Yield each set of runs that compare, with its numbers; leave-one-out runs are joined in the numbers alone.

    Args:
        runs: Any runs.
        score: As ``compare`` has it.
        left_out: Gets a line for runs that do not compare at all.
    """
    for held_out in (False, True):
        of_kind = [run for run in runs if bool(run.config[HELD_OUT]) is held_out]
        keys = differing(of_kind, held_out=held_out) if of_kind else {}
        members = grouped(zip(differences.group_labels(of_kind, keys), of_kind, strict=True))
        for pool in members.values():
            yield from _settled(pool, score, left_out)


def differing(runs: Sequence[Run], *, held_out: bool) -> dict[str, list[Any]]:
    """Return the settings in which runs differ; of leave-one-out runs without the domain and what follows from it."""
    return {
        key: each for key, each in differences.differing(runs).items() if not (held_out and leave_one_out.follows(key))
    }


def numbers_in(runs: Sequence[Run], score: str) -> Numbers:
    """Return what ``compare`` has of runs of one pool."""
    held_out = bool(runs[0].config[HELD_OUT])
    return numbers_of(Given(runs), Asked(score=score, held_out=held_out))


def _settled(runs: Sequence[Run], score: str, left_out: list[str]) -> Iterator[tuple[list[Run], Numbers]]:
    """Yield runs that compare with their numbers; those that do not are separated, or at last left out."""
    try:
        yield list(runs), numbers_in(runs, score)
    except ConfigError as error:
        for of in _APART:
            parts = grouped((of(run), run) for run in runs)
            if len(parts) > 1:
                for part in parts.values():
                    yield from _settled(part, score, left_out)
                return
        left_out.append(f"left out, do not compare: {some([run.name for run in runs], MOST_NAMED)}: {error}")

"""Times several things in turns. What else the machine does then falls on all of them."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """What the repetitions of one thing took, in seconds."""

    seconds: list[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The shortest and the longest."""
        return min(self.seconds), max(self.seconds)


def in_turns(
    things: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Times]:
    """Run each thing once without counting, then all of them in turns ``repeats`` times."""
    for run in things.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for _ in range(repeats):
        for name, run in things.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return {name: Times(values) for name, values in seconds.items()}


def ratio(times: Mapping[str, Times], of: str, to: str) -> float:
    """Return the median of the ratios of the same turn, which other work on the machine disturbs least."""
    return statistics.median(a / b for a, b in zip(times[of].seconds, times[to].seconds, strict=True))

"""``fedshift compare``: methods x domains over seeds, beside a paper's printed rows (docs/compare.md).

What reads runs brings torch with it: only where there is something to compare, as the command should start at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedshift.compare.table import Numbers

__all__ = ["Comparison", "compare", "keep"]

#: Columns of a terminal.
WIDTH = 100


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    numbers: "Numbers"

    def text(self, width: int = WIDTH) -> str:
        """Return aligned lines of at most ``width`` characters, as long as one column fits."""
        from fedshift.compare import formats

        return formats.text(self.numbers, width)

    def markdown(self) -> str:
        """Return a Markdown table with its notes."""
        from fedshift.compare import formats

        return formats.markdown(self.numbers)

    def csv(self) -> str:
        """Return one line per row of the table, numbers in full."""
        from fedshift.compare import formats

        return formats.table_csv(self.numbers)

    def html(self, where: Path | None = None) -> str:
        """Return a page that needs nothing else.

        Args:
            where: The file that it will be, from which the reports of the runs are linked; None for no links.
        """
        from fedshift.compare import page  # matplotlib: only where there is a page

        return page.page(self.numbers, where)

    def json(self) -> str:
        """Return all numbers, with those of each seed."""
        from fedshift.compare import formats

        return formats.table_json(self.numbers)


def compare(
    runs: Sequence[Path], *, paper: str = "", score: str = "last5", allow_different: bool = False,
    costs: Path | None = None, scored: str = "", held_out: bool = False,
) -> Comparison:  # fmt: skip
    """Compare finished runs.

    Args:
        runs: Run folders, folders that hold some, results files (``comparing.runs.read``).
        paper: Id of a printed table, such as ``f2dc.table1b``, whose rows stand beside ours.
        score: Which numbers, see ``comparing.scores.SCORES``.
        allow_different: Put runs of different settings into groups of their own.
        costs: A file of ``fedshift costs ... --json``: what each method costs, for figures and notes.
        scored: ``global`` or ``personal``: only runs that scored these models, and FedAvg; empty for all.
        held_out: The held-out domains of runs alone: those that leave out one after the other are one row.

    Raises:
        ConfigError: If there is no finished run, a file is not what it should be, runs differ in more than method and
            seed, a seed comes twice with different numbers, or the table or the costs are of other runs.
    """
    from fedshift.compare import table

    numbers = table.numbers(
        runs, paper=paper, score=score, allow_different=allow_different, costs=costs, scored=scored, held_out=held_out
    )
    return Comparison(numbers)


def keep(runs: Sequence[Path], folder: Path) -> list[Path]:
    """Write each finished run as one small file that ``compare`` reads, see ``comparing.kept.keep``."""
    from fedshift.results import archive

    return archive.keep(runs, folder)

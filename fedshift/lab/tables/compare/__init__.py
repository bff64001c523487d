"""``fedshift compare``: methods x domains over seeds, next to a paper's printed rows (docs/guide/compare.md).

The code that reads runs imports torch. It is imported only when a comparison runs, so that the command starts at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedshift.run import arguments, frames
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found
from fedshift_core.paths import Named, typed_path, user_path

if TYPE_CHECKING:
    import os

    import pandas as pd
    from matplotlib.figure import Figure

    from fedshift.lab.tables.compare.table import Numbers

__all__ = ["Comparison", "compare"]

#: Columns of a terminal.
WIDTH, MOST_WIDTH = 100, 10_000
DECIMALS, MOST_DECIMALS = 2, 6


@dataclass(frozen=True)
class Comparison:
    """Runs side by side."""

    numbers: "Numbers"

    def __repr__(self) -> str:
        """Return the table, as an interactive session shows it."""
        return self.text()

    def text(self, width: int | None = None, decimals: int = DECIMALS) -> str:
        """Return aligned lines.

        Args:
            width: At most so many characters, as long as one column fits; None for those of the terminal, or 100.
            decimals: Of means and spreads, at most 6.

        Raises:
            ConfigError: If one is no whole number in its bounds.
        """
        from fedshift.lab.tables.compare import formats

        if width is not None:
            width = arguments.whole("width", width, 1, MOST_WIDTH)
        return formats.text(self.numbers, width, _decimals(decimals))

    def markdown(self, decimals: int = DECIMALS) -> str:
        """Return a Markdown table with its notes.

        Raises:
            ConfigError: If the decimals are out of bounds.
        """
        from fedshift.lab.tables.compare import formats

        return formats.markdown(self.numbers, _decimals(decimals))

    def with_columns(self, names: Sequence[str]) -> "Comparison":
        """Return the comparison with these columns in this order.

        Raises:
            ConfigError: If there is no name, or one is no column of the table or comes twice.
        """
        from fedshift.lab.tables.compare import table

        return Comparison(table.with_columns(self.numbers, arguments.names("columns", names)))

    def to_latex(
        self, columns: Sequence[str] | None = None, decimals: int = DECIMALS, caption: str = "", label: str = ""
    ) -> str:
        r"""Return a table of LaTeX as papers print it; it needs ``booktabs`` and ``graphicx``.

        Args:
            columns: The columns and their order; None for all.
            decimals: Of means and spreads, at most 6.
            caption: In LaTeX; empty for what is compared.
            label: Of the table; empty for one made of the data set's name.

        Raises:
            ConfigError: As :meth:`with_columns`; if the decimals are out of bounds.
        """
        from fedshift.lab.tables.compare import latex

        chosen = self if columns is None else self.with_columns(columns)
        return latex.latex(chosen.numbers, _decimals(decimals), caption, label)

    def csv(self) -> str:
        """Return one line per row of the table, numbers in full."""
        from fedshift.lab.tables.compare import formats

        return formats.table_csv(self.numbers)

    def runs_csv(self) -> str:
        """Return one line per run and domain, numbers in full."""
        from fedshift.lab.tables.compare import frame

        return frame.csv(frame.long(self.numbers))

    def to_csv(self, path: "str | os.PathLike[str]") -> Path:
        """Write one line per run and domain: run folder, method, seed, domain, value, images, round; return the file.

        Raises:
            FedShiftError: If the file cannot be written.
        """
        from fedshift_core.atomic_io import write_atomically

        file = user_path(path)
        write_atomically(file, self.runs_csv())
        return file

    @property
    def figure_names(self) -> tuple[str, ...]:
        """The names of the figures that there are of these runs."""
        from fedshift.lab.tables.compare import figure_files

        return tuple(figure_files.plots(self.numbers))

    def figure(self, name: str) -> "Figure":
        """Return a figure in the colours of a white page.

        Raises:
            ConfigError: If there is none of that name; the message lists those there are.
        """
        from fedshift.lab.tables.compare import figure_files

        return figure_files.figure(self.numbers, name)

    def figures(self, folder: "str | os.PathLike[str]") -> list[Path]:
        """Write each figure as PDF, SVG and PNG, with their captions and the curves as CSV; return the files.

        Raises:
            ConfigError: If there is no figure, or a file cannot be written.
        """
        from fedshift.lab.tables.compare import figure_files

        return figure_files.write(self.numbers, typed_path(folder))

    def html(self, where: Path | None = None) -> str:
        """Return a page that needs nothing else.

        Args:
            where: The file that it will be, from which the reports of the runs are linked; None for no links.
        """
        from fedshift.lab.tables.compare import page  # imports matplotlib: only when a page is written

        return page.page(self.numbers, where)

    def to_html(self, path: "str | os.PathLike[str]") -> Path:
        """Write the page of :meth:`html` to a file, with links to the runs' reports, and return the file.

        Raises:
            ConfigError: If the file cannot be written.
        """
        return frames.written(path, self.html)

    def to_board(self, path: "str | os.PathLike[str]") -> Path:
        """Write a page that chooses and sorts, with a table for each set of these runs that compare; return the file.

        It has each way of BatchNorm's statistics that the runs have, whichever was asked for here. Runs that cannot
        stand in one comparison are for ``fedshift compare --board``.

        Raises:
            ConfigError: If the file cannot be written.
        """
        from fedshift.lab.tables.compare import board, board_page
        from fedshift.lab.tables.compare.rows import runs_of

        made = board.of_runs(runs_of(self.numbers.rows))
        return frames.written(path, lambda file: board_page.page(made, file))

    def frame(self, by: 'Literal["method", "seed"]' = "method") -> "pd.DataFrame":
        """Return the numbers as a data frame.

        Args:
            by: ``method``: a row for each row of the table, with mean (by the column's name), ``std`` and ``n`` over
                seeds, and the difference to the baseline. ``seed``: a row for each run and column, with its value.

        Raises:
            ConfigError: If pandas is not installed, or ``by`` is another word.
        """
        from fedshift.lab.tables.compare import formats, frame

        if by == "seed":
            return frame.seeds(self.numbers)
        if by != "method":
            raise ConfigError(f"frame: by is {as_found(by)}; allowed are method, seed")
        return frames.frame(formats.record(row, self.numbers) for row in self.numbers.rows)

    def json(self) -> str:
        """Return all numbers, with those of each seed."""
        from fedshift.lab.tables.compare import formats

        return formats.table_json(self.numbers)


def compare(
    runs: Named | Iterable[Named],
    *,
    paper: str = "",
    score: str = "last5",
    scored: str = "",
    held_out: bool = False,
    allow_different: bool = False,
    costs: Named | None = None,
) -> Comparison:
    """Compare finished runs: methods by domains, mean and spread over seeds, difference to FedAvg.

        >>> table = compare("runs/*")
        >>> print(table.text())  # doctest: +ELLIPSIS
        handwritten: top-1 accuracy (%), ...

    Args:
        runs: Runs, run folders, folders that hold some, patterns such as ``runs/*``; one or several.
        paper: A printed table to compare with, see `fedshift papers`.
        score: last5, final, best, validation, balanced_accuracy, macro_f1, auc, ece, bn, bn=WAY or clients.
        scored: global or personal: only methods that score these models, and FedAvg.
        held_out (--unseen): Held-out domains alone: runs that leave out one after the other are one row.
        allow_different: Runs that differ in more than method and seed: in groups.
        costs: What `fedshift costs ... --json` printed: figures of accuracy against costs.

    Raises:
        ConfigError: If no run is finished, or the runs cannot stand in one table.
    """
    from fedshift.lab.tables.compare import table

    file = None if costs is None else user_path(costs, "costs")
    asked = table.Asked(paper, score, scored, held_out, allow_different, file)
    return Comparison(table.numbers(arguments.paths(runs, "compare"), asked))


def _decimals(given: int) -> int:
    return arguments.whole("decimals", given, 0, MOST_DECIMALS)

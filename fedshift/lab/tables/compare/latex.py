"""A comparison as a table of LaTeX, as papers print it: booktabs, best and second, significance."""

import math
import re
from collections.abc import Callable, Sequence

from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import data_set, escaped, method, row_latex
from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.metrics import LOWEST_IS_BEST
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST, Paired
from fedshift_core.accuracies import STD
from fedshift_core.limits import plain
from fedshift_core.plural import capital, plural

LEVEL = 0.05  # of a test
WIDE = 7  # columns of numbers beyond which a table takes both columns of a page
MARK, CORRECTED = r"$^{\dagger}$", r"$^{\ddagger}$"
#: A table is made as wide as the text if it is wider, never made larger.
_TABULAR = r"""\small\setlength{\tabcolsep}{4pt}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}"""
_TASKS = {
    "global": "Global model", "personal": "Personal models", "personal on all": "Personal models, on all domains",
}  # fmt: skip
#: First words of the notes of a comparison that readers of its table need.
_ABOUT = ("STD:", "WORST:", "all seeds share", "scored personal")
#: How the styles of a table of pandas name the two marks of a cell.
_RANKS = {1: "textbf:--rwrap;", 2: "underline:--rwrap;"}


def latex(numbers: Numbers, decimals: int, caption: str = "", label: str = "") -> str:
    r"""Return a table that needs ``\usepackage{booktabs,graphicx}``.

    Notes and warnings of the comparison stand above it as comments, for whoever writes the paper.

    Args:
        numbers: The comparison, with the columns to print.
        decimals: Of means and spreads.
        caption: Its caption, in LaTeX; empty for what is compared.
        label: Its label; empty for one made of the data set's.
    """
    import pandas as pd

    tasks = list(dict.fromkeys((row.group, row.scored) for row in numbers.rows))
    rows = sorted(numbers.rows, key=lambda row: tasks.index((row.group, row.scored)))
    width, nothing = len(numbers.columns), [""] * len(numbers.columns)
    cells: list[list[str]] = []
    styles: list[list[str]] = []
    last = None
    for row, marks in zip(rows, _styles(rows, numbers, decimals), strict=True):
        head = ""
        if (row.group, row.scored) != last and (len(tasks) > 1 or row.scored != "global"):
            task = _TASKS.get(row.scored, escaped(row.scored)) + (f" ({escaped(row.group)})" if row.group else "")
            rule = "\\midrule\n" if cells else ""
            head = rule + rf"\multicolumn{{{1 + width}}}{{l}}{{\emph{{{task}}}}} \\" + "\n"
        last = row.group, row.scored
        cells.append([head + row_latex(row), *(_cell(row, column, numbers, decimals) for column in numbers.columns)])
        styles.append(["", *marks])
        if row.paper is not None:
            printed = [(row.paper.values[column], row.paper.spreads[column]) for column in numbers.columns]
            name = rf"\quad \emph{{printed: {escaped(row.paper.label)}}}"
            cells.append([name, *(_number(mean, std, decimals) for mean, std in printed)])
            styles.append(["", *nothing])
    names = ["Method", *(escaped(column_name(column)) for column in numbers.columns)]
    dataset = numbers.rows[0].runs[0].results.dataset
    rest = numbers.title.removeprefix(dataset)
    made: str = (
        pd.DataFrame(cells).style.hide(axis="index").format_index(names.__getitem__, axis=1)
        .apply(lambda _: pd.DataFrame(styles), axis=None)
        .to_latex(
            hrules=True, column_format="l" + "c" * width, position="t", position_float="centering",
            caption=caption or escaped(rest if rest == numbers.title else data_set(dataset) + rest) + ".",
            label=label or "tab:" + re.sub("[^a-zA-Z0-9]", "-", f"{dataset}-{numbers.score}"),
            environment="table*" if width > WIDE else "table",
        )
    )  # fmt: skip
    notes = "\n".join([r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize", *_notes(numbers)])
    made = made.replace(r"\begin{tabular}", _TABULAR).replace(
        "\\end{tabular}\n", "\\end{tabular}}\n" + notes + "\n\\end{minipage}\n"
    )
    above = (r"\usepackage{booktabs,graphicx}", *(f"warning: {text}" for text in numbers.warnings), *numbers.notes)
    return "".join(f"% {plain(text, len(text))}\n" for text in above) + made.rstrip()


def _styles(rows: Sequence[Row], numbers: Numbers, decimals: int) -> list[list[str]]:
    """Return how cells are marked: the best and the second best printed mean of the rows of a task, equal prints alike.

    Nothing is marked where the comparison names no best: one row, or rows of other images.
    """
    import pandas as pd

    def table(of: Callable[[Row, str], object]) -> pd.DataFrame:
        return pd.DataFrame([[of(row, column) for column in numbers.columns] for row in rows])

    def printed(row: Row, column: str) -> float:
        mean = row.values[column].mean if column in row.values else None
        lowest = column == STD or numbers.score in LOWEST_IS_BEST
        return math.nan if mean is None else round(mean, decimals) * (1 if lowest else -1)

    tasks = [f"{row.scored} {row.group}" for row in rows]
    named = table(lambda row, column: column in row.best).groupby(tasks).transform("any")
    ranks = table(printed).groupby(tasks).rank(method="dense").where(named)
    return [[_RANKS.get(rank, "") for rank in row] for row in ranks.to_numpy().tolist()]


def _cell(row: Row, column: str, numbers: Numbers, decimals: int) -> str:
    value = row.values.get(column)
    if value is None or value.mean is None:
        return "--"
    sign = _sign(row.difference) if column == numbers.headline else ""
    mark = rf" {{\scriptsize({escaped(row.marks[column])})}}" if column in row.marks else ""
    return _number(value.mean, value.std, decimals) + (rf"\rlap{{{sign}}}" if sign else "") + mark


def _number(mean: float | None, std: float | None, decimals: int) -> str:
    if mean is None:
        return "--"
    spread = "" if std is None else rf" {{\scriptsize$\pm${std:.{decimals}f}}}"
    return f"{mean:.{decimals}f}".replace("-", "$-$") + spread


def _sign(paired: Paired | None) -> str:
    """Return the mark of a significant difference."""
    if paired is None or paired.p is None or paired.p >= LEVEL:
        return ""
    return CORRECTED if paired.p_holm is not None and paired.p_holm < LEVEL else MARK


def _notes(numbers: Numbers) -> list[str]:
    """Return what a reader of the table must know, as sentences in LaTeX."""
    rows, base, headline = numbers.rows, method(BASELINE), escaped(column_name(numbers.headline))
    least, most = min(len(row.seeds) for row in rows), max(len(row.seeds) for row in rows)
    seeds = f"{least} seeds" if least == most else f"{least} to {most} seeds"
    single = ", of one seed none" if least == 1 else ""
    lines = ["One seed." if most == 1 else rf"Mean $\pm$ sample standard deviation over {seeds}{single}."]
    if any(row.best for row in rows):
        each = ", of each task" if len({(row.group, row.scored) for row in rows}) > 1 else ""
        lines.append(rf"Best in bold, second \underline{{underlined}}{each}.")
    tests = sum(row.difference is not None and row.difference.p is not None for row in rows)
    if numbers.headline in numbers.columns and tests:
        lines.append(
            rf"{MARK} {headline} differs from {base}'s with $p < {LEVEL}$ (two-sided paired $t$-test over seeds); "
            rf"{CORRECTED} also after Holm's correction for {plural(tests, 'comparison')}."
        )
    elif any(row.method != BASELINE for row in rows):
        lines.append(f"No test: it is of {headline} and needs {LEAST_FOR_TEST} seeds in common with {base}.")
    about = [note for note in numbers.notes if note.startswith(_ABOUT)]
    lines += [f"{capital(escaped(note))}." for note in about]
    return lines

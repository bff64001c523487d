"""A comparison as a table of LaTeX, as papers print it: booktabs, best and second, significance."""

import re
from collections.abc import Iterator, Mapping, Sequence

from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import data_set, escaped, method, row_latex
from fedshift.lab.tables.compare.rows import Row
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.grouping import grouped
from fedshift.lab.tables.results.metrics import LOWEST_IS_BEST
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST, Paired, Spread
from fedshift_core.accuracies import STD
from fedshift_core.limits import plain
from fedshift_core.plural import capital, plural

LEVEL = 0.05  # of a test
WIDE = 7  # columns of numbers beyond which a table takes both columns of a page
MARK, CORRECTED = r"\rlap{$^{\dagger}$}", r"\rlap{$^{\ddagger}$}"  # without width: means stay below each other
#: A table is made as wide as the text if it is wider, never made larger.
_BEFORE = r"""\small\setlength{\tabcolsep}{4pt}
\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%
\begin{tabular}"""
_AFTER = r"""\end{tabular}}
\par\smallskip
\begin{minipage}{\linewidth}\footnotesize"""
_TASKS = {"global": "Global model", "personal": "Personal models", "personal on all": "Personal models, on all domains"}
#: First words of the notes of a comparison that readers of its table need.
_ABOUT = ("STD:", "WORST:", "all seeds share", "scored personal")


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

    tasks = grouped(((row.group, row.scored), row) for row in numbers.rows)
    width = len(numbers.columns)
    cells: list[list[str]] = []
    for (group, scored), members in tasks.items():
        task = _TASKS.get(scored, escaped(scored)) + (f" ({escaped(group)})" if group else "")
        rule = "\\midrule\n" if cells else ""
        head = rf"{rule}\multicolumn{{{1 + width}}}{{l}}{{\emph{{{task}}}}} \\" + "\n"
        cells += _of_task(members, numbers, decimals, head if len(tasks) > 1 or scored != "global" else "")
    names = ["Method", *(escaped(column_name(column)) for column in numbers.columns)]
    dataset = numbers.rows[0].runs[0].results.dataset
    rest = numbers.title.removeprefix(dataset)
    style = pd.DataFrame(cells).style.hide(axis="index").format_index(names.__getitem__, axis=1)
    table = style.to_latex(
        hrules=True,
        column_format="l" + "c" * width,
        position="t",
        position_float="centering",
        caption=caption or escaped(rest if rest == numbers.title else data_set(dataset) + rest) + ".",
        label=label or "tab:" + re.sub("[^a-zA-Z0-9]", "-", f"{dataset}-{numbers.score}"),
        environment="table*" if width > WIDE else "table",
    )
    assert isinstance(table, str)
    before, _, after = table.partition(r"\begin{tabular}")
    after = after.replace("\\end{tabular}\n", "\n".join([_AFTER, *_notes(numbers), "\\end{minipage}\n"]))
    above = (r"\usepackage{booktabs,graphicx}", *(f"warning: {text}" for text in numbers.warnings), *numbers.notes)
    return "".join(f"% {plain(text, len(text))}\n" for text in above) + before + _BEFORE + after.rstrip()


def _of_task(members: Sequence[Row], numbers: Numbers, decimals: int, head: str) -> Iterator[list[str]]:
    """Yield the lines of rows that compare: the best and the second best mean, as printed, are marked in each column.

    Nothing is marked where the comparison names no best: one row, or rows of other images.
    """
    marked: dict[str, dict[float, str]] = {}
    for column in numbers.columns:
        means = sorted({round(mean, decimals) for row in members if (mean := row.value(column).mean) is not None})
        if column != STD and numbers.score not in LOWEST_IS_BEST:
            means.reverse()
        named = any(column in row.best for row in members)
        marked[column] = dict(zip(means, ("textbf", "underline"), strict=False)) if named else {}
    for row in members:
        signs = {numbers.headline: _sign(row.difference)}
        shown = (
            _cell(row.value(name), decimals, marked[name], signs.get(name, ""), row.marks.get(name, ""))
            for name in numbers.columns
        )
        yield [head + row_latex(row), *shown]
        head = ""
        if row.paper is not None:
            name = rf"\quad \emph{{printed: {escaped(row.paper.label)}}}"
            yield [name, *(_cell(row.paper.values[column], decimals, {}) for column in numbers.columns)]


def _cell(value: Spread, decimals: int, marked: Mapping[float, str], sign: str = "", mark: str = "") -> str:
    if value.mean is None:
        return "--"
    shown = f"{value.mean:.{decimals}f}".replace("-", "$-$")
    if command := marked.get(round(value.mean, decimals)):
        shown = rf"\{command}{{{shown}}}"
    spread = "" if value.std is None else rf" {{\scriptsize$\pm${value.std:.{decimals}f}}}"
    return shown + spread + sign + (rf" {{\scriptsize({escaped(mark)})}}" if mark else "")


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
            rf"$^{{\dagger}}$ {headline} differs from {base}'s with $p < {LEVEL}$ (two-sided paired $t$-test over "
            rf"seeds); $^{{\ddagger}}$ also after Holm's correction for {plural(tests, 'comparison')}."
        )
    elif any(row.method != BASELINE for row in rows):
        lines.append(f"No test: it is of {headline} and needs {LEAST_FOR_TEST} seeds in common with {base}.")
    about = [note for note in numbers.notes if note.startswith(_ABOUT)]
    lines += [f"{capital(escaped(note))}." for note in about]
    return lines

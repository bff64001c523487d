"""A comparison as a table of LaTeX, as papers print it: booktabs, best and second, significance."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedshift.lab.tables.compare.notes import of_test_images
from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import data_set, escaped, method, row_latex, row_text
from fedshift.lab.tables.compare.rows import Row, same_worst
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.metrics import LOWEST_IS_BEST
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST, Spread
from fedshift_app.run.logs import cleaned
from fedshift_core.accuracies import STD, WORST
from fedshift_core.plural import plural

LEVEL = 0.05  # of a test
CELL, FITTING = 12, 76  # characters of a cell; of a line as wide as the text of a page, a longer one is made smaller
WIDE = 7  # columns of numbers beyond which a table takes both columns of a page
MARK, CORRECTED = r"$^{\dagger}$", r"$^{\ddagger}$"
#: A table is made as wide as the text if it is wider, never made larger.
_SHRUNK = r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
_TASKS = {
    "global": "Global model", "personal": "Personal models", "personal on all": "Personal models, on all domains",
}  # fmt: skip


@dataclass(frozen=True)
class _Ranks:
    """The printed means that are marked in a column of rows with the same task; None where nothing is."""

    best: str | None
    second: str | None


def latex(numbers: Numbers, decimals: int, caption: str = "", label: str = "") -> str:
    r"""Return a table that needs ``\usepackage{booktabs}`` and, if it is wide, ``graphicx``.

    Notes and warnings of the comparison stand above it as comments, for whoever writes the paper.

    Args:
        numbers: The comparison, with the columns to print.
        decimals: Of means and spreads.
        caption: Its caption, in LaTeX; empty for what is compared.
        label: Its label; empty for one made of the data set's.
    """
    width = 1 + len(numbers.columns)
    marks = _marks(numbers)
    body: list[str] = []
    tasks = list(dict.fromkeys((row.group, row.scored) for row in numbers.rows))
    for group, scored in tasks:
        members = [row for row in numbers.rows if (row.group, row.scored) == (group, scored)]
        if len(tasks) > 1 or scored != "global":
            body += [r"\midrule"] * bool(body)
            body.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_task(scored, group)}}}}} \\")
        ranks = {column: _ranks(members, column, numbers, decimals) for column in numbers.columns}
        for row in members:
            body += _lines(row, numbers, ranks, marks.get(id(row), ""), decimals)
    head = ["Method", *(escaped(column_name(column)) for column in numbers.columns)]
    place = "table*" if len(numbers.columns) > WIDE else "table"
    many = max(len(row_text(row)) for row in numbers.rows) + CELL * len(numbers.columns) > FITTING
    lines = [
        *_comments(numbers, many), rf"\begin{{{place}}}[t]", r"  \centering",
        rf"  \caption{{{caption or _caption(numbers)}}}", rf"  \label{{{label or _label(numbers)}}}",
        r"  \par\smallskip", r"  \small\setlength{\tabcolsep}{4pt}", *[_SHRUNK] * many,
        rf"  \begin{{tabular}}{{l{'c' * len(numbers.columns)}}}", r"    \toprule",
        f"    {_joined(head)}", r"    \midrule", *(f"    {line}" for line in body), r"    \bottomrule",
        r"  \end{tabular}" + "}" * many, r"  \par\smallskip", r"  \begin{minipage}{\linewidth}\footnotesize",
        *(f"    {line}" for line in _notes(numbers, marks)), r"  \end{minipage}", rf"\end{{{place}}}",
    ]  # fmt: skip
    return "\n".join(lines)


def _lines(row: Row, numbers: Numbers, ranks: dict[str, _Ranks], mark: str, decimals: int) -> list[str]:
    """Return the line of a row, and that of the paper's printed row."""
    cells = [row_latex(row)]
    for column in numbers.columns:
        cell = _cell(row.values.get(column), ranks[column], mark if column == numbers.headline else "", decimals)
        cells.append(cell + (rf" {{\scriptsize({escaped(row.marks[column])})}}" if column in row.marks else ""))
    lines = [_joined(cells)]
    if row.paper is not None:
        printed = [Spread(row.paper.values[column], row.paper.spreads[column], 0) for column in numbers.columns]
        nothing = _Ranks(None, None)
        name = rf"\quad \emph{{printed: {escaped(row.paper.label)}}}"
        lines.append(_joined([name, *(_cell(value, nothing, "", decimals) for value in printed)]))
    return lines


def _cell(value: Spread | None, ranks: _Ranks, mark: str, decimals: int) -> str:
    if value is None or value.mean is None:
        return "--"
    mean = shown = f"{value.mean:.{decimals}f}".replace("-", "$-$")
    if mean == ranks.best:
        shown = rf"\textbf{{{mean}}}"
    elif mean == ranks.second:
        shown = rf"\underline{{{mean}}}"
    spread = "" if value.std is None else rf" {{\scriptsize$\pm${value.std:.{decimals}f}}}"
    return shown + spread + (rf"\rlap{{{mark}}}" if mark else "")  # without width: means stay below each other


def _ranks(members: Sequence[Row], column: str, numbers: Numbers, decimals: int) -> _Ranks:
    """Return the best and the second best printed mean of a column; equal prints are marked alike.

    Nothing is marked where the comparison names no best: one row, or rows of other images.
    """
    if not any(column in row.best for row in members):
        return _Ranks(None, None)
    means = [value.mean for row in members if (value := row.values.get(column)) and value.mean is not None]
    lowest = column == STD or numbers.score in LOWEST_IS_BEST
    printed = list(
        dict.fromkeys(f"{mean:.{decimals}f}".replace("-", "$-$") for mean in sorted(means, reverse=not lowest))
    )
    return _Ranks(printed[0], printed[1] if len(printed) > 1 else None)


def _marks(numbers: Numbers) -> dict[int, str]:
    """Return the mark of each significant row by its identity."""
    if numbers.headline not in numbers.columns:
        return {}
    marks = {}
    for row in numbers.rows:
        paired = row.difference
        if paired is not None and paired.p is not None and paired.p < LEVEL:
            marks[id(row)] = CORRECTED if paired.p_holm is not None and paired.p_holm < LEVEL else MARK
    return marks


def _notes(numbers: Numbers, marks: dict[int, str]) -> list[str]:
    """Return what a reader of the table must know, as sentences in LaTeX."""
    rows = numbers.rows
    seeds = sorted({len(row.seeds) for row in rows})
    counted = f"{seeds[0]} seeds" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    single = " (no deviation: one seed)" if 1 in seeds else ""
    lines = ["One seed." if seeds == [1] else rf"Mean $\pm$ sample standard deviation over {counted}{single}."]
    several = len({(row.group, row.scored) for row in rows}) > 1
    if any(row.best for row in rows):
        lines.append(r"Best in bold, second \underline{underlined}" + ", of each task." * several + "." * (not several))
    headline = escaped(column_name(numbers.headline))
    base = method(BASELINE)
    tested = [row for row in rows if row.difference is not None and row.difference.p is not None]
    if numbers.headline in numbers.columns and tested:
        lines.append(
            rf"{MARK} {headline} differs from {base} with $p < {LEVEL}$ (two-sided paired $t$-test over seeds); "
            rf"{CORRECTED} also after Holm's correction for the {plural(len(tested), 'comparison')} of the table."
        )
        if not marks:
            lines.append("No row has such a mark.")
        if any(id(row) in marks and row.scored != "global" for row in rows):
            lines.append(f"Personal models are compared with {base}'s global model.")
    elif any(row.method != BASELINE for row in rows):
        lines.append(f"Without a test of significance ({_untested(numbers)}).")
    shared = of_test_images(rows, numbers.headline, numbers.score) if numbers.headline in numbers.columns else []
    lines += [f"{escaped(text[:1].upper() + text[1:])}." for text in shared]
    if STD in numbers.columns:
        lines.append("STD: over the domains of a run.")
    if WORST in numbers.columns:
        same = same_worst(rows)
        lines.append("WORST: the worst domain of each run" + (f" ({escaped(column_name(same))})." if same else "."))
    if any(row.scored == "personal" for row in rows):
        held_out = all(row.unseen for row in rows)
        where = "on the domain that no node held" if held_out else "on its own domain"
        lines.append(f"Personal models: that of each node, {where}.")
    return lines


def _untested(numbers: Numbers) -> str:
    if numbers.headline not in numbers.columns:
        return f"that is of {escaped(column_name(numbers.headline))}, which is not shown"
    return f"it needs {LEAST_FOR_TEST} seeds in common with {method(BASELINE)}"


def _comments(numbers: Numbers, many: bool) -> list[str]:
    """Return comments: the packages, warnings, notes."""
    texts = [
        r"\usepackage{booktabs" + ",graphicx" * many + "}",
        *(f"warning: {text}" for text in numbers.warnings),
        *numbers.notes,
    ]
    return [f"% {' '.join(cleaned(text, len(text)).split())}" for text in texts]


def _task(scored: str, group: str) -> str:
    return _TASKS.get(scored, escaped(scored)) + (f" ({escaped(group)})" if group else "")


def _caption(numbers: Numbers) -> str:
    dataset = numbers.rows[0].runs[0].results.dataset
    rest = numbers.title.removeprefix(dataset)
    return escaped(rest if rest == numbers.title else data_set(dataset) + rest) + "."


def _label(numbers: Numbers) -> str:
    dataset = numbers.rows[0].runs[0].results.dataset
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in f"{dataset}-{numbers.score}")
    return f"tab:{kept}"


def _joined(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"

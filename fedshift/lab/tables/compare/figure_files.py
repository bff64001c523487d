"""The figures of a comparison as files for a paper: PDF, SVG and PNG, with the curves as CSV."""

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedshift.lab.tables.compare import figures, long_form, tradeoff
from fedshift.lab.tables.compare.paper_names import column as column_name
from fedshift.lab.tables.compare.paper_names import relabelled, text_of
from fedshift.lab.tables.compare.rows import named
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.results.settings import BASELINE
from fedshift.run.html.drawing import MISSING_GLYPH, WIDTH, Plot, canvas, style
from fedshift_core.accuracies import OVERALL
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, as_found, plain, shown
from fedshift_core.spelling import meant

log = logging.getLogger("fedshift")

FORMATS = ("pdf", "svg", "png")
DIFFERENCE, CURVES, DOMAINS = "difference", "curves", "domains"
CURVES_FILE, CAPTIONS_FILE = "curves.csv", "captions.txt"
LONGEST, LETTER = 48, 0.075  # characters of a row's name next to a figure, inches of one
DPI = 300  # of PNG
SHORT_NAME = 16  # characters for which the page's width is enough
PANELS = 3  # panels in a line of the figure of all domains
#: How text is kept: as fonts in PDF, which journals ask for, as shapes in SVG, which look the same everywhere.
_KEPT: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedshift"}
_COSTS = {tradeoff.BYTES: "bytes", tradeoff.SECONDS: "seconds", tradeoff.FLOPS: "flops"}


def plots(numbers: Numbers) -> dict[str, Plot]:
    """Return the figures of a comparison by name, in placeholder colours, rows named as papers print them.

    They are those of the page, and one of all domains side by side.
    """
    numbers, groups = figures.numbered(relabelled(numbers), LONGEST)
    form = _form(numbers)
    drawn = figures.plots(numbers, form)
    by_name: dict[str, Plot] = {}
    for name, some in ((DIFFERENCE, drawn.differences), (CURVES, drawn.curves)):
        by_name |= dict.fromkeys([name], some[0]) if some else {}
    domains = [column for column in numbers.columns if column in drawn.columns and column not in OVERALL]
    if domains:
        by_name[DOMAINS] = _side_by_side(numbers, domains, form)
    for what, plot in drawn.prices.items():
        by_name[f"tradeoff-{_COSTS.get(what, _file_name(what))}"] = plot
    for column in (column for column in numbers.columns if column in drawn.columns):
        plot = drawn.columns[column]
        with style():
            plot.figure.axes[0].set_title(column_name(column), loc="left")
        caption = f"{column_name(column)}: {figures.dots_caption(numbers, form)}"
        by_name[_unlike(_file_name(column), by_name)] = replace(plot, caption=caption)
    return {name: replace(plot, caption=f"{plot.caption} {groups}".rstrip()) for name, plot in by_name.items()}


def figure(numbers: Numbers, name: str) -> Figure:
    """Return a figure by its name, in the colours of a white page.

    Raises:
        ConfigError: If there is none of that name; the message lists those there are.
    """
    by_name = plots(numbers)
    if name not in by_name:
        raise ConfigError(f"no figure {as_found(name)}; there are {', '.join(by_name) or 'none'}{meant(name, by_name)}")
    return by_name[name].figure


def write(numbers: Numbers, folder: Path) -> list[Path]:
    """Write each figure in each format, their captions, and the curves as CSV.

    Args:
        numbers: The comparison.
        folder: Where to; it is made. Files of the same names are replaced.

    Returns:
        The files.

    Raises:
        ConfigError: If there is no figure, or a file cannot be written.
    """
    by_name = plots(numbers)
    if not by_name:
        raise ConfigError(f"--figures: no figure can be drawn: {' '.join(figures.plots(numbers).lacking)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        with style(), mpl.rc_context(_KEPT), warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", MISSING_GLYPH, UserWarning)
            for name, plot in by_name.items():
                drawn = plot.figure
                drawn.draw_without_rendering()
                drawn.set_layout_engine("none")  # it is laid out, which each file would do again
                for ending in FORMATS:
                    files.append(folder / f"{name}.{ending}")
                    drawn.savefig(files[-1], dpi=DPI, metadata=_without_date(ending))
        for file, text in ((CURVES_FILE, _curves(numbers, by_name)), (CAPTIONS_FILE, _captions(by_name))):
            if text:
                files.append(folder / file)
                write_atomically(files[-1], text)
        if any(re.match(MISSING_GLYPH, str(warning.message)) for warning in caught):
            log.warning(
                "--figures: no font of this machine has all letters of the names, those that lack are boxes; a font "
                "such as Noto Sans CJK has them"
            )
    except OSError as error:
        raise ConfigError(f"--figures: cannot write into {shown(folder)}: {error.strerror}") from None
    return files


def _form(numbers: Numbers) -> figures.Form:
    """Return a form in which names of rows are whole: a figure is wider than the page's where they are long."""
    longest = min(LONGEST, max(len(named(row)) for row in numbers.rows))
    return figures.Form(text_of(BASELINE), LONGEST, WIDTH + LETTER * max(0, longest - SHORT_NAME))


def _side_by_side(numbers: Numbers, columns: Sequence[str], form: figures.Form) -> Plot:
    """Draw the dots of several columns in one figure, with the rows by_name once in each line of panels."""
    across = 2 if len(columns) == 4 else min(PANELS, len(columns))  # no line of one panel
    lines = -(-len(columns) // across)
    with style():
        drawing, places = canvas(
            0.2 + lines * (0.75 + 0.24 * len(numbers.rows)), lines, across, form.width, sharey=True
        )
        for axes, column in zip(places, columns, strict=False):
            figures.plot_dots(axes, numbers, column, form)
            axes.locator_params(axis="x", nbins=3)
            axes.set_title(plain(column_name(column), MOST_NAME), loc="left")
        for axes in places[len(columns) :]:
            axes.set_visible(False)
        drawing.supxlabel(figures.unit(numbers), fontsize=figures.LABEL_SIZE)
    caption = f"{', '.join(map(column_name, columns))}: {figures.dots_caption(numbers, form)}"
    return Plot(drawing, DOMAINS, caption, caption)


def _curves(numbers: Numbers, by_name: Mapping[str, Plot]) -> str:
    return long_form.curves_csv(numbers) if CURVES in by_name else ""


def _captions(by_name: Mapping[str, Plot]) -> str:
    return "".join(f"{name}: {plot.caption}\n" for name, plot in by_name.items())


def _without_date(ending: str) -> dict[str, Any]:
    """Return the metadata with which the same figure is the same file."""
    return {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending, {})


def _file_name(name: str) -> str:
    """Return a name of a column as a name of a file."""
    return re.sub(r"[^\w.=-]+", "-", plain(name, MOST_NAME)).strip("-.") or "column"


def _unlike(name: str, others: Mapping[str, Plot]) -> str:
    """Return the name, with a number where another figure has it."""
    taken = {other.lower() for other in others}
    number = 2
    unlike = name
    while unlike.lower() in taken:
        unlike, number = f"{name}-{number}", number + 1
    return unlike

"""The style of figures: small inline SVG in the colours of the page's theme.

Figures have the colours of the light theme. On a page each becomes its CSS variable, so that one figure serves both
themes. Text stays text in the reader's font. A figure is as wide as a phone.
"""

import functools
import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedshift.run.texts import TEMPLATES

#: By name of a CSS variable, the colours of the light theme.
THEME: dict[str, str] = dict(re.findall(r"--(\w+):(#\w{6})", (TEMPLATES / "light.css").read_text(encoding="utf-8")))
TEXT, GRID = THEME["fg"], THEME["grid"]
WIDTH = 5.0  # inches of 72 units: 360 wide, with text of 9 to 11
HEAT = "#3d7cc4"  # colour of heat maps, more or less opaque on both themes
STRONG, OPAQUE = "#ffffff", 0.8  # text on cells that are more opaque than this, in both themes
DOMAINS = 8  # number of colours and markers for domains
CLASSES = 10  # number of colours for classes
SHORT = 10  # characters of a name next to a heat map
ROW_NAME, COLUMN_NAME = 24, 16  # characters of the name of a row and of a column of a heat map
TITLE, TITLE_LINES = 60, 4  # characters of a line of a figure's title; number of lines
LABELLED = 40  # up to this number, rows, columns and bars have labels
MARKERS = "os^DvPX*"
NAMED_DOMAINS = 24  # up to this number, a figure draws and names each domain
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))  # one for each eight domains
LEGEND_HANDLE, LEGEND_LETTER = 32.0, 6.2  # widths in a legend: the handle of an entry, a character
LEGEND_NAME = 48  # characters of an entry of a legend
LEGEND_ROWS, LEGEND_LINE = 3, 15.5  # rows that fit into a figure's height; height of each further one

MISSING_GLYPH = r"Glyph .* missing from "  # how matplotlib's warning begins

_OF_PAGE = {colour: f"var(--{name})" for name, colour in THEME.items() if name[1:].isdigit() or name == "grid"}
_OF_PAGE[TEXT] = "currentColor"
_COLOUR = re.compile("|".join(_OF_PAGE))
_FONT = re.compile(r"font-family: [^;\"]+")
_TAG = re.compile(r"<[^<>]+>")  # what is shown holds no < and no >
_STYLE = mpl.rc_params_from_file(TEMPLATES / "figures.mplstyle", use_default_template=False)
_STYLE |= dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), TEXT
)
_STYLE |= dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor", "grid.color"), GRID)


@dataclass(frozen=True)
class Plot:
    """A figure and what is said of it.

    Attributes:
        figure: The figure.
        name: Its name on the page, which no other figure has.
        caption: The text under it, which is its text alternative too.
    """

    figure: Figure
    name: str
    caption: str

    @functools.cached_property
    def svg(self) -> str:
        """The figure as an ``<svg>`` element of a page."""
        file = io.StringIO()
        without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with style(), mpl.rc_context({"svg.hashsalt": self.name}):  # ids of figures on a page differ
            self.figure.savefig(file, format="svg", transparent=True, metadata=without, dpi=144)
        label = escape(self.caption)
        head = f'<svg class="plot" role="img" \\1 aria-label="{label}"><title>{label}</title>'
        drawn = re.sub(
            r'.*<svg [^>]*(viewBox="[^"]+")[^>]*>',
            lambda found: found.expand(head),
            file.getvalue(),
            count=1,
            flags=re.DOTALL,
        )
        return str(_TAG.sub(_themed, drawn))


def _themed(tag: re.Match[str]) -> str:
    """Return a tag in the colours and the font of the page; names of groups, which all figures have alike, go."""
    text = tag[0] if tag[0].startswith("<svg") else re.sub(r'<g id="[^"]+"', "<g", tag[0])
    return _FONT.sub("font-family: inherit", _COLOUR.sub(lambda colour: _OF_PAGE[str(colour[0])], text))


def domain_colour(index: int) -> str:
    """Return a domain's colour, the same in all figures."""
    return THEME[f"d{index % DOMAINS}"]


def domain_marker(index: int) -> str:
    """Return the marker of a domain, the same in all figures; with its colour no other's up to 64 domains."""
    return MARKERS[(index + index // DOMAINS) % DOMAINS]


def domain_dash(index: int) -> Any:
    """Return the style of a domain's line; with its colour no other's up to 32 domains."""
    return DASHES[index // DOMAINS % len(DASHES)]


def class_colour(index: int, classes: int) -> str:
    """Return a class's colour: one of ten, or a place on the colour wheel for more classes."""
    if classes <= CLASSES:
        return THEME[f"k{index}"]
    return mpl.colors.to_hex(tuple(mpl.colors.hsv_to_rgb((index / classes, 0.65, 0.75)).tolist()))


@contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style; letters that no font here has are left to the reader's fonts."""
    with mpl.rc_context({**_STYLE, "font.family": _families()}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", MISSING_GLYPH, UserWarning)
        yield


@functools.cache
def _families() -> list[str]:
    """Return the fonts of figures that are here."""
    here = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _STYLE["font.family"] if name in here]


def canvas(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **more: object
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure, by default of the page's width, with its axes row by row.

    Args:
        height: In inches.
        rows: Of axes.
        columns: Of axes.
        width: In inches.
        more: Passed on to ``Figure.subplots``.
    """
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False, **more)  # type: ignore[call-overload]
    return figure, list(axes.flat)


def bare(axes: Axes) -> None:
    """Take ticks and frame off axes whose numbers mean nothing."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put the legend of ``axes`` above the whole figure, in as many columns as fit; the figure grows with its rows."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    labels = [short(label, LEGEND_NAME) for label in labels]
    wide = [LEGEND_HANDLE + LEGEND_LETTER * len(label) for label in labels]
    room = 72 * figure.get_figwidth()
    columns = len(labels) if sum(wide) <= room else max(1, int(room / max(wide)))
    rows = -(-len(labels) // columns)
    if rows > LEGEND_ROWS:
        figure.set_figheight(figure.get_figheight() + (rows - LEGEND_ROWS) * LEGEND_LINE / 72)
    spacing = {"handlelength": 1.6, "handletextpad": 0.5, "columnspacing": 1.0, "borderaxespad": 0.2}
    figure.legend(handles, labels, loc="outside upper left", ncols=-(-len(labels) // rows), **spacing)


def heat_map(axes: Axes, shares: Sequence[Sequence[float]], texts: Sequence[Sequence[str]] = ()) -> None:
    """Draw a matrix (R, C) of numbers from 0 to 1 as cells, with a text each; larger numbers are more opaque."""
    red, green, blue = mpl.colors.to_rgb(HEAT)
    cells = [[(red, green, blue, min(max(value, 0.0), 1.0)) for value in row] for row in shares]
    axes.imshow(cells, interpolation="nearest", aspect="auto")
    axes.tick_params(length=0)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            colour = STRONG if shares[i][j] > OPAQUE else TEXT
            axes.text(j, i, text, ha="center", va="center", color=colour, fontsize=9)


def heat_key(figure: Figure, axes: Axes, most: float) -> None:
    """Draw the colour key of a heat map of training images, from 0 to ``most``, below ``axes``."""
    colours = mpl.colors.LinearSegmentedColormap.from_list("heat", [f"{HEAT}00", HEAT])
    mapped = mpl.cm.ScalarMappable(mpl.colors.Normalize(0, most), colours)
    ticks = MaxNLocator(nbins=5)
    key = figure.colorbar(mapped, ax=axes, location="bottom", fraction=0.05, pad=0.03, aspect=45, ticks=ticks)
    assert key.solids is not None  # a key of colours that fill
    key.solids.set(rasterized=True, edgecolor="none")  # otherwise the file has one path per colour
    key.outline.set_visible(False)
    key.ax.tick_params(length=2, labelsize=9)
    key.set_label("training images of the class", fontsize=9)


def short(name: str, most: int = SHORT) -> str:
    """Return a name shortened to at most ``most`` characters."""
    return name if len(name) <= most else name[: most - 1] + "…"


def titled(name: str, width: int = TITLE) -> str:
    """Return a name as the title of a figure, in up to four lines of ``width`` characters."""
    return "\n".join(textwrap.wrap(name, width, max_lines=TITLE_LINES, placeholder=" …")) or name


def shown_rounds(axes: Axes, last: int) -> None:
    """Set the axis of rounds from the first to the last round, in integers."""
    first = min(last, 1)  # 0 in a run without rounds
    axes.set_xlim(first - 0.5 if last < 3 else first - 0.02 * last, last + (0.5 if last < 3 else 0.02 * last))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("round")

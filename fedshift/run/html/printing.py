"""Figures on white paper: real colours in place of the placeholders that a page's theme fills in."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

from fedshift.run.html.drawing import GRID, TEXT, domain_colour

#: The light theme of templates/base.css.
PAPER_TEXT, PAPER_GRID = "#1b1f24", "#a9b1ba"
PAPER_DOMAINS = ("#0072b2", "#d55e00", "#00875f", "#b8579a", "#3a9bd9", "#b07a00", "#6a4fc4", "#5c5c5c")

Rgba = tuple[float, float, float, float]


def printed(figure: Figure) -> Figure:
    """Replace the placeholder colours of a figure by those of the light theme; return the figure.

    Colours of axes are set first: ticks that are made later take them from there.
    """
    real = {TEXT: PAPER_TEXT, GRID: PAPER_GRID} | {domain_colour(i): c for i, c in enumerate(PAPER_DOMAINS)}
    known = {mpl.colors.to_rgba(placeholder): mpl.colors.to_rgba(colour) for placeholder, colour in real.items()}
    figure.set_facecolor("white")
    for axes in figure.axes:
        axes.tick_params(which="both", color=PAPER_GRID, labelcolor=PAPER_TEXT, grid_color=PAPER_GRID)
    figure.draw_without_rendering()  # ticks and legends are made when a figure is drawn
    artists = figure.findobj()
    arrows = [artist.arrow_patch for artist in artists if isinstance(artist, Annotation) and artist.arrow_patch]
    for artist in (*artists, *arrows):
        for take, put in _colours(artist):
            replaced = _replaced(take(), known)
            if replaced is not None:
                put(replaced)
    return figure


def _colours(artist: Artist) -> Sequence[tuple[Callable[[], Any], Callable[[Any], object]]]:
    """Return how the colours of an artist are read and set."""
    if isinstance(artist, Line2D):
        return (
            (artist.get_color, artist.set_color),
            (artist.get_markerfacecolor, artist.set_markerfacecolor),
            (artist.get_markeredgecolor, artist.set_markeredgecolor),
        )
    if isinstance(artist, Text):
        return ((artist.get_color, artist.set_color),)
    if isinstance(artist, Axes):
        return ()
    if isinstance(artist, Patch | Collection):
        return ((artist.get_facecolor, artist.set_facecolor), (artist.get_edgecolor, artist.set_edgecolor))
    return ()


def _replaced(colour: Any, known: dict[Rgba, Rgba]) -> Any:
    """Return a colour, or an array of colours, with the real one for each placeholder; None if it has none."""
    if isinstance(colour, np.ndarray) and colour.ndim == 2:
        rows = [_replaced(tuple(row.tolist()), known) for row in colour]
        return None if not any(rows) else [new or tuple(old.tolist()) for new, old in zip(rows, colour, strict=True)]
    if isinstance(colour, str) and colour in ("none", "auto"):
        return None
    red, green, blue, alpha = mpl.colors.to_rgba(colour)
    real = next((new for old, new in known.items() if np.allclose(old[:3], (red, green, blue), atol=1e-6)), None)
    return None if real is None else (*real[:3], alpha)

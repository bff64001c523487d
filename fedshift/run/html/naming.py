"""Places names next to the points of a figure."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from fedshift.run.html.drawing import GRID

SIZE, LETTER = 9, 5.5  # of the text, and the width of one of its letters
LINE, GAP = 11.0, 5.0  # height of a line of the text; distance between a point and its name


def name_points(axes: Axes, named: Sequence[tuple[float, float, str]]) -> None:
    """Write a name next to each point, from the highest down, each below those that are in its way.

    Args:
        axes: The axes with their final scales, limits and points.
        named: x, y and name of each point. A line connects a name that had to move with its point.
    """
    figure = axes.figure.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides where points are
    scale, taken = 72 / figure.dpi, list[Bbox]()
    for x, y, name in sorted(named, key=lambda point: (-point[1], point[0])):
        right, up = axes.transData.transform((x, y)) * scale
        width, lift = LETTER * len(name), 0.0
        fits = right + GAP + width < figure.bbox.x1 * scale
        box = Bbox.from_bounds(right + GAP if fits else right - GAP - width, up - LINE / 2, width, LINE)
        while any(box.translated(0, lift).fully_overlaps(other) for other in taken):
            lift -= LINE / 2
        taken.append(box.translated(0, lift))
        tie = {"arrowstyle": "-", "color": GRID, "linewidth": 0.6, "shrinkA": 0} if lift else None
        axes.annotate(
            name, (x, y), xytext=(GAP if fits else -GAP, lift), textcoords="offset points", fontsize=SIZE, va="center",
            ha="left" if fits else "right", arrowprops=tie,
        ).set_in_layout(False)  # fmt: skip

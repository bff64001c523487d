"""Places names next to the points of a figure without overlaps."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from fedshift.run.html.drawing import GRID, text_width

SIZE = 9  # of the text
LINE = 11.0  # height of a line of the text
GAP, POINT = 5.0, 3.0  # distance between a point and its name; radius of a point
FARTHEST = 14  # largest distance by which a name is moved up or down, in lines


def name_points(
    axes: Axes,
    named: Sequence[tuple[float, float, str]],
    others: Sequence[tuple[float, float]] = (),
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """Write a name next to each point, in the nearest free place, from the highest point down.

    Args:
        axes: The axes with their final scales, limits and points.
        named: x, y and name of each point. A line connects a name with a point that is not near.
        others: x and y of points without a name. Names avoid them where possible.
        lines: x and y of the corners of lines along the axes. Names avoid them where possible.
    """
    figure = axes.figure.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides where points are
    scale = 72 / figure.dpi
    frame = axes.get_window_extent()
    room = Bbox.from_extents(frame.x0 * scale, frame.y0 * scale, figure.bbox.x1 * scale, figure.bbox.y1 * scale)

    def place(x: float, y: float) -> tuple[float, float]:
        right, up = axes.transData.transform((x, y))
        return float(right) * scale, float(up) * scale

    points = [_around(*place(x, y)) for x, y, _ in named]
    crowd = [_around(*place(x, y)) for x, y in others]
    for line in lines:
        corners = [_around(*place(x, y), 0.5) for x, y in line]
        crowd += [Bbox.union(both) for both in pairwise(corners)]
    taken: list[Bbox] = []
    for x, y, name in sorted(named, key=lambda point: (-point[1], point[0])):
        at = place(x, y)
        tried = [candidate for candidate in _boxes(*at, name) if _within(candidate[2], room)]
        free = [candidate for candidate in tried if not any(map(candidate[2].fully_overlaps, [*taken, *points]))]
        clear = [candidate for candidate in free if not any(map(candidate[2].fully_overlaps, crowd))]
        up, side, box = next(iter([*clear, *free, *tried, *_boxes(*at, name)]))
        taken.append(box)
        axes.annotate(
            name, (x, y), xytext=(side * GAP, up * LINE), textcoords="offset points", fontsize=SIZE, va="center",
            ha="left" if side > 0 else "right",
            arrowprops=None if abs(up) < 1 else {"arrowstyle": "-", "color": GRID, "linewidth": 0.6},
        ).set_in_layout(False)  # fmt: skip


def _around(right: float, up: float, reach: float = POINT) -> Bbox:
    return Bbox.from_extents(right - reach, up - reach, right + reach, up + reach)


def _within(inner: Bbox, outer: Bbox) -> bool:
    return outer.contains(inner.x0, inner.y0) and outer.contains(inner.x1, inner.y1)


def _boxes(right: float, up: float, name: str) -> Iterator[tuple[float, int, Bbox]]:
    """Return possible places of a name, the nearest first: lines above its point, side, rectangle."""
    width = text_width(name, SIZE)
    for line in sorted(
        (half / 2 for half in range(-2 * FARTHEST, 2 * FARTHEST + 1)), key=lambda line: (abs(line), -line)
    ):
        for side in (1, -1):
            left = right + GAP if side > 0 else right - GAP - width
            yield line, side, Bbox.from_extents(left, up + (line - 0.5) * LINE, left + width, up + (line + 0.5) * LINE)

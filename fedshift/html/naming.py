"""Names beside the points of a figure, where they do not lie on one another."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from fedshift.html.drawing import GRID

SIZE = 9  # of the text
LETTER, LINE = 5.2, 11.0  # width of a letter of it, and height of a line
GAP, POINT = 5.0, 3.0  # between a point and its name; half of a point
FARTHEST = 14  # lines that a name is moved up or down at most


def name_points(
    axes: Axes,
    named: Sequence[tuple[float, float, str]],
    others: Sequence[tuple[float, float]] = (),
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> None:
    """Write a name beside each point, the highest first, as near as it is free, with a line where that is not near.

    Args:
        axes: With scales, limits and all points as they stay.
        named: x, y and name.
        others: x and y of points without a name. A name keeps off them where it can.
        lines: x and y of the corners of lines that go along the axes; likewise.
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
    """Return where a name may stand, the nearest place first: lines above its point, side, rectangle."""
    width = LETTER * len(name)
    for line in sorted(
        (half / 2 for half in range(-2 * FARTHEST, 2 * FARTHEST + 1)), key=lambda line: (abs(line), -line)
    ):
        for side in (1, -1):
            left = right + GAP if side > 0 else right - GAP - width
            yield line, side, Bbox.from_extents(left, up + (line - 0.5) * LINE, left + width, up + (line + 0.5) * LINE)

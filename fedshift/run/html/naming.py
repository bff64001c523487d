"""Places names next to the points of a figure without overlaps."""

from collections.abc import Sequence
from itertools import pairwise, product

from matplotlib.axes import Axes
from matplotlib.textpath import TextPath
from matplotlib.transforms import Bbox

from fedshift.run.html.drawing import GRID

SIZE = 9  # of the text
LINE = 11.0  # height of a line of the text
GAP, POINT = 5.0, 3.0  # distance between a point and its name; radius of a point
FARTHEST = 14  # largest distance by which a name is moved up or down, in lines

Point = tuple[float, float]
#: The places of a name, the nearest first: lines above its point, and side.
PLACES = sorted(
    product((half / 2 for half in range(-2 * FARTHEST, 2 * FARTHEST + 1)), (1, -1)),
    key=lambda place: (abs(place[0]), -place[0], -place[1]),
)


def name_points(
    axes: Axes,
    named: Sequence[tuple[float, float, str]],
    others: Sequence[Point] = (),
    lines: Sequence[Sequence[Point]] = (),
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
    scale, frame = 72 / figure.dpi, axes.get_window_extent()
    room = Bbox.from_extents(frame.x0 * scale, frame.y0 * scale, figure.bbox.x1 * scale, figure.bbox.y1 * scale)

    def around(x: float, y: float) -> Bbox:
        right, up = axes.transData.transform((x, y)) * scale
        return Bbox.from_extents(right - POINT, up - POINT, right + POINT, up + POINT)

    points = [around(x, y) for x, y, _ in named]
    crowd = [around(*point) for point in others]
    crowd += [Bbox.union((around(*a), around(*b))).padded(0.5 - POINT) for line in lines for a, b in pairwise(line)]
    taken: list[Bbox] = []
    for x, y, name in sorted(named, key=lambda point: (-point[1], point[0])):
        at, width = around(x, y), float(TextPath((0, 0), name, size=SIZE).get_extents().x1)
        best = None
        for up, side in PLACES:
            left = (at.x0 + at.x1) / 2 + (GAP if side > 0 else -GAP - width)
            bottom = (at.y0 + at.y1) / 2 + (up - 0.5) * LINE
            box = Bbox.from_extents(left, bottom, left + width, bottom + LINE)
            out = box.x0 < room.x0 or box.y0 < room.y0 or box.x1 > room.x1 or box.y1 > room.y1
            hidden = any(map(box.fully_overlaps, [*taken, *points]))
            cost = (out, hidden, any(map(box.fully_overlaps, crowd)))
            if best is None or cost < best[0]:
                best = cost, up, side, box
            if not any(cost):
                break
        assert best is not None
        _, up, side, box = best
        taken.append(box)
        line = None if abs(up) < 1 else {"arrowstyle": "-", "color": GRID, "linewidth": 0.6}
        axes.annotate(
            name, (x, y), xytext=(side * GAP, up * LINE), textcoords="offset points", fontsize=SIZE, va="center",
            ha="left" if side > 0 else "right", arrowprops=line,
        ).set_in_layout(False)  # fmt: skip

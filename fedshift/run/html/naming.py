"""Places names next to the points of a figure without overlaps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

from matplotlib.axes import Axes
from matplotlib.path import Path
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
        named: x, y and name of each point. A line connects a name with a point that is not near; where possible it
            crosses no other line, name or named point.
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

    crowd = [around(*point) for point in others]
    crowd += [Bbox.union((around(*a), around(*b))).padded(0.5 - POINT) for line in lines for a, b in pairwise(line)]
    ground = _Ground(room, [around(x, y) for x, y, _ in named], crowd)
    for x, y, name in sorted(named, key=lambda point: (-point[1], point[0])):
        up, side = ground.place(around(x, y), float(TextPath((0, 0), name, size=SIZE).get_extents().x1))
        tie = {"arrowstyle": "-", "color": GRID, "linewidth": 0.6, "relpos": (side < 0, 0.5), "shrinkA": 0}
        axes.annotate(
            name, (x, y), xytext=(side * GAP, up * LINE), textcoords="offset points", fontsize=SIZE, va="center",
            ha="left" if side > 0 else "right", arrowprops=tie if abs(up) >= 1 else None,
        ).set_in_layout(False)  # fmt: skip


@dataclass(frozen=True)
class _Ground:
    """Hindrances of names: the figure's edge, named points, other points and lines; names and ties placed so far.

    A tie is the line from a point to a name that is not next to it.
    """

    room: Bbox
    points: Sequence[Bbox]
    crowd: Sequence[Bbox]
    names: list[Bbox] = field(default_factory=list)
    ties: list[Path] = field(default_factory=list)

    def place(self, at: Bbox, width: float) -> tuple[float, int]:
        """Return how many lines above a point its name goes, and on which side, and keep that place."""
        right, middle = (at.x0 + at.x1) / 2, (at.y0 + at.y1) / 2
        best = None
        for up, side in PLACES:
            left, bottom = right + (GAP if side > 0 else -GAP - width), middle + (up - 0.5) * LINE
            name = Bbox.from_extents(left, bottom, left + width, bottom + LINE)
            ties = [Path([(right, middle), (right + side * GAP, middle + up * LINE)])] if abs(up) >= 1 else []
            cost = self._cost(at, name, ties)
            if best is None or cost < best[0]:
                best = cost, (up, side), name, ties
            if not any(cost):
                break
        assert best is not None
        self.names.append(best[2])
        self.ties.extend(best[3])
        return best[1]

    def _cost(self, at: Bbox, name: Bbox, ties: Sequence[Path]) -> tuple[bool, ...]:
        """Return what is wrong with a place, the worst first."""
        room, apart = self.room, [point for point in self.points if not point.overlaps(at)]
        return (
            name.x0 < room.x0 or name.y0 < room.y0 or name.x1 > room.x1 or name.y1 > room.y1,
            any(map(name.fully_overlaps, [*self.names, *self.points])),
            _crossed(ties, [*self.names, *apart], self.ties) or _crossed(self.ties, [name]),
            any(map(name.fully_overlaps, self.crowd)),
        )


def _crossed(lines: Sequence[Path], boxes: Sequence[Bbox], others: Sequence[Path] = ()) -> bool:
    """Return whether a line goes through another line, or through a box or close by."""
    return any(
        any(line.intersects_bbox(box.padded(1), filled=False) for box in boxes)
        or any(map(line.intersects_path, others))
        for line in lines
    )

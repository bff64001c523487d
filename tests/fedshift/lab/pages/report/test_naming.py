"""Names next to the points of a figure do not lie on one another, on points or on lines."""

from itertools import combinations

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from fedshift.run.html import drawing
from fedshift.run.html.naming import name_points


def shown(
    named: list[tuple[float, float, str]],
    others: list[tuple[float, float]],
    lines: list[list[tuple[float, float]]],
) -> tuple[Axes, dict[str, Bbox]]:
    """Return the axes, and the rectangle of each name."""
    with drawing.style():
        figure, (axes,) = drawing.canvas(3.6)
        points = [(x, y) for x, y, _ in named] + others
        axes.plot(*zip(*points, strict=True), "o")
        axes.margins(0.18, 0.12)
        name_points(axes, named, others, lines)
        figure.draw_without_rendering()
        return axes, {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without its line


def overlap(one: Bbox, other: Bbox) -> bool:
    return Bbox.intersection(one, other) is not None


@pytest.mark.parametrize("name", ["fedavg", "SCAFFOLD", "MMWWMMWW"])  # names of narrow and of wide letters
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_names_of_points_in_one_place_are_all_to_be_read(rows: int, name: str) -> None:
    named = [(1.0, 90 + i / 100, f"{name}{i}") for i in range(rows)]
    _, boxes = shown(named, [(5.0, 70.0)], [])
    assert len(boxes) == rows
    assert not [pair for pair in combinations(boxes.values(), 2) if overlap(*pair)]


def test_names_of_wide_letters_side_by_side_are_all_to_be_read() -> None:
    named = [(i / 5, 84 + i / 10, f"MMWWMM{i}") for i in range(8)]
    _, boxes = shown(named, [(5.0, 70.0)], [])
    assert not [pair for pair in combinations(boxes.values(), 2) if overlap(*pair)]


def test_a_name_keeps_off_points_and_lines_and_stays_in_the_figure() -> None:
    named = [(1.0, 90.0, "first"), (9.0, 92.0, "the last of them")]
    line = [(1.0, 90.0), (9.0, 90.0), (9.0, 92.0)]
    axes, boxes = shown(named, [(1.3, 90.6)], [line])
    figure = axes.get_figure(root=True)
    assert figure is not None
    along = Bbox([axes.transData.transform(corner) for corner in line[:2]])
    for box in boxes.values():
        assert not overlap(box, along)
        assert not box.contains(*axes.transData.transform((1.3, 90.6)))
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_the_nearest_place_is_next_to_the_point() -> None:
    axes, _ = shown([(1.0, 90.0, "alone")], [(2.0, 80.0)], [])
    (name,) = axes.texts
    assert isinstance(name, Annotation) and name.xyann == (5.0, 0.0) and name.arrowprops is None

"""Figures of reports: what they leave out, mark and cut, and how they look on light and dark pages."""

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from fedshift.lab.pages.report import curves
from fedshift.run.html import drawing
from fedshift.run.html.naming import name_points


def test_many_domains_are_readable() -> None:
    """Of 24 long names the legend makes the figure higher; of more domains there is a band."""
    names = [f"Hospital of town {i:02}" for i in range(30)]
    accuracy = {name: 50.0 + i % 7 for i, name in enumerate(names)} | {names[3]: 10.0, names[5]: 90.0}
    lines = [{"round": n, "accuracy": accuracy} for n in (1, 2)]
    with drawing.style():
        few, many, most = (curves.by_domain(lines, names[:n], "accuracy", "Dice").figure for n in (6, 24, 30))
    assert max(few.get_figheight(), most.get_figheight()) < 3.6 and many.get_figheight() > 5
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in many.axes[0].lines}
    assert len(looks) == 25
    assert [line.get_label() for line in most.axes[0].lines] == [names[3], names[5], "AVG"]
    assert len({(drawing.domain_colour(i), drawing.domain_marker(i)) for i in range(64)}) == 64


# --- names next to points -----------------------------------------------------------------------------------


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


def test_a_line_to_a_name_crosses_no_name_and_no_other_line() -> None:
    """Six methods of PACS side by side on the front of accuracy against seconds."""
    x, y = (0.138, 0.142, 0.15, 0.158, 0.193, 0.209), (83.4, 83.9, 84.0, 84.1, 84.2, 85.4)
    names = ("FedGMA", "FedHEAL", "FedAvg", "FedOMG", "SCAFFOLD", "GGEUR")
    named = list(zip(x, y, names, strict=True))
    axes, boxes = shown(named, [(0.362, 67.5)], [])
    ties = [text for text in axes.texts if isinstance(text, Annotation) and text.arrow_patch is not None]
    paths = {tie.get_text(): tie.arrow_patch.get_window_extent() for tie in ties if tie.arrow_patch is not None}
    assert len(paths) > 1
    assert not [pair for pair in combinations(paths.values(), 2) if Bbox.intersection(*pair)]
    assert not [name for name in boxes for tie, path in paths.items() if tie != name and path.overlaps(boxes[name])]

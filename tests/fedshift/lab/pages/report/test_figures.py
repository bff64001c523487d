"""Figures of reports: what they leave out, mark and cut, and how they look on light and dark pages."""

from itertools import combinations

from matplotlib.text import Annotation, Text

from fedshift.lab.pages.report import curves
from fedshift.run.html import drawing
from fedshift.run.html.naming import name_points


def test_many_domains_are_readable() -> None:
    """Of 24 long names the legend makes the figure higher; of more domains there is a band."""
    names = [f"Hospital of town {i:02}" for i in range(30)]
    accuracy = {name: 50.0 + i % 7 for i, name in enumerate(names)} | {names[3]: 10.0, names[5]: 90.0}
    lines = [{"round": n, "accuracy": accuracy} for n in (1, 2)]
    with drawing.style():
        few, many, most = (curves.by_domain(lines, names[:n], "accuracy").figure for n in (6, 24, 30))
    assert max(few.get_figheight(), most.get_figheight()) < 3.6 and many.get_figheight() > 5
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in many.axes[0].lines}
    assert len(looks) == 25
    assert [line.get_label() for line in most.axes[0].lines] == [names[3], names[5], "AVG"]
    assert len({(drawing.domain_colour(i), drawing.domain_marker(i)) for i in range(64)}) == 64


# --- names next to points -----------------------------------------------------------------------------------


def test_names_of_near_points_lie_below_each_other_within_the_figure() -> None:
    """Six methods of PACS side by side on the front of accuracy against seconds."""
    x, y = (0.138, 0.142, 0.15, 0.158, 0.193, 0.209), (83.4, 83.9, 84.0, 84.1, 84.2, 85.4)
    names = ("FedGMA", "FedHEAL", "FedAvg", "FedOMG", "SCAFFOLD", "GGEUR")
    with drawing.style():
        figure, (axes,) = drawing.canvas(3.6)
        axes.plot(x, y, "o")
        name_points(axes, list(zip(x, y, names, strict=True)))
        figure.draw_without_rendering()
        boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without its line
    assert set(boxes) == {*names}
    assert all(box.x0 > 0 and box.x1 < figure.bbox.x1 for box in boxes.values())
    assert not [pair for pair in combinations(boxes.values(), 2) if pair[0].fully_overlaps(pair[1])]
    assert sum(text.arrow_patch is not None for text in axes.texts if isinstance(text, Annotation)) == 2

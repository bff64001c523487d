"""Figures of reports: what they leave out, mark and cut, and how they look on light and dark pages."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from support import Run

from fedshift.lab.pages.report import curves, maps, record_sections
from fedshift.run import reading
from fedshift.run.html import drawing
from fedshift.run.html.confusion import confusion_of
from fedshift.run.html.naming import name_points


def test_many_classes_and_domains() -> None:
    """DomainNet has 345 classes; nobody has ten domains yet. Features that are all alike have one place."""
    classes, domains = [f"class {k}" for k in range(345)], [f"domain {d}" for d in range(10)]
    y = np.arange(345).repeat(2)
    counts = np.eye(345, dtype=np.int64) + np.roll(np.eye(345, dtype=np.int64), 1, 1)
    with drawing.style():
        assert len(confusion_of("domain 0", counts, classes, 0, "domain 0").svg) < 200_000
        placed = np.random.default_rng(0).normal(size=(len(y), 2))
        of_classes, of_domains = maps.by_class_and_domain(placed, y, np.arange(len(y)) % 10, domains, classes)
    assert "class 344" in of_classes.svg and "class 344" not in of_domains.svg  # a key for who looks at the colours
    assert "domain 9" in of_domains.svg
    assert maps.tsne(np.ones((6, 3)), seed=0).tolist() == [[0, 0]] * 6
    assert len(np.unique(maps.tsne(placed[:5], seed=0), axis=0)) == 5


def test_whiskers_end_at_100_one_domain_has_none_and_equal_bytes_are_two_lines() -> None:
    fields = {"domains": {"a": 100.0, "b": 92.0}, "avg": 96.0, "std": 5.7, "averaged_rounds": 5}
    with drawing.style():
        bars: Any = curves.bars(fields).figure.axes[0]
        alone: Any = curves.bars(fields | {"domains": {"a" * 60: 85.0}, "avg": 85.0, "std": 0.0})
        costs: Any = curves.costs([{"round": n, "seconds": 1.0, "bytes_up": 5e6, "bytes_down": 5e6} for n in (1, 2)])
    (whisker,) = bars.collections
    assert whisker.get_segments()[0][:, 0] == pytest.approx([96 - 8 / 2**0.5, 100])
    (axes,) = alone.figure.axes
    assert axes.texts[-1].get_text() == "85.0" and "STD" not in alone.caption
    assert len(axes.get_yticklabels()[0].get_text()) == drawing.ROW_NAME  # a long name is cut
    down, up = costs.figure.axes[1].lines
    assert down.get_label() != up.get_label() and down.get_linewidth() > 2 * up.get_linewidth()


def test_the_table_names_scored_rounds_that_are_not_the_last_ones(finished: Run) -> None:
    record = reading.read(finished.folder)
    accuracy = record_sections.sections(replace(record, results=record.results | {"averaged_over": [1, 3]}))[0]
    assert accuracy.tables[0].heads[1] == "last 2 scored rounds"
    assert "Last 2 scored rounds: 1, 3." in accuracy.notes


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


def test_colours_are_the_themes_and_names_are_no_part_of_a_drawing() -> None:
    name = 'id="zz" href="#a" #0072b2'
    with drawing.style():
        figure, (axes,) = drawing.canvas(1.0)
        axes.set_title(name)
        axes.plot([1, 2], [1, 2], color=drawing.domain_colour(3), marker=drawing.domain_marker(3))
        axes.plot([1, 2], [1, 2], color=drawing.class_colour(3, 10))
        svg = drawing.Plot(figure, "x", "a <title> & more", "").svg
    assert all(text in svg for text in ("var(--d3)", "var(--k3)", "currentColor", "var(--grid)", f">{name}<"))
    assert "a &lt;title&gt; &amp; more" in svg
    assert "#000000" not in svg and not [colour for colour in drawing.THEME.values() if f'"{colour}' in svg]


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


@pytest.mark.parametrize(
    ("rows", "name", "apart"),
    [(1, "fedavg", 0), (2, "MMWWMMWW", 0), (9, "fedavg", 0), (9, "MMWWMMWW", 0), (8, "MMWWMM", 0.2)],
)
def test_names_of_points_close_by_are_all_to_be_read(rows: int, name: str, apart: float) -> None:
    """In one place or side by side, names of narrow and of wide letters."""
    named = [(1.0 + apart * i, 84 + i * (0.1 if apart else 0.01), f"{name}{i}") for i in range(rows)]
    _, boxes = shown(named, [(5.0, 70.0)], [])
    assert len(boxes) == rows
    assert not [pair for pair in combinations(boxes.values(), 2) if Bbox.intersection(*pair)]


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


def test_a_name_keeps_off_points_and_lines_and_stays_in_the_figure() -> None:
    named = [(1.0, 90.0, "first"), (9.0, 92.0, "the last of them")]
    line = [(1.0, 90.0), (9.0, 90.0), (9.0, 92.0)]
    axes, boxes = shown(named, [(1.3, 90.6)], [line])
    whole = axes.get_figure(root=True).bbox
    along = Bbox(axes.transData.transform(line[:2]))
    for box in boxes.values():
        assert not Bbox.intersection(box, along)
        assert not box.contains(*axes.transData.transform((1.3, 90.6)))
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1
    (name,) = shown([(1.0, 90.0, "alone")], [(2.0, 80.0)], [])[0].texts
    assert isinstance(name, Annotation) and name.xyann == (5.0, 0.0) and name.arrowprops is None  # next to the point

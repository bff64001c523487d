"""Figures of reports: what they leave out, mark and cut, and how they look on light and dark pages."""

import numpy as np
from support import node

from fedshift.lab.pages.report import curves, maps
from fedshift.run.html import drawing


def test_many_domains_are_readable() -> None:
    """Of 24 long names the legend makes the figure higher; more domains have no names."""
    names = [f"Hospital of town {i:02}" for i in range(30)]
    accuracy = {name: 50.0 + i % 7 for i, name in enumerate(names)} | {names[3]: 10.0, names[5]: 90.0}
    lines = [{"round": n, "accuracy": accuracy} for n in (1, 2)]
    with drawing.style():
        few, many, most = (curves.by_domain(lines, names[:n], "accuracy", "Dice").figure for n in (6, 24, 30))
    assert max(few.get_figheight(), most.get_figheight()) < 3.6 and many.get_figheight() > 5
    looks = {(line.get_color(), str(line.get_linestyle()), line.get_marker()) for line in many.axes[0].lines}
    assert len(looks) == 25
    assert most.axes[0].get_legend_handles_labels()[1] == ["AVG"] and len(most.axes[0].lines) == 31
    assert len({(drawing.domain_colour(i), drawing.domain_marker(i)) for i in range(64)}) == 64


def test_many_nodes_are_rows_of_domains_and_equal_features_one_point() -> None:
    nodes = [node(i, (i, 1), domain="ab"[i % 2]) for i in range(2 * maps.EACH_NODE)]
    with drawing.style():
        plot = maps.class_counts(nodes, ("a", "b"), ("x", "y"))
    (axes, *_) = plot.figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert f"all its nodes together ({len(nodes)} in all)" in plot.caption
    assert not maps.tsne(np.ones((30, 4)), 0).any()

"""``fedshift compare --costs``: accuracy against what it costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from support import ROOT

from fedshift.lab.grid.costs.measuring import deciding
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.figures import plots
from fedshift.lab.tables.compare.table import Numbers
from fedshift.lab.tables.compare.tradeoff import BYTES, FLOPS, SECONDS, front, paid
from fedshift.run.html.drawing import Plot
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

RUNS = ROOT / "docs" / "results" / "digits-heterogeneous"  # fedseproto, fedproto, local; three seeds


def cost(
    method: str, megabytes: float, seconds: float, gflops: float, experiment: str = "digits-small-heterogeneous", *,
    given: str = "", **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return what ``fedshift costs --json`` would say of a method, with made-up figures."""
    settings = deciding(resolve({"experiment": experiment, "method": method, "set": given}))
    up = int(megabytes * 0.25e6)
    return {
        "label": method, "settings": settings, "bytes_up": up, "bytes_down": int(megabytes * 1e6) - up,
        "seconds": seconds, "step_flops": gflops * 1e9, **more,
    }  # fmt: skip


def written(folder: Path, *costs: dict[str, Any], experiment: str = "digits-small-heterogeneous") -> Path:
    file = folder / "costs.json"
    file.write_text(json.dumps({"experiment": experiment, "nodes": 6, "machine": "a machine", "costs": costs}))
    return file


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_the_front_is_what_nobody_beats(points: list[tuple[float, float]]) -> None:
    def beaten(i: int) -> bool:
        (cost, score), others = points[i], [p for k, p in enumerate(points) if k != i]
        return any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in others)

    on = front(points)
    assert {points[i] for i in on} == {points[i] for i in range(len(points)) if not beaten(i)}
    assert sorted(on) == [i for i in range(len(points)) if points[i] in {points[k] for k in on}]


def test_figures_and_notes_name_the_front(tmp_path: Path) -> None:
    file = written(
        tmp_path, cost("local", 0, 2.0, 1.0), cost("fedproto", 0.5, 2.5, 1.5), cost("fedseproto", 0.25, 1.0, 1.25),
        cost("fedseproto", 0.75, 1.0, 1.0, kind="phase=2"),
    )  # fmt: skip
    table = compare([RUNS], costs=file)
    # AVG: local 87.87, fedseproto 89.83, fedproto 90.18
    assert shown_costs(table.numbers)[BYTES] == {"local": 0, "fedproto": 0.5, "fedseproto": 0.75}
    fields = {what: line for what in (BYTES, SECONDS, FLOPS) for line in table.numbers.notes if f", {what}: " in line}
    assert fields[BYTES].endswith("local (0, 87.9), fedproto (0.5, 90.2)")  # the dearer kind of fedseproto's rounds
    assert fields[SECONDS].endswith("fedseproto (1, 89.8), fedproto (2.5, 90.2)")
    assert fields[FLOPS].endswith("local (1, 87.9), fedseproto (1.25, 89.8), fedproto (1.5, 90.2)")
    named = {
        BYTES: ["Local", "FedProto"],
        SECONDS: ["FedSeProto", "FedProto"],
        FLOPS: ["Local", "FedSeProto", "FedProto"],
    }
    drawn = {plot.figure.axes[0].get_xlabel(): plot.figure.axes[0] for plot in prices(table.numbers)}
    assert {what: axes.get_legend_handles_labels()[1] for what, axes in drawn.items()} == named
    assert prices(compare([RUNS]).numbers) == []
    local, *others = table.numbers.rows
    both = replace(table.numbers, rows=(replace(local, scored="global"), *others))
    (plot, *_) = prices(both)
    assert len({line.get_color() for line in plot.figure.axes[0].lines if line.get_linestyle() == "-"}) == 2


def test_what_is_not_in_the_file_is_reported(tmp_path: Path) -> None:
    table = compare([RUNS], costs=written(tmp_path, cost("local", 0, 2.0, 1.0)))
    assert "no costs of fedseproto, fedproto: not measured with their settings" in table.numbers.notes
    table = compare([RUNS], costs=written(tmp_path, cost("fedgh", 0, 2.0, 1.0)))
    assert any(text.startswith("No figure of costs") for text in plots(table.numbers).lacking)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "fedshift costs"), ("{}", "experiment: "), (None, "costs.json"),
        ('{"experiment": "digits-small", "nodes": 1, "machine": "", "costs": []}', "costs: "),
        (json.dumps({"experiment": "digits-small", "nodes": 6, "machine": "", "costs": [cost("local", 0, 1, 1)]}),
         "'digits-small'"),
    ],
)  # fmt: skip
def test_costs_that_cannot_be_read_or_are_of_another_experiment_are_refused(
    content: str | None, named: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "costs.json").write_text(content)
    with refused(ConfigError, "--costs ", named):
        compare([RUNS], costs=tmp_path / "costs.json")


def prices(numbers: Numbers) -> list[Plot]:
    return [plot for plot in plots(numbers).drawn if plot.name.startswith("tradeoff")]


def shown_costs(numbers: Numbers) -> dict[str, dict[str, float]]:
    """Return the shown costs of each kind by row."""
    by_kind = paid(numbers.rows, numbers.costs, "AVG")
    return {what: {row.label: price for price, _, row in by_kind.get(what, ())} for what in (BYTES, SECONDS, FLOPS)}

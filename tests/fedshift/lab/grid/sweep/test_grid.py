"""The grid of a sweep: values, rows, names of runs, and how long what is left takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.sweep.grid import Point
from fedshift_app.config.keys import FREE
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError


def gridded(*arguments: str) -> tuple[list[Point], list[str]]:
    return grid.points(grid.read(["handwritten", *arguments]))


# --- the grid -------------------------------------------------------------------------------------------------

PLAIN = st.text(st.characters(codec="ascii", exclude_characters=",[]{}'\"", categories=["L", "N", "P"]), min_size=1)
LISTS = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]")
QUOTED = st.lists(PLAIN, min_size=1, max_size=3).map(lambda parts: f"'{','.join(parts)}'")


@given(st.lists(PLAIN | LISTS | QUOTED, min_size=1, max_size=5, unique=True), st.sampled_from([",", ", "]))
def test_commas_in_brackets_and_quotes_are_part_of_a_value(values: list[str], comma: str) -> None:
    assert grid.split("key", comma.join(values)) == tuple(values)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("seed=0,,1", "'0,,1'"), ("seed=0,1,0", "'0' comes twice"), ("seed=0 seed=1", "seed comes twice"),
        ("method=fedavg handwritten", "key=value"), ("experiment=handwritten", "experiment"),
        ("resume=runs/1", "resume"),
        ("order=random", "'random'"), ("retries=-1", "'-1'"), ("jobs=2 engine=simulation", "engine=inline"),
        ("jobs=2 actors=2", "engine=inline"), ("workers=2 engine=simulation", "actors=N"),
        ("method=fedavg,i2pfl method.taw=1", "method.taw"), ("method=fedavg,nope", "'nope'"),
        ("train.lr=0.1,-1", "fedavg train.lr=-1: "), ("seed=0,x", "fedavg seed=x: "),
        ("engine=inline,simulation", "'inline,simulation'"), ("nodes=8,1", "fedavg nodes=1: "),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_refused(arguments: str, named: str) -> None:
    with refused(ConfigError, named):
        gridded(*arguments.split())


def test_seeds_are_outermost_and_a_recipes_parameters_are_those_of_the_method() -> None:
    given = ("method=fedavg,f2dc", "method.sigma=0.1,5", "seed=0,1")
    points, _ = gridded(*given)
    rows = ["fedavg {}", "f2dc method.sigma=0.1 {}", "f2dc method.sigma=5 {}"]
    assert [point.label for point in points] == [row.format(f"seed={seed}") for seed in (0, 1) for row in rows]
    assert [point.config.modules[0]["sigma"] for point in points[1:3]] == [0.1, 5.0]
    by_method = gridded(*given, "order=method-first")[0]
    assert [point.label for point in by_method[:2]] == ["fedavg seed=0", "fedavg seed=1"]


def test_a_parameter_that_a_method_lacks_is_left_out_and_equal_runs_are_one() -> None:
    points, notes = gridded("method=fedavg,i2pfl,fedproto", "seed=0,1", "method.tau=0.02,0.07")
    assert [point.label for point in points if "seed=0" in point.label] == [
        "fedavg seed=0", "i2pfl seed=0 method.tau=0.02", "i2pfl seed=0 method.tau=0.07", "fedproto seed=0",
    ]  # fmt: skip
    assert notes == [
        "method.tau is left out for fedavg, fedproto: no such parameter",
        "8 runs instead of 12: equal configurations count once",
    ]
    assert all("method.tau" not in " ".join(point.arguments) for point in points if "i2pfl" not in point.label)


def test_the_name_of_a_grid_knows_no_order_and_nothing_that_decides_no_number() -> None:
    def name(arguments: str) -> str:
        return grid.grid_hash([point.key for point in gridded(*arguments.split())[0]])

    assert name("seed=0,1 method=fedavg,fedprox") == name("method=fedprox,fedavg seed=1,0 engine=inline")
    assert name("seed=0,1") == name("seed=0,1 profile=true order=method-first actors=1 data-dir=x")
    assert len({*map(name, ("seed=0,1", "seed=0,1,2", "seed=0,1 rounds=3", "seed=0,1 nodes=4"))}) == 4


@pytest.mark.parametrize(
    "key", [key for key in FREE if key not in ("model.weights", "dataset.hub")]
)  # its SHA-256 is, not its place
def test_what_may_differ_on_resume_is_not_part_of_the_identity(key: str) -> None:
    value = {
        "dataset.data_dir": "/x", "dataset.download": "true", "profile": "true",
        "federation.log_received": "true", "tracking": "tensorboard",
        "evaluate.figures": "false", "evaluate.site_figures": "false", "keep_rounds": "[2]",
        "dataset.classes_stated": "false",
    }  # fmt: skip
    config = resolve({"set": f"{key}={value.get(key, '9.0')}"})
    assert config != resolve({})
    assert grid.identity(config, 8) == grid.identity(resolve({}), 8) != grid.identity(config, 4)


# --- the time left --------------------------------------------------------------------------------------------

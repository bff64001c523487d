"""Python values as the words of a command: what is read back is what was given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedshift.api import keys
from fedshift.lab.grid.sweep import grid
from fedshift_app.config.arguments import parse_arguments
from fedshift_core.errors import ConfigError


def test_keys_are_spelled_as_the_command_has_them() -> None:
    given = {"evaluate_every": 5, "cpus_per_client": 2, "method": "fpl", "rounds": None, "train": {"lr": 0.01}}
    words = keys.words("handwritten", given)
    assert words == ["handwritten", "evaluate-every=5", "cpus-per-client=2", "method=fpl", "train.lr=0.01"]
    flat, launch = parse_arguments(words)
    assert (flat["evaluate-every"], flat["method"], flat["set"]) == (5, "fpl", "train.lr=0.01")
    assert launch == {"cpus-per-client": 2}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("seed", np.int64(3), "3"),
        ("train.lr", np.float32(0.5), "0.5"),
        ("dataset.domains", ("scan", "sketch"), '["scan", "sketch"]'),
        ("data-dir", Path("/my images"), "/my images"),
        ("model.weights", "package:efficientnet-lite1", "package:efficientnet-lite1"),
        ("modules", {"f2dc": {"tau": 0.1}}, '{"f2dc": {"tau": 0.1}}'),
        ("evaluate.patience", None, "null"),
    ],
)
def test_a_value_is_written_as_it_is_read(key: str, value: Any, text: str) -> None:
    assert keys.words("", {key: value}) == [f"{key}={text}"]


def test_a_list_of_a_sweep_is_several_values_and_a_list_in_it_is_one() -> None:
    given = {"method": ["fedavg", "f2dc"], "seed": range(3), "dataset": {"domains": [["scan", "sketch"]]}, "jobs": 2,
             "order": "seed-first"}  # fmt: skip
    request = grid.read(keys.words("handwritten", given, several=True, plain=grid.Options.model_fields))
    values = [request.values[key] for key in ("method", "seed", "dataset.domains")]
    assert values == [("fedavg", "f2dc"), ("0", "1", "2"), ('["scan", "sketch"]',)]
    assert (request.options.jobs, request.options.order) == (2, "seed-first")


def test_an_array_is_a_list_a_range_of_a_search_one_list_and_a_mapping_a_section_where_there_is_one() -> None:
    assert keys.words("", {"seed": np.arange(3)}, several=True) == ["seed=0,1,2"]
    assert keys.words("", {"images.mean": np.array([0.5, 0.25])}) == ["images.mean=[0.5, 0.25]"]
    assert keys.words("", {"method": {"name": "fpl"}, "rounds": {"a": 1}}) == ['method.name="fpl"', 'rounds={"a": 1}']
    search = {"search": {"train.lr": [0.001, 0.1, "log"], "method.mu": "off"}}
    assert keys.words("", search, several=True) == ['search.train.lr=[0.001, 0.1, "log"]', "search.method.mu=off"]


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
def test_other_values_are_refused_with_their_key(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^train\.lr: expected"):
        keys.words("", {"train": {"lr": value}})

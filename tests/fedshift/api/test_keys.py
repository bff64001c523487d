"""Python values as the words of a command: what is read back is what was given."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from support import InlineRun

import fedshift as fs
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


# --- arguments of another type ------------------------------------------------------------------------------


Anything: Any = fs
SHORT = "train.epochs=1 allocation.share=0.06"


pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("run", [None], "experiment"), ("run", [["runs/first"]], "experiment"), ("sweep", [3], "experiment"),
        ("load", [None], "load"), ("load_model", [b"runs/first"], "load_model"), ("compare", [3], "compare"),
        ("compare", [[None]], "None"), ("evaluate", [None], "evaluate"), ("evaluate", [[]], "evaluate"),
        ("predict", ["saved", []], "predict"), ("predict", ["saved", np.zeros((2, 2))], "array([0., 0.])"),
        ("predict", [3, "images"], "predict"), ("method", [["fpl"]], "['fpl']"), ("register", [3], "register"),
    ],
)  # fmt: skip
def test_each_function_names_what_it_was_given(name: str, given: Any, named: str) -> None:
    with refused(fs.ConfigError, named):
        getattr(Anything, name)(*given)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"terms": "length"}, "terms"), ({"terms": [3]}, "terms"), ({"defaults": ["mu"]}, "defaults"),
    ],
)  # fmt: skip
def test_a_method_with_settings_that_no_run_could_have_is_not_registered(given: Any, key: str) -> None:
    with refused(fs.ConfigError, "register", key):
        Anything.register("unsound", **given)
    assert "unsound" not in {method.name for method in fs.methods()}


@pytest.mark.parametrize("batch", [0, 1.5, "a", True])
def test_a_batch_is_a_whole_number_as_the_commands(batch: object) -> None:
    with refused(fs.ConfigError, "batch", batch):
        Anything.predict("saved", "images", batch=batch)


def test_a_model_refuses_what_it_has_no_scores_of(finished_run: InlineRun) -> None:
    model: Any = fs.load(finished_run(f"rounds=2 {SHORT}").folder).model()
    for function, shape in ((model, (3, 32, 32)), (model.scores, (1, 3, 64, 64))):
        with refused(fs.ConfigError, "images", "(B, 3, 32, 32)", shape):
            function(torch.zeros(shape))
    deep = [Image.fromarray(np.zeros((8, 8), dtype)) for dtype in (np.uint16, np.int32, np.float32)]
    for given in ([], np.zeros((0, 3, 3), np.uint8), *deep):
        with refused(fs.ConfigError):
            model.preprocess(given)


@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_an_image_opened_by_pillow_is_turned_as_its_file_is(exif: str, finished_run: InlineRun, tmp_path: Path) -> None:
    model: Any = fs.load(finished_run(f"rounds=2 {SHORT} dataset.exif={exif}").folder).model()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 24, 3), np.uint8)
    orientation = Image.Exif()
    orientation[274] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=orientation)
    with Image.open(tmp_path / "turned.png") as opened:
        assert torch.equal(model.preprocess(opened), model.preprocess(tmp_path / "turned.png"))
    assert torch.equal(model.preprocess(pixels), model.preprocess(tmp_path / "turned.png")) == (exif == "ignore")

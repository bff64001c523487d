"""Arguments of another type than a command can have end in a line that names them, whichever function gets them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from support import InlineRun

import fedshift as fs

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

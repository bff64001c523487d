"""Arguments of another type than a command can have end in a line that names them, whichever function gets them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import InlineRun, refusal_of

import fedshift as fs
from fedshift.run import arguments

Anything: Any = fs
SHORT = "train.epochs=1 allocation.share=0.06"
WRONG_PATHS = (None, 3, ["runs/first"], b"runs/first")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", WRONG_PATHS, ids=repr)
@pytest.mark.parametrize(
    ("name", "start"),
    [("run", "experiment: expected a name or a file"), ("sweep", "experiment: expected a name or a file"),
     ("load", "load: expected a path"), ("load_model", "load_model: expected a path")],
)  # fmt: skip
def test_a_path_of_another_type_is_refused(name: str, start: str, given: object) -> None:
    assert refusal_of(fs.ConfigError, getattr(Anything, name), given).startswith(f"{start}, found ")


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        ("compare", (3,), "compare: expected a path or several, found 3"),
        ("compare", ([None],), "compare: expected a path, found None"),
        ("evaluate", (None,), "evaluate: expected a path or several, found None"),
        ("evaluate", ([],), "evaluate: no model is given"),
        ("predict", ("saved", []), "predict: no image is given"),
        ("predict", ("saved", np.zeros((2, 2))), "predict: expected a path, found array([0., 0.])"),
        ("predict", (3, "images"), "predict: expected the folder of a saved model, a run, or what its model() returns, "
         "found 3"),
        ("method", (["fpl"],), "method: expected a name, found ['fpl']"),
        ("register", (3,), "register: 3 is no name of a method: expected letters, digits, '-' and '_'"),
    ],
)  # fmt: skip
def test_each_function_names_what_it_was_given(name: str, given: tuple[object, ...], line: str) -> None:
    assert refusal_of(fs.ConfigError, getattr(Anything, name), *given) == line


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"terms": "length"}, "register: terms: expected a list of names, found 'length'"),
        ({"terms": [3]}, "register: terms: expected a list of names, found [3]"),
        ({"defaults": ["mu"]}, "register: defaults: expected a mapping of keys to values, found ['mu']"),
        ({"defaults": {"mu": 1}}, "register: unknown key method.mu for method 'unsound'; there are none"),
        ({"defaults": {"train": {"lr": "fast"}}}, "register: defaults.train.lr: Input should be a valid number, unable "
         "to parse string as a number, found 'fast'"),
    ],
)  # fmt: skip
def test_a_method_with_settings_that_no_run_could_have_is_not_registered(given: dict[str, Any], line: str) -> None:
    assert refusal_of(fs.ConfigError, Anything.register, "unsound", **given) == line
    assert "unsound" not in {method.name for method in fs.methods()}


@pytest.mark.parametrize("batch", [0, -3, 1.5, "a", True])
def test_a_batch_is_a_whole_number_as_the_commands(batch: object) -> None:
    text = refusal_of(fs.ConfigError, Anything.predict, "saved", "images", batch=batch)
    assert text.startswith("batch: expected a whole number from 1 to ")


def test_a_table_refuses_what_its_command_refuses(finished_run: InlineRun) -> None:
    table: Any = fs.compare(fs.load(finished_run(rounds=2, set=SHORT).folder))
    for form in (table.text, table.markdown, table.to_latex):
        for decimals in (-1, 7, 1.5, "2"):
            text = refusal_of(fs.ConfigError, form, decimals=decimals)
            assert text == f"decimals: expected a whole number from 0 to 6, found {decimals!r}"
    assert refusal_of(fs.ConfigError, table.text, width=0).startswith("width: expected a whole number from 1 ")
    assert refusal_of(fs.ConfigError, table.with_columns, "scan") == "columns: expected a list of names, found 'scan'"
    assert refusal_of(fs.ConfigError, table.to_latex, []).startswith("--columns: no column is named; there are scan, ")
    assert refusal_of(fs.ConfigError, fs.compare, "runs", paper=Anything).startswith("--paper: unknown table <module")
    for write in (table.to_csv, table.to_html, table.to_board, table.figures):
        assert refusal_of(fs.ConfigError, write, None) == "expected a path, found None"
    assert table.to_csv("table.csv") == Path.cwd() / "table.csv"
    assert repr(table) == table.text(), "what an interactive session shows"


def test_a_model_refuses_what_it_has_no_scores_of(finished_run: InlineRun) -> None:
    model: Any = fs.load(finished_run(rounds=2, set=SHORT).folder).model()
    expected = "images: expected a tensor (B, 3, 32, 32), found "
    for images, found in ((torch.zeros(3, 32, 32), "(3, 32, 32)"), (torch.zeros(1, 3, 64, 64), "(1, 3, 64, 64)")):
        assert refusal_of(fs.ConfigError, model, images) == expected + found
        assert refusal_of(fs.ConfigError, model.scores, images) == expected + found
    assert refusal_of(fs.ConfigError, model.scores, [0]) == expected + "[0]"
    assert refusal_of(fs.ConfigError, model.preprocess, []) == "preprocess: no image is given"
    assert "found (0, 3, 3) of uint8" in refusal_of(fs.ConfigError, model.preprocess, np.zeros((0, 3, 3), np.uint8))
    for deep in (np.full((8, 8), 4000, np.uint16), np.zeros((8, 8), np.int32), np.zeros((8, 8), np.float32)):
        message = refusal_of(fs.ConfigError, model.preprocess, Image.fromarray(deep))
        assert "a Pillow image of 8 bits a channel" in message and "found an image of mode " in message


@pytest.mark.parametrize("exif", ["ignore", "apply"])
def test_an_image_opened_by_pillow_is_turned_as_its_file_is(exif: str, finished_run: InlineRun, tmp_path: Path) -> None:
    model: Any = fs.load(finished_run(rounds=2, set=f"{SHORT} dataset.exif={exif}").folder).model()
    pixels = np.random.default_rng(0).integers(0, 256, (40, 24, 3), np.uint8)
    orientation = Image.Exif()
    orientation[274] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=orientation)
    with Image.open(tmp_path / "turned.png") as opened:
        assert torch.equal(model.preprocess(opened), model.preprocess(tmp_path / "turned.png"))
    assert torch.equal(model.preprocess(pixels), model.preprocess(tmp_path / "turned.png")) == (exif == "ignore")


def test_numbers_of_numpy_are_whole_numbers() -> None:
    assert arguments.whole("k", np.int64(3), 1, 5) == 3
    assert arguments.names("k", (name for name in "ab")) == ("a", "b")

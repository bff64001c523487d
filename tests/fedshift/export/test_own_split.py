"""``predict`` on the folders that a model was trained on: a word, and ``--split test`` for what it has not seen."""

from pathlib import Path

import pytest
from image_trees import noise_sites
from support import InlineRun

from fedshift.data import init as init_files
from fedshift.export import predicting, saving
from fedshift_core.errors import ConfigError


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    noise_sites(tmp_path / "images", 20)
    init_files.init("mine", ["data-dir=images"])
    return tmp_path / "images"


def saved(run_inline: InlineRun, form: str = "safetensors") -> Path:
    settings = "train.epochs=1 model.name=cnn train.batch_size=8"
    run = run_inline(experiment="mine/mine.yaml", rounds=1, nodes=2, set=settings)
    return saving.save(saving.Wanted(run.folder, form, None, False, False, None, None))[0]  # type: ignore[arg-type]


def test_the_images_of_a_runs_own_split(images: Path, run_inline: InlineRun) -> None:
    model = saved(run_inline)
    everything = predicting.predict(model, [images / "a"])
    (note,) = [line for line in everything.notes if "a: a site of the run" in line]
    assert "--split test" in note and "on the run's own test images: a " in note
    parts = {split: predicting.predict(model, [images / "a"], split=split) for split in ("train", "test")}
    files = {split: {picture.path.resolve() for picture in part.pictures} for split, part in parts.items()}
    assert not files["train"] & files["test"] and files["test"]
    assert files["train"] | files["test"] == {picture.path.resolve() for picture in everything.pictures}
    metrics = parts["test"].metrics()
    assert metrics is not None and metrics.images == len(files["test"])
    assert parts["test"].notes == ["the test images of the run's own split"]
    measured = parts["test"].model.measured
    assert measured is not None and measured.sites["a"].images == metrics.images
    assert measured.sites["a"].accuracy == pytest.approx(100 * metrics.accuracy)
    both = predicting.predict(model, [images], split="test")
    assert {picture.path.resolve() for picture in both.pictures} > files["test"]
    with pytest.raises(ConfigError, match="--split: 'val' is unknown; there are train, test"):
        predicting.predict(model, [images], split="val")


def test_a_program_does_not_know_the_split(images: Path, run_inline: InlineRun) -> None:
    with pytest.raises(ConfigError, match="--split test: a model in the format torchscript"):
        predicting.predict(saved(run_inline, "torchscript"), [images], split="test")


def test_cells_of_the_table_are_no_formulas(images: Path, run_inline: InlineRun) -> None:
    model = saved(run_inline)
    (images / "a" / "cat" / "0.png").rename(images.parent / "=cmd.png")
    predictions = predicting.predict(model, [Path("=cmd.png")])
    head, row = predicting.as_csv(predictions).splitlines()
    assert head.startswith("file,label,class,probability,p(cat)") and row.startswith("'=cmd.png,,")

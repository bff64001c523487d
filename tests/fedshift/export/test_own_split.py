"""``predict`` on the folders that a model was trained on: a word, and ``--split test`` for what it has not seen."""

from collections.abc import Callable
from pathlib import Path

import pytest
from image_trees import noise_sites
from refusals import refused
from support import InlineRun

from fedshift.data import init as init_files
from fedshift.export import predicting, saving
from fedshift_core.errors import ConfigError


@pytest.fixture
def images(here: Path) -> Path:
    noise_sites(here / "images", 20)
    init_files.init("mine", ["data-dir=images"])
    return here / "images"


@pytest.fixture
def save(images: Path, run_inline: InlineRun) -> Callable[[str], Path]:
    settings = "train.epochs=1 model.name=cnn train.batch_size=8"
    run = run_inline(experiment="mine/mine.yaml", rounds=1, nodes=2, set=settings)
    return lambda form: saving.save(saving.Wanted(run.folder, form, output=images.parent / form))[0]


def files(predictions: predicting.Predicted) -> set[Path]:
    return {picture.path.resolve() for picture in predictions.pictures}


def test_the_images_of_a_runs_own_split(images: Path, save: Callable[[str], Path]) -> None:
    model = save("safetensors")
    everything = predicting.predict(model, [images / "a"])
    (note,) = [line for line in everything.notes if "a: a site of the run" in line]
    assert "--split test" in note
    train, test = (predicting.predict(model, [images / "a"], split=split) for split in ("train", "test"))
    assert files(test) and not files(train) & files(test) and files(train) | files(test) == files(everything)
    metrics, measured = test.metrics(), test.model.measured
    assert metrics is not None and measured is not None
    assert measured.sites["a"].images == metrics.images == len(files(test))
    assert measured.sites["a"].accuracy == pytest.approx(100 * metrics.accuracy)
    assert files(predicting.predict(model, [images], split="test")) > files(test)
    # A program does not know the split.
    for given, split, named in ((model, "val", "--split: 'val'"), (save("torchscript"), "test", "--split test")):
        with refused(ConfigError, named):
            predicting.predict(given, [images], split=split)
    (images / "a" / "cat" / "0.png").rename(images.parent / "=cmd.png")  # cells of the table are no formulas
    head, row = predicting.as_csv(predicting.predict(model, [Path("=cmd.png")])).splitlines()
    assert head.startswith("file,label,class,probability,p(cat)") and row.startswith("'=cmd.png,,")

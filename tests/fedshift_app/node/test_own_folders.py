"""A folder of a user's own images in whole runs: simulated, and on nodes that have it as theirs."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import InlineRun

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import setup
from fedshift_core.errors import DataError

KINDS = ("benign", "malignant", "normal")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data-dir of two sites with images of different sizes; one is broken."""
    rng = np.random.default_rng(0)
    for site, sub in (("Aachen", ""), ("Bonn", "train")):
        for label, kind in enumerate(KINDS):
            for number in range(10):
                folder = "test" if sub and number < 3 else sub
                path = tmp_path / "data" / site / folder / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 100, (20 + number, 24, 3))
                pixels[6 * label : 6 * label + 6] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    (tmp_path / "data" / "Aachen" / "benign" / "4.png").write_bytes(b"no image")
    return tmp_path / "data"


def configured(data: Path, **more: object) -> RunConfig:
    text = "dataset.size=32 dataset.skip_broken=true allocation.validation_fraction=0 " + " ".join(
        f"{key}={value}" for key, value in more.items()
    )
    return resolve({"dataset": "folders", "data-dir": str(data), "set": text})


def test_a_run_on_a_users_own_images(run_inline: InlineRun, data: Path) -> None:
    text = "dataset.size=32 dataset.skip_broken=true train.epochs=1"
    run = run_inline(dataset="folders", data_dir=str(data), nodes=2, rounds=1, set=text)
    assert set(run.rounds[0]["accuracy"]) == {"Aachen", "Bonn"}
    assert run.rounds[0]["validation"]
    content = run.config["resolved"]["dataset"]
    assert (content["domains"], content["classes"]) == (["Aachen", "Bonn"], list(KINDS))
    (skipped,) = json.loads((run.folder / "skipped.json").read_text())
    assert (skipped["domain"], Path(skipped["file"]).name) == ("Aachen", "4.png")
    assert "no image" not in skipped["reason"] and "by its content" in skipped["reason"]


@pytest.mark.parametrize("level", ["data", "site"])
def test_a_node_holds_what_it_holds_in_simulation(data: Path, level: str) -> None:
    """The server has no data-dir; the classes travel, in an order that is not the alphabet's."""
    config = configured(data, **{"dataset.classes": "[normal,malignant,benign]"})
    sent = config.model_copy(update={"dataset": config.dataset.model_copy(update={"data_dir": ""})})
    for index, site in enumerate(("Aachen", "Bonn")):
        folder = data if level == "data" else data / site
        given = {"domain": site, "data-dir": str(folder), "partition-id": index, "num-partitions": 2}
        there = setup.place(sent, make_context(1, given, {}), setup.DEPLOYMENT)
        here = node_data.Place(site, index, 2, config.dataset.source(), True, 1)
        for one, other in (
            (node_data.own_images(sent, there).train, node_data.own_images(config, here).train),
            (node_data.test_images(sent, there, site), node_data.test_images(config, here, site)),
        ):
            assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
        assert node_data.num_test(sent, there) == len(node_data.test_images(config, here, site))
    labels = node_data.test_images(config, here, "Bonn").y
    assert np.bincount(labels).tolist() == [3, 3, 3]


def test_a_node_with_a_class_that_the_run_does_not_know(data: Path) -> None:
    config = configured(data, **{"dataset.classes": "[benign,normal]"})
    given = {"domain": "Bonn", "data-dir": str(data), "partition-id": 0, "num-partitions": 1}
    where = setup.place(config, make_context(1, given, {}), setup.DEPLOYMENT)
    with pytest.raises(DataError, match="malignant: no class of that name; allowed are benign, normal"):
        node_data.own_images(config, where)

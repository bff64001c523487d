"""Labels and copies of a user's own images: init, prepare, a run, exported nodes and a real node agree."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift.run import checking
from fedshift.site.deploy import exporting
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import setup
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_datasets import catalog

NUMBERS = tuple(map(str, range(11)))
STATED = f"dataset.classes=[{','.join(NUMBERS)}]"
SMALL = "dataset.size=16 train.epochs=1 model.name=resnet10 allocation.validation_fraction=0"


def shade(label: int, rng: np.random.Generator) -> Any:
    """Return an image whose grey level says its class."""
    return np.clip(20 * label + 10 + rng.integers(-6, 7, (16, 16, 3)), 0, 255).astype(np.uint8)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a data-dir of eleven classes: s1 has class folders, s2 npz files with integers."""
    root, rng = tmp_path / "data", np.random.default_rng(0)
    for label in range(11):
        (folder := root / "s1" / str(label)).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(shade(label, rng)).save(folder / f"{number}.png")
    for split, number in (("train", 4), ("test", 2)):
        y = np.repeat(np.arange(11), number)
        np.savez(root / f"s2_{split}.npz", x=np.stack([shade(label, rng) for label in y]), y=y)
    return root


def config_of(root: Path, *texts: str) -> Any:
    return resolve({"dataset": "folders", "data-dir": str(root), "set": " ".join((SMALL, *texts))})


def classes_of(images: Any, names: tuple[str, ...]) -> None:
    """Check that each image has the class whose grey level it shows."""
    for pixels, label in zip(images.x, images.y, strict=True):
        assert names[label] == str(round((pixels.mean() - 10) / 20))


UNSTATED = ("s2_train.npz", "dataset.classes=[")


def test_nobody_reads_integers_through_an_order_that_nobody_stated(mixed: Path, tmp_path: Path) -> None:
    given = [f"data-dir={mixed}"]
    calls: list[Callable[[], object]] = [
        lambda: init_files.init(str(tmp_path / "new"), given),
        lambda: prepare.prepare("folders", given, as_json=True),
        lambda: config_of(mixed, "dataset.domains=[s2]"),
    ]
    for call in calls:
        with refused(FedShiftError, *UNSTATED):
            call()
    assert not (tmp_path / "new").exists()


def test_with_stated_classes_every_image_has_its_own(mixed: Path, tmp_path: Path) -> None:
    path = init_files.init(str(tmp_path / "new"), [f"data-dir={mixed}", STATED])
    config = resolve({"experiment": str(path), "set": "dataset.size=16 allocation.validation_fraction=0 keep=last"})
    assert config.dataset.classes == NUMBERS and config.dataset.classes_stated
    for domain, index in (("s1", 0), ("s2", 1)):
        where = node_data.Place(domain, index, 2, config.dataset.source(), shared=True, threads=0)
        classes_of(node_data.own_images(config, where).train, NUMBERS)
    alphabet = f"dataset.classes=[{','.join(sorted(NUMBERS))}]"
    calls: list[Callable[[], object]] = [
        lambda: init_files.init(str(tmp_path / "other"), [f"data-dir={mixed}", alphabet]),
        lambda: checking.check_data(config_of(mixed, alphabet), 2),
    ]
    for call in calls:
        with refused(DataError, "s2_train.npz", "2 is the place of class '10'"):
            call()


def test_exported_nodes_say_what_their_integers_are(mixed: Path, tmp_path: Path) -> None:
    """The server read the classes from folders, by alphabet; each node has them in its files."""
    for split in ("train", "test"):
        (mixed / f"s2_{split}.npz").unlink()
    shutil.copytree(mixed / "s1", mixed / "s2")
    for path in (mixed / "s2").rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    config = config_of(mixed)
    assert config.dataset.classes == tuple(sorted(NUMBERS)) and not config.dataset.classes_stated
    folder = exporting.export(config, 2, tmp_path / "nodes")[0]
    node = make_context(1, {"domain": "S1", "data-dir": str(folder.path), "partition-id": 0}, {})
    where = setup.place(config, node, setup.DEPLOYMENT)
    assert where.domain == "s1"  # as the run spells it
    classes_of(node_data.own_images(config, where).train, config.dataset.classes)
    # Files of a node's own making, which do not say it.
    with np.load(folder.path / "s1_train.npz") as archive:
        x, y = archive["x"], archive["y"]
    np.savez(folder.path / "s1_train.npz", x=x, y=y)
    catalog.load_own.cache_clear()
    with refused(DataError, "s1_train.npz"):
        node_data.own_images(config, where)


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "names"),
    [("classes", "[a,A]"), ("classes", "['Lä','La\u0308']"), ("domains", "[s1,S1]"), ("classes", "['1','01']")],
)
def test_stated_names_that_are_one_are_refused(mixed: Path, key: str, names: str) -> None:
    text = f'"dataset.{key}={names}" ' + ("dataset.classes=[a,b]" if key == "domains" else "dataset.domains=[s1]")
    with refused(ConfigError, f"dataset.{key}: "):
        config_of(mixed, text)


# --- copies -----------------------------------------------------------------------------------------------


def test_a_file_of_two_sites_stops_a_run_before_it_starts(mixed: Path) -> None:
    shutil.copytree(mixed / "s1", mixed / "s3")
    (mixed / "s3" / "0" / "0.png").unlink()
    (mixed / "s3" / "0" / "0.png").symlink_to(mixed / "s1" / "0" / "0.png")
    config = config_of(mixed, STATED)
    calls: list[Callable[[], object]] = [
        lambda: checking.check_data(config, 3),
        lambda: node_data.fingerprints(config),
    ]
    for call in calls:
        with pytest.raises(DataError, match="are one file"):
            call()

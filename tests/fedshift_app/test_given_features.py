"""``dataset.features``: features of a file in the place of a frozen encoder."""

import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_trees import noise_sites
from PIL import Image
from refusals import refused
from support import InlineRun, Run, changed

from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node import data as node_data
from fedshift_app.node import given_features
from fedshift_app.node.place import Place
from fedshift_app.run import initial_model, precomputing
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import cache

ENCODER = (
    "images.crop_padding=0 images.flip=false train.precision=float32 train.epochs=1 "
    "model.projection=16 model.freeze=encoder model.precompute=on"
)
FILE = "features.npz"
OF_FILE = f"dataset.features={FILE}"
#: One of each kind of method that works on kept features.
METHODS = ("fedavg", "i2pfl", "fedproto", "scaffold", "t3a", "ggeur", "fed3r")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))


@pytest.fixture
def sites(made: Path, tmp_path: Path) -> Path:
    """Return images of two sites and a file of the features of the run's own encoder."""
    return shutil.copytree(made, tmp_path / "sites")


def flat(sites: Path, method: str, more: str = "") -> dict[str, Any]:
    settings = f"{registry.get(method).short} {ENCODER} dataset.size=32 {more}"
    return {"dataset": "folders", "data-dir": str(sites), "method": method, "set": settings}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the features of the run's own encoder, as a user would those of another."""
    sites = tmp_path_factory.mktemp("made") / "sites"
    noise_sites(sites, 15)
    config, begun = initial_model.begin(resolve(flat(sites, "fedavg") | {"seed": 0}))
    encoder = precomputing._features(config, begun.model, {})
    names, rows = list[str](), list[np.ndarray[Any, Any]]()
    for domain in config.dataset.domains:
        for split in ("train", "test"):
            named, images = catalog.named("folders", domain, split, config.dataset.source(), 32, own=False)  # type: ignore[arg-type]
            names += named
            rows.append(encoder.of(images).take(torch.arange(len(images))).numpy())
    np.savez(sites / FILE, images=np.array(names), features=np.concatenate(rows))
    return sites


def weights(run: Run) -> dict[str, Any]:
    arrays = run.weights
    return {name: array for name, array in arrays.items() if "projection" in name or "classifier" in name}


@pytest.mark.parametrize("method", METHODS)
def test_our_own_features_from_a_file_give_equal_results(method: str, sites: Path, run_inline: InlineRun) -> None:
    encoded, given = (run_inline(nodes=2, rounds=2, **flat(sites, method, more)) for more in ("", OF_FILE))
    assert [line["accuracy"] for line in encoded.rounds] == [line["accuracy"] for line in given.rounds]
    one = weights(encoded)
    assert one and not changed(one, weights(given))


@pytest.mark.parametrize(
    ("name", "array", "named"),
    [
        ("images", np.array(["a/cat/0.png"]), "a/cat/"),
        ("features", np.zeros((3, 4), np.float32), "(N, D)"),
        ("features", np.full((60, 4), np.nan, np.float32), "finite"),
        ("classes", np.zeros((2, 3), np.float32), "classes (2, 3)"),
    ],
    ids=["row", "shape", "nan", "classes"],
)
def test_a_file_that_does_not_fit_is_refused(
    sites: Path, run_inline: InlineRun, name: str, array: Any, named: str
) -> None:
    rows = {"features": np.zeros((1, 4), np.float32)} if name == "images" else {}
    with np.load(sites / FILE) as content:
        arrays = dict(content) | rows | {name: array}
    np.savez(sites / FILE, **arrays)
    with refused(DataError, named):
        run_inline(nodes=2, rounds=1, **flat(sites, "fedavg", OF_FILE))


#: What does not go with given features, each with parts of the message.
REFUSED = {
    "dataset.features=../f.npz": ".npz data-dir",
    f"{OF_FILE} model.name=cnn": "dataset.features",
    f"{OF_FILE} model.precompute=off": "model.precompute=on",
    f"{OF_FILE} model.name=features:7": "model.name=features:",
    "model.name=features:7": "dataset.features",
    "model.name=features:x": "features:x",
    f"{OF_FILE} images.flip=true images.cached_views=4": "images.cached_views",
}


@pytest.mark.parametrize("more", REFUSED)
def test_what_does_not_go_with_given_features_is_refused(sites: Path, run_inline: InlineRun, more: str) -> None:
    with refused(ConfigError, *REFUSED[more].split()):
        run_inline(nodes=2, rounds=1, **flat(sites, "fedavg", more))


def test_a_real_node_has_a_file_of_its_own(sites: Path, tmp_path: Path) -> None:
    """Names begin at its own data-dir, and only its own images need rows."""
    own, names = tmp_path / "node", []
    for i, label in product(range(15), ("cat", "dog")):
        names.append(f"a/{'train' if i < 8 else 'test'}/{label}/{i}.png")
        (own / names[-1]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sites / "a" / label / f"{i}.png", own / names[-1])
    rows = np.random.default_rng(0).normal(size=(len(names), 4)).astype(np.float32)
    np.savez(own / FILE, images=np.array(names), features=rows)
    stated = "dataset.domains=[a,b] dataset.classes=[cat,dog] model.name=features:4"
    config = resolve(flat(sites, "fedavg", f"{stated} {OF_FILE}") | {"data-dir": ""})
    place = Place("a", -1, -1, config.dataset.source(own), shared=False, threads=0)
    given, by_mark = given_features.of(config, place)
    train = node_data.own_images(config, place).train
    found = given.rows[[by_mark()[mark.tobytes()] for mark in train.marks]]
    pictures = {np.asarray(Image.open(own / name)).tobytes(): row for name, row in zip(names, rows, strict=True)}
    np.testing.assert_array_equal(found, [pictures[image.tobytes()] for image in train.x])


# --- zero-shot ----------------------------------------------------------------------------------------------


CLASSES = ("cat", "dog")
WIDTH = 6


def written_with_classes(sites: Path, classes: int | None = 2) -> dict[str, bool]:
    """Write features that are often nearest to the embedding of their class; return for which images, in NumPy."""
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(2, WIDTH))
    names = sorted(path.relative_to(sites).as_posix() for path in sites.rglob("*.png"))
    labels = [CLASSES.index(name.split("/")[-2]) for name in names]
    rows = [rng.uniform(0.1, 9) * (embeddings[label] + 0.7 * rng.normal(size=WIDTH)) for label in labels]
    arrays = {} if classes is None else {"classes": np.resize(embeddings, (classes, WIDTH))}
    np.savez(sites / "f.npz", images=np.array(names), features=np.array(rows), **arrays)
    cosines = [[row @ each / np.linalg.norm(row) / np.linalg.norm(each) for each in embeddings] for row in rows]
    return {name: int(np.argmax(of)) == label for name, of, label in zip(names, cosines, labels, strict=True)}


def keys(sites: Path, **more: Any) -> dict[str, Any]:
    given = {"dataset": "folders", "method": "zero-shot", "data-dir": str(sites), "nodes": 2, "rounds": 1}
    return given | {"set": "dataset.features=f.npz dataset.size=32 images.crop_padding=0 images.flip=false"} | more


def test_an_image_is_of_the_class_with_the_nearest_embedding(sites: Path, run_inline: InlineRun) -> None:
    """The accuracy of each site is that of the cosines in NumPy, as nothing trains."""
    right = written_with_classes(sites)
    run = run_inline(**keys(sites))
    (final,) = run.rounds
    for site, accuracy in final["accuracy"].items():
        names, _ = catalog.named("folders", site, "test", Source(sites, classes=CLASSES), 32, own=False)
        of_site = [right[name] for name in names]
        assert accuracy == pytest.approx(100 * np.mean(of_site)) and accuracy > 50


@pytest.mark.parametrize("classes", [None, 3])
def test_a_file_without_an_embedding_for_each_class_is_refused(
    classes: int | None, sites: Path, run_inline: InlineRun
) -> None:
    written_with_classes(sites, classes)
    with refused(FedShiftError, "dataset.features", "classes", "none" if classes is None else classes):
        run_inline(**keys(sites))


def test_images_without_features_are_refused(run_inline: InlineRun) -> None:
    with refused(ConfigError, "zero-shot", "dataset.features"):
        run_inline("handwritten", method="zero-shot")

"""``method=zero-shot``: classes by the cosine of given features and the embeddings of the classes' names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_trees import noise_sites
from refusals import refused
from support import InlineRun

from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

CLASSES = ("cat", "dog")
WIDTH = 6


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    noise_sites(tmp_path / "sites", 15)
    return tmp_path / "sites"


def written(sites: Path, classes: int | None = 2) -> dict[str, bool]:
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
    right = written(sites)
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
    written(sites, classes)
    with refused(FedShiftError, "dataset.features", "classes", "none" if classes is None else classes):
        run_inline(**keys(sites))


def test_images_without_features_are_refused(run_inline: InlineRun) -> None:
    with refused(ConfigError, "zero-shot", "dataset.features"):
        run_inline("handwritten", method="zero-shot")

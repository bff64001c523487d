"""Images with masks from the folder to an experiment: `prepare`, `init`, `export`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedshift.data import init, prepare
from fedshift.site.deploy import exporting
from fedshift_app.config.resolving import resolve

SITES = ("Aachen", "Bonn")


@pytest.fixture(params=["folders", "table"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Make ten images of each site, whose right half is class 1 in a binary mask; two are of a patient in the table."""
    rows, root = ["file,mask,domain,patient"], tmp_path / "images"
    names = ("images", "masks") if request.param == "folders" else ("scans", "outlines")
    for site in SITES:
        for number in range(10):
            mask = np.repeat([[0] * 20 + [255] * 20], 30, axis=0).astype(np.uint8)
            noise = np.random.default_rng(number).integers(0, 99, (30, 40, 3))
            pair = [root / site / name / f"{number}.png" for name in names]
            for path, values in zip(pair, (noise + mask[..., None] // 2, mask), strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(values.astype(np.uint8)).save(path)
            image, outline = (path.relative_to(root).as_posix() for path in pair)
            rows.append(f"{image},{outline},{site},p{number // 2}")
    if request.param == "table":
        (root / "labels.csv").write_text("\n".join(rows))
    return root


def test_prepare_counts_what_masks_show_and_names_a_broken_pair(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(code: int) -> Any:
        words = [f"data-dir={images}", "dataset.masks=true"]
        assert prepare.prepare("folders", words, as_json=True) == code
        out = capsys.readouterr().out
        return json.loads(out[out.index("{\n") :])

    whole = page(0)
    assert whole["classes"] == ["background", "class1"] and not whole["empty"] and not whole["broken"]
    assert [sum(split["class1"] for split in one["images"].values()) for one in whole["domains"].values()] == [10, 10]
    (mask,) = [path for path in (images / "Bonn").glob("*s/3.png") if path.parent.name in ("masks", "outlines")]
    mask.write_bytes(b"")
    (broken,) = page(1)["broken"]
    assert Path(broken["file"]).name == "3.png" and broken["domain"] == "Bonn" and str(mask) in broken["reason"]


def test_a_node_gets_the_masks_of_its_images(images: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"title: mine\ntask: segmentation\ndataset: {{name: mine, of: folders, data_dir: {images}, size: 40}}\n"
        "model: {name: 'unet:small'}\ntrain: {epochs: 1, batch_size: 4, lr: 0.1}\nmethod: {name: fedavg}\nrounds: 1\n"
    )
    exporting.export(resolve({"experiment": str(file)}), 2, tmp_path / "out")
    for number, site in enumerate(SITES):
        for split in ("train", "test"):
            with np.load(tmp_path / "out" / f"node-{number}-{site}" / f"{site}_{split}.npz") as arrays:
                wanted = np.broadcast_to(np.repeat([0, 1], 20), arrays["masks"].shape)
                assert np.array_equal(arrays["masks"], wanted) and arrays["classes"].tolist() == [
                    "background",
                    "class1",
                ]
                assert (images / "labels.csv").exists() == ("patient" in arrays)


def test_init_finds_masks_and_writes_an_experiment_of_segmentation(images: Path, tmp_path: Path) -> None:
    config = resolve({"experiment": str(init.init(str(tmp_path / "mine"), [f"data-dir={images}"]))})
    assert config.dataset.masks and config.dataset.classes == ("background", "class1")
    settings = config.model_dump()
    assert (settings["task"], config.model.name, config.dataset.size) == ("segmentation", "unet:small", 32)

"""Masks of SuperNodes whose owners are strict: what the server may know, and what the nodes log of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from real_federation import federation
from support import ROOT, Command, InlineRun, Run

from fedshift_app.tasks.segmentation import RECORD
from fedshift_datasets import catalog
from fedshift_datasets.base import PLAIN, Source

LEAST = 5  # images behind a number, by the policy of these nodes
DOMAINS = ("scan", "texture", "sketch")
IMAGES = f"dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.1 train.precision=float32"


@pytest.mark.slow
@pytest.mark.long
def test_strict_nodes_learn_masks_and_send_rounded_figures_alone(tmp_path: Path) -> None:
    with federation(tmp_path, nodes=3, images=IMAGES, experiment="handwritten-masks") as made:
        said = made.run(
            ROOT,
            experiment="handwritten-masks",
            rounds=2,
            set=f"{IMAGES} federation.min_nodes=3 federation.node_timeout=120",
        )
    (run,) = map(Run, (tmp_path / "runs").iterdir())
    assert run.results["rounds"] == 2, said
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert set(run.results["domains"]) == set(DOMAINS) and None not in run.results["domains"].values()
    section = run.results["segmentation"]
    assert [site["domain"] for site in section["sites"]] == list(DOMAINS)
    for site in section["sites"]:
        for metric, (figure,) in site["metrics"].items():
            assert figure["low"] is figure["high"] is None  # no intervals
            assert figure["patients"] is None or figure["patients"] >= LEAST
            assert figure["images"] is None or figure["images"] >= LEAST
            assert (figure["value"] is None) == (metric == "hd95")  # no distances
    logs = [path.read_text() for path in (tmp_path / "state").glob("*/out.jsonl")]
    assert len(logs) == 3 and all(RECORD in log for log in logs)  # what left the node is written there


# --- secure sums and robust rules ---------------------------------------------------------------------------


SHORT = f"train.epochs=1 train.precision=float32 dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.05"


@pytest.mark.parametrize(
    "keys", ["federation.secure_sums=on federation.secure_sums_nodes=3", "aggregation.robust=median"]
)
def test_masks_are_learnt_by_secure_sums_and_robust_rules(keys: str, run_inline: InlineRun) -> None:
    run = run_inline("handwritten-masks", rounds=1, nodes=3, set=f"{SHORT} {keys}")
    assert run.rounds[0]["left_out"] == [] and len(run.results["segmentation"]["sites"]) == 3


# --- by commands alone --------------------------------------------------------------------------------------


SIZES = {"scan": (48, 48), "texture": (64, 40), "sketch": (40, 56)}  # width and height
SMALL = (
    "engine=inline",
    "rounds=2",
    "train.lr=0.01",
    "train.epochs=4",
    "train.precision=float32",
)


def write(root: Path, number: int = 24) -> None:
    """Write images and masks of three sites, each in the sizes of its own camera."""
    for site, size in SIZES.items():
        images = catalog.load("handwritten-masks", site, "train", Source(masks=True), 32, PLAIN)
        assert images.masks is not None
        for kind, arrays in (("images", images.x), ("masks", images.masks)):
            (root / site / kind).mkdir(parents=True)
            for place, array in enumerate(arrays[:number]):
                picture = Image.fromarray(np.asarray(array)).resize(size, Image.Resampling.NEAREST)
                picture.save(root / site / kind / f"{place:02}.png")


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_way_of_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fedshift: Command) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "clinics")

    def said(*words: object) -> str:
        ended = fedshift(*words)
        assert ended.code == 0, ended.out + ended.err
        return str(ended.out)

    assert "classes: background, class1" in said("init", "outlines", "data-dir=clinics")
    file = tmp_path / "outlines" / "outlines.yaml"
    assert "layout masks, 64x40" in said("prepare", file)
    ran = said("run", file, *SMALL)
    assert "Dice of images (%) of the global model" in ran and "95 % Hausdorff" in ran and "accuracy" not in ran
    (run,) = (tmp_path / "runs").iterdir()
    results = json.loads((run / "results.json").read_text())
    assert {site["domain"] for site in results["segmentation"]["sites"]} == set(SIZES)
    said("report", run)
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Dice of images (%)" in page and "op-1 accuracy" not in page
    assert all(f"{site}: image, mask and prediction of the best" in page for site in SIZES)

    said("save", run, "--output", "model")
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert "network for masks" in card and "| Dice of images (%) |" in card and "classifier" not in card
    said("predict", "model", "clinics/texture/images", "--masks", "found")
    for name in ("00.png", "23.png"):
        with Image.open(tmp_path / "found" / name) as mask, Image.open(tmp_path / "found/overlay" / name) as overlay:
            assert mask.size == SIZES["texture"] and overlay.size == (32, 32)
            assert set(np.unique(np.asarray(mask))) <= {0, 1}
    evaluated = said("evaluate", "model", "data-dir=clinics", "engine=inline")
    assert "\nDice of images (%)" in evaluated and "accuracy" not in evaluated

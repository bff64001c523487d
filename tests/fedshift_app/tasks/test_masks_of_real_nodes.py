"""Masks of SuperNodes whose owners are strict: what the server may know, and what the nodes log of it."""

from pathlib import Path

import pytest
from real_federation import federation
from support import ROOT, InlineRun, Run

from fedshift_app.tasks.segmentation import RECORD

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


SHORT = "train.epochs=1 train.precision=float32 allocation.share=0.1"


@pytest.mark.parametrize(
    "keys", ["federation.secure_sums=on federation.secure_sums_nodes=3", "aggregation.robust=median"]
)
def test_masks_are_learnt_by_secure_sums_and_robust_rules(keys: str, run_inline: InlineRun) -> None:
    run = run_inline("handwritten-masks", rounds=1, nodes=4, set=f"{SHORT} {keys}")
    assert run.rounds[0]["left_out"] == [] and len(run.results["segmentation"]["sites"]) == 4

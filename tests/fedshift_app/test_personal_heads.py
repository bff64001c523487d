"""Heads of nodes and domains, features and styles that travel with the weights: bytes, engines, resume."""

from pathlib import Path

import pytest
from killing import KillAt, outcome, resume, start
from safetensors.numpy import load_file
from support import InlineRun

SHORT = "train.epochs=1 allocation.share=0.08 train.batch_size=16"
NODES, C, D = 2, 10, 64
HEADER = 128  # of each array, as it travels
PROTOTYPES, FEATURES, LABELS, HEAD = 4 * C * D, 4 * C * D, 8 * C, 4 * (C * D + C)
STYLE = 4 * 2 * 2 * 32  # of the first map's channels
#: Of a node and round in addition to FedAvg's bytes: up, down in round 2, each as the bytes of each array.
BESIDE = {
    "fedpac": ([PROTOTYPES, LABELS, FEATURES, 4], [PROTOTYPES, LABELS, 4 * C * D, 4 * C]),
    "fedala": ([], []),
    "copa": ([], [NODES * 4 * C * D, NODES * 4 * C]),
    "fedthe": ([4 * D], [4 * D]),
    "fediir": ([HEAD], [HEAD]),
    "stablefdg": ([STYLE], [STYLE]),
}
#: With which the weights are FedAvg's.
PLAINLY = {"stablefdg": "method.attention=false"}


def test_what_travels_next_to_the_weights_in_bytes(run_inline: InlineRun) -> None:
    settings = f"{SHORT} dataset.domains=[scan,sketch]"
    runs = {
        method: run_inline(nodes=NODES, method=method, rounds=2, set=f"{settings} {PLAINLY.get(method, '')}")
        for method in ("fedavg", *BESIDE)
    }
    plain = runs["fedavg"].rounds[1]
    for method, (up, down) in BESIDE.items():
        line = runs[method].rounds[1]
        for way, arrays in (("bytes_up", up), ("bytes_down", down)):
            assert line[way] - plain[way] == NODES * sum(size + HEADER for size in arrays), (method, way)
    assert sum(BESIDE["fedpac"][1][2:]) == HEAD


def test_a_domain_without_a_node_is_scored_by_the_heads_of_the_others(run_inline: InlineRun) -> None:
    run = run_inline(nodes=3, method="copa", rounds=1, set=f"{SHORT} allocation.held_out=[texture]")
    assert run.results["final"].keys() == {"scan", "texture", "street", "sketch"}
    heads = load_file(run.folder / "checkpoint" / "knowledge-00001.safetensors")
    assert heads["heads/weight"].shape == (3, C, D)
    assert len({head.tobytes() for head in heads["heads/weight"]}) == 3
    state = load_file(run.folder / "checkpoint" / "state-00001.safetensors")
    assert state["domains"].tolist() == [0, 2, 3]


#: What else a method asks for, so few images a class.
ASKED = {"ggeur": "model.freeze=encoder method.samples=20 method.least_images=2"}


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    ["fedpac", "copa", "feddap", "fediir", "stablefdg", "afl", "ggeur", "fedccrl", "gperxan", "fedfa", "fedrdn"],
)
def test_killed_and_resumed_the_numbers_are_the_same(method: str, tmp_path: Path, kill_at: KillAt) -> None:
    settings = f"{SHORT} federation.participation=0.75 {ASKED.get(method, '')}"
    whole = start(tmp_path / "whole", method=method, set=settings)
    with kill_at("weights-00002", "half"):
        start(tmp_path / "runs", method=method, set=settings)
    with kill_at("metrics.jsonl:3", "half"):
        resume(tmp_path / "runs")
    assert outcome(resume(tmp_path / "runs")) == outcome(whole)


def test_fediirs_gradient_is_of_both_layers_of_its_authors_head(run_inline: InlineRun) -> None:
    run = run_inline(nodes=NODES, method="fediir", rounds=2, set=f"{SHORT} model.head=mlp-half")
    mean = load_file(run.folder / "checkpoint" / "knowledge-00001.safetensors")["head-gradient"]
    assert mean.shape == ((D * D // 2 + D // 2) + (D // 2 * C + C),)
    assert run.rounds[1]["losses"]["loss/iir"] > 0

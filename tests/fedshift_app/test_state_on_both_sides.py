"""FedDyn, SCAFFOLD, FedRep, gaps and others in whole runs: bytes that travel, composed, killed, resumed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from killing import KillAt, outcome, resume, start
from safetensors.numpy import load_file
from support import refusal_of

from fedshift_app.config import resolving
from fedshift_app.run import build as run_build
from fedshift_app.run import resuming
from fedshift_core.errors import ConfigError

#: Two nodes, a batch each.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.04 evaluate.every=9"
WEIGHTS = 627_240  # of the CNN, 10 classes: 156,810 numbers of float32
HEAD = 4 * (64 * 10 + 10)


def config(method: str, more: str = "") -> Any:
    return resolving.resolve({"experiment": "handwritten", "method": method, "set": more})


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [
        ("feddyn", [WEIGHTS, WEIGHTS], [WEIGHTS, WEIGHTS]),
        ("scaffold", [WEIGHTS, 2 * WEIGHTS], [2 * WEIGHTS, 2 * WEIGHTS]),
        ("fedrep", [WEIGHTS - HEAD] * 2, [WEIGHTS - HEAD] * 2),
        ("ga", [WEIGHTS, WEIGHTS], [WEIGHTS, WEIGHTS]),
        ("fedomg", [WEIGHTS, WEIGHTS], [WEIGHTS, WEIGHTS]),
    ],
)
def test_bytes_that_travel(method: str, down: list[int], up: list[int], tmp_path: Path) -> None:
    run = start(tmp_path, method=method, rounds=2, set=TINY)
    nodes = len(run.rounds[0]["nodes"])
    for line, down_of, up_of in zip(run.rounds, down, up, strict=True):
        assert 0 <= line["bytes_down"] / nodes - down_of < 2000  # with the head of each array
        assert 0 <= line["bytes_up"] / nodes - up_of < 2000


@pytest.mark.parametrize("method", ["eata", "t3a"])
def test_an_adaptation_sends_nothing_more(method: str, tmp_path: Path) -> None:
    more = f"{TINY} model.name=cnn_bn"
    adapted, plain = (start(tmp_path / name, method=name, rounds=1, set=more) for name in (method, "fedavg"))
    for way in ("bytes_down", "bytes_up"):
        assert [line[way] for line in adapted.rounds] == [line[way] for line in plain.rounds]
    assert adapted.results["weights_sha256"] == plain.results["weights_sha256"]
    assert adapted.results["others"]["before-adaptation"] == plain.results["domains"]


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedomg", "tent", "eata", "t3a"])
def test_killed_and_resumed_with_nothing_kept_between_rounds(method: str, tmp_path: Path, kill_at: KillAt) -> None:
    flat = {"method": method, "rounds": 3, "set": TINY}
    whole = start(tmp_path / "whole", **flat)
    with kill_at("weights-00002", "before"):
        start(tmp_path / "runs", **flat)
    assert outcome(resume(tmp_path / "runs")) == outcome(whole)


def test_killed_and_resumed_with_state_on_the_server_and_on_the_nodes(tmp_path: Path, kill_at: KillAt) -> None:
    """FedDyn's d and s_n, GA's weights over it, nodes that miss rounds."""
    flat = {
        "method": "feddyn",
        "set": f"{TINY} dataset.domains=[scan,texture,sketch] aggregation.weights=ga aggregation.gap_step=1 "
        "federation.participation=0.75",
    }
    whole = start(tmp_path / "whole", **flat)
    with kill_at("weights-00003", "before"):
        start(tmp_path / "runs", **flat)
    run = resume(tmp_path / "runs")
    assert outcome(run) == outcome(whole)
    state, kept = (load_file(run.folder / "checkpoint" / f"{kind}-00003.safetensors") for kind in ("state", "moments"))
    assert all(name.startswith("drift/") for name in state)
    assert any(array.any() for array in state.values())
    assert len(set(kept["ga/weights"].tolist())) > 1
    assert np.isclose(kept["ga/weights"].sum(), 1)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedprox", "f2dc", "fedrep", "scaffold", "i2pfl"])
def test_gaps_weigh_the_nodes_of_any_method(method: str, tmp_path: Path) -> None:
    plain = start(tmp_path / "plain", method=method, set=f"{TINY} aggregation.weights=equal")
    still = start(tmp_path / "still", method=method, set=f"{TINY} aggregation.weights=ga aggregation.gap_step=0")
    moved = start(tmp_path / "moved", method=method, set=f"{TINY} aggregation.weights=ga aggregation.gap_step=1")
    hashes = [run.results["weights_sha256"] for run in (plain, still, moved)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_gaps_cannot_be_made_of_is_refused_in_a_line() -> None:
    def refused(method: str, more: str) -> str:
        return refusal_of(ConfigError, config, method, f"aggregation.weights=ga {more}")

    assert "allocation.validation_fraction above" in refused("fedavg", "aggregation.gap_on=validation")
    config("ga", "aggregation.gap_on=validation allocation.validation_fraction=0.2")
    assert "sends without noise" in refused("fedavg", "privacy.name=local-dp")
    alone = config("local", "aggregation.weights=ga")
    assert refusal_of(ConfigError, run_build.prepare, alone, "inline").startswith(
        "aggregation.weights=ga needs averaged"
    )


def test_a_run_whose_gaps_go_by_its_rounds_is_not_made_longer() -> None:
    none: Any = SimpleNamespace(history=[], completed=0)
    for run, reason in (
        (config("ga"), "aggregation.weights=ga depends on it"),
        (config("ga", "method.weighting=samples"), ""),
    ):
        assert resuming._needs_its_rounds(none, run, run) == reason

"""FedTGP, FedSA and FedGH in whole runs: what travels in bytes, different networks, saved, killed and resumed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from killing import KillAt, outcome, resume, start
from safetensors.numpy import load_file
from support import InlineRun, refusal_of

from fedshift.export import opening, saved, saving
from fedshift.export.saving import Wanted
from fedshift_app.config import resolving
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

SHORT = "train.epochs=1 allocation.share=0.08 train.batch_size=16"
NODES, C, D = 4, 10, 64
HEADER = 128  # of each array, as it travels
PROTOTYPES, LABELS = 4 * C * D, 8 * C
HEAD = [4 * C * D, 4 * C]
#: Of a node and round: up in each, down in round 1 and in round 2, each as the bytes of each array.
TRAVELS = {
    "fedtgp": ([PROTOTYPES, LABELS], [], [PROTOTYPES, LABELS]),
    "fedsa": ([PROTOTYPES, LABELS], [PROTOTYPES], [PROTOTYPES]),
    "fedsa method.predict_by=prototype": ([PROTOTYPES, LABELS], [PROTOTYPES], [PROTOTYPES, PROTOTYPES, LABELS]),
    "fedgh": ([PROTOTYPES, LABELS], [], HEAD),
}


@pytest.mark.parametrize("settings", TRAVELS)
def test_what_travels_in_bytes_and_no_weights(settings: str, run_inline: InlineRun) -> None:
    method, _, more = settings.partition(" ")
    run = run_inline(nodes=NODES, method=method, rounds=2, set=f"{SHORT} evaluate.every=9 {more}")
    assert run.results["num_parameters"] == 0
    up, *down = TRAVELS[settings]
    for line, arrays in zip(run.rounds, down, strict=True):
        assert line["bytes_up"] == NODES * sum(size + HEADER for size in up)
        assert line["bytes_down"] == NODES * sum(size + HEADER for size in arrays)


@pytest.mark.parametrize("method", ["fedtgp", pytest.param("fedsa", marks=pytest.mark.long), "fedgh"])
def test_nodes_with_different_networks(method: str, run_inline: InlineRun) -> None:
    run = run_inline(nodes=NODES, method=method, rounds=2, set=f'{SHORT} model.per_node=["cnn","cnn_bn"]')
    assert not run.rounds[-1]["left_out"]
    assert run.results["evaluated"] == "personal models"
    assert None not in run.results["final"].values()


def test_what_cannot_run_is_reported_before_training() -> None:
    def refused(method: str, more: str) -> str:
        return refusal_of(ConfigError, resolving.resolve, {"method": method, "set": more})

    assert "model.head=mlp" in refused("fedgh", "model.head=mlp")
    for method in ("fedtgp", "fedsa"):
        result = refused(method, "method.share_weights=true model.name=cnn2 model.per_node=[cnn2,cnn3]")
        assert "set method.share_weights=false" in result
    assert "method.server_lr" in refused("fedtgp", "method.server_lr=0")
    assert "method.momentum" in refused("fedsa", "method.momentum=1.5")


def test_a_saved_model_of_fedgh_has_the_global_head(run_inline: InlineRun, tmp_path: Path) -> None:
    requested = "train.epochs=2 allocation.share=0.2 train.precision=float32"
    run = run_inline(nodes=NODES, method="fedgh", rounds=2, set=requested)
    folder, result = saving.save(Wanted(run.folder, "safetensors", node=1, output=tmp_path / "model"))
    assert result.knowledge == ("head/bias", "head/weight")
    images = catalog.load("handwritten", "texture", "test", Source())
    program = opening.program_of(*saved.read(folder))
    scores = program(torch.from_numpy(images.x).permute(0, 3, 1, 2).float() / 255)
    right = 100 * float((scores.argmax(dim=1).numpy() == images.y).mean())
    assert right == pytest.approx(run.results["final"]["texture"])


@pytest.mark.long
@pytest.mark.parametrize(
    "requested", ["fedtgp", "fedtgp method.share_weights=true", "fedsa", "fedsa method.share_weights=true", "fedgh"]
)
def test_killed_and_resumed_it_is_the_same(requested: str, tmp_path: Path, kill_at: KillAt) -> None:
    method, _, more = requested.partition(" ")
    settings = f"{SHORT} federation.participation=0.75 {more}"
    whole = start(tmp_path / "whole", method=method, set=settings)
    with kill_at("weights-00002", "half"):
        start(tmp_path / "runs", method=method, set=settings)
    with kill_at("metrics.jsonl:3", "half"):
        resume(tmp_path / "runs")
    again = resume(tmp_path / "runs")
    assert outcome(again) == outcome(whole)
    for kind in ("knowledge", "state"):
        files = [run.folder / "checkpoint" / f"{kind}-00003.safetensors" for run in (again, whole)]
        assert [file.is_file() for file in files] == [kind == "knowledge" or method == "fedtgp"] * 2
        if files[0].is_file():
            one, other = (load_file(file) for file in files)
            assert all(np.array_equal(one[name], other[name]) for name in one) and one

"""Whole runs of single methods: what travels in bytes, saved, with networks of their own."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import InlineRun, Run
from words import config as config_of

from fedshift.export import opening, saved, saving
from fedshift.export.saving import Wanted
from fedshift_app.config import fits, registry
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.registry import Method
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

SHORT = "train.epochs=1 allocation.share=0.08 train.batch_size=16"
TWO = "nodes=2 dataset.domains=[scan,sketch]"
NODES, C, D = 2, 10, 64


def kept(run: Run, server_round: int) -> dict[str, Arrays]:
    """Return the arrays of a round's checkpoint by file."""
    files = (run.folder / "checkpoint").glob(f"*-{server_round:05d}.safetensors")
    return {file.name.partition("-")[0]: load_file(file) for file in files}


# --- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["eata", "t3a"])
def test_an_adaptation_changes_scores_alone(method: str, run_inline: InlineRun) -> None:
    adapted, plain = (
        run_inline(f"method={name} rounds=1 {TWO} {SHORT} model.name=cnn_bn") for name in (method, "fedavg")
    )
    assert adapted.results["weights_sha256"] == plain.results["weights_sha256"]
    assert adapted.results["others"]["before-adaptation"] == plain.results["domains"]


# --- models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedtgp", "fedgh"])
def test_nodes_with_different_networks(method: str, run_inline: InlineRun) -> None:
    run = run_inline(f"method={method} rounds=2 {TWO} {SHORT} model.per_node=[cnn,cnn_bn]")
    assert not run.rounds[-1]["left_out"]
    assert run.results["evaluated"] == "personal models"
    assert None not in run.results["final"].values()


@pytest.mark.parametrize("method", ["fedgh", "fdse"])
def test_a_saved_model_of_a_node_has_its_arrays_of_the_server(
    method: str, run_inline: InlineRun, tmp_path: Path
) -> None:
    run = run_inline(f"method={method} nodes=2 rounds=2 dataset.domains=[scan,texture] {SHORT} train.precision=float32")
    folder, result = saving.save(Wanted(run.folder, "safetensors", node=1, output=tmp_path / "model"))
    names = {"head/bias", "head/weight"} if method == "fedgh" else {"encoder.0.dse_conv.weight"}
    assert names <= {*result.knowledge}
    images = catalog.load("handwritten", "texture", "test", Source())
    program = opening.program_of(*saved.read(folder))
    scores = program(torch.from_numpy(images.x).permute(0, 3, 1, 2).float() / 255)
    right = 100 * float((scores.argmax(dim=1).numpy() == images.y).mean())
    assert right == pytest.approx(run.results["final"]["texture"])
    if method == "fdse":
        for shared in (False, True):
            with pytest.raises(ConfigError, match=r"each node has its own|encoder\.0\.dse_bn\.bias"):
                saving.save(Wanted(run.folder, "safetensors", shared=shared))


def test_a_domain_without_a_node_is_scored_by_the_heads_of_the_others(run_inline: InlineRun) -> None:
    run = run_inline(f"method=copa nodes=3 rounds=1 {SHORT} allocation.held_out=[texture]")
    assert run.results["final"].keys() == {"scan", "texture", "street", "sketch"}
    arrays = kept(run, 1)
    heads = arrays["knowledge"]["heads/weight"]
    assert (heads.shape, len(np.unique(heads, axis=0))) == ((3, C, D), 3)
    assert arrays["state"]["domains"].tolist() == [0, 2, 3]


# --- settings ----------------------------------------------------------------------------------------


def test_gradients_are_cut_where_the_authors_cut_them() -> None:
    cut = {"fdse": 10.0, "feddyn": 10.0, "fedrcl": 10.0, "fedgh": 50.0, "fedavg": None, "fdse train.clip=null": None}
    assert {typed: config_of(f"method={typed}").train.clip for typed in cut} == cut


@pytest.mark.long
def test_fdse_trains_with_its_own_defaults_and_one_local_epoch(run_inline: InlineRun) -> None:
    """Statistics of so few steps make its term thousands large in round 2: uncut, both nodes diverge."""
    given = "train.epochs=1 allocation.share=0.3 allocation.held_out=[street,sketch]"
    run = run_inline(f"method=fdse nodes=2 rounds=2 seed=1 {given}")
    assert [line["nodes"] for line in run.rounds] == [[0, 1], [0, 1]]
    assert all(math.isfinite(value) for line in run.rounds for value in line["losses"].values())


@pytest.mark.long
def test_i2pfls_recovered_form_does_not_train_with_the_papers_lambda1_and_its_class_set_alone_does(
    run_inline: InlineRun,
) -> None:
    given = "train.precision=float32 method.augproto_scope=class_set"
    run = run_inline(f"method=i2pfl rounds=4 {given}")
    assert not any(line["left_out"] for line in run.rounds)
    assert run.results["avg"] > 40
    recovered = f"{given} method.apa_level=class_mean method.apa_reduction=class_sum"
    run = run_inline(f"method=i2pfl rounds=2 {recovered}")
    assert run.rounds[0]["left_out"]
    assert {value for line in run.rounds for value in line["accuracy"].values()} == {10.0}  # of ten classes


# --- approximations -----------------------------------------------------------------------------------------


NAME, LABEL = "fedmlp", "fedmlp (approximation)"
WHY = registry.get(NAME).approximation


def test_only_what_says_so_is_labelled() -> None:
    assert WHY
    assert [m.label for m in registry.listed() if m.label != m.name] == [LABEL]
    assert registry.label("gone") == "gone" and registry.approximation_line("fedavg") == ""
    recipe = Method(name="mine", title="Mine", of=NAME).made_of(registry.get(NAME))
    assert recipe.label == "mine (approximation)"
    for table in (registry.markdown(), fits.privacy()):
        assert f"| `{NAME}` (approximation) | " in table and table.count("(approximation)") == 1

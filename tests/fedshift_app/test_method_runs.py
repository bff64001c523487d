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
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_strategies.methods.fdse import is_eraser

SHORT = "train.epochs=1 allocation.share=0.08 train.batch_size=16"
NODES, C, D = 2, 10, 64


def kept(run: Run, server_round: int) -> dict[str, Arrays]:
    """Return the arrays of a round's checkpoint by file."""
    files = (run.folder / "checkpoint").glob(f"*-{server_round:05d}.safetensors")
    return {file.name.partition("-")[0]: load_file(file) for file in files}


# --- bytes -----------------------------------------------------------------------------------------

HEADER = 128  # of each array, as it travels
PROTOTYPES, LABELS, HEAD = [4 * C * D], [8 * C], [4 * C * D, 4 * C]
OF_CLASSES = PROTOTYPES + LABELS
STYLE = [4 * 2 * 2 * 32]  # of the first map's channels
#: Of a node in round 2, the bytes of each array up and down: next to FedAvg's weights...
BESIDE: dict[str, tuple[list[int], list[int]]] = {
    **dict.fromkeys(("fedala", "feddyn", "ga", "fedomg", "fedrcl", "t3a", "eata"), ([], [])),
    "scaffold": ([4 * 156_810], [4 * 156_810]),  # as much again as the weights of the CNN
    "fedpac": ([*OF_CLASSES, 4 * C * D, 4], [*OF_CLASSES, *HEAD]),
    "copa": ([], [NODES * size for size in HEAD]),
    "fedthe": ([4 * D], [4 * D]),
    "fediir": ([sum(HEAD)], [sum(HEAD)]),
    "fedmlp": (OF_CLASSES, OF_CLASSES),
    "feddap": (OF_CLASSES, [NODES * size for size in PROTOTYPES + LABELS + LABELS]),  # a domain for each node
    "stablefdg method.attention=false": (STYLE, STYLE),  # with which the weights are FedAvg's
}
#: ... or without any weights.
ALONE = {
    "fedtgp": (OF_CLASSES, OF_CLASSES),
    "fedsa": (OF_CLASSES, PROTOTYPES),
    "fedsa method.predict_by=prototype": (OF_CLASSES, PROTOTYPES + OF_CLASSES),
    "fedgh": (OF_CLASSES, HEAD),
}


@pytest.mark.parametrize("typed", [*BESIDE, *ALONE, "fedrep"])
def test_what_travels_in_bytes(typed: str, run_inline: InlineRun, shared_run: InlineRun) -> None:
    network = "cnn_bn" if typed == "eata" else "cnn"
    given = f"nodes={NODES} rounds=2 {SHORT} model.name={network} dataset.domains=[scan,sketch] evaluate.every=9"
    plain, run = shared_run(given), run_inline(f"{given} method={typed}")
    assert (run.results["num_parameters"] == 0) == (typed in ALONE)
    for place, key in enumerate(("bytes_up", "bytes_down")):
        extra = (BESIDE | ALONE | {"fedrep": (HEAD, HEAD)})[typed][place]
        sign = -1 if typed == "fedrep" else 1  # whose heads stay
        expected = plain.rounds[1][key] * (typed not in ALONE) + sign * NODES * sum(size + HEADER for size in extra)
        assert run.rounds[1][key] == expected


@pytest.mark.parametrize("method", ["eata", "t3a"])
def test_an_adaptation_changes_scores_alone(method: str, run_inline: InlineRun) -> None:
    adapted, plain = (run_inline(f"method={name} rounds=1 {SHORT} model.name=cnn_bn") for name in (method, "fedavg"))
    assert adapted.results["weights_sha256"] == plain.results["weights_sha256"]
    assert adapted.results["others"]["before-adaptation"] == plain.results["domains"]


def test_each_node_of_fdse_has_erasers_of_its_own_on_the_server(run_inline: InlineRun) -> None:
    run = run_inline(f"method=fdse rounds=2 {SHORT} model.name=cnn_bn")
    state = kept(run, 1)["state"]
    assert all(is_eraser(name.partition("/")[2]) for name in state)
    assert len({state[f"{node}/encoder.0.dse_conv.weight"].tobytes() for node in range(4)}) == 4
    erasers = sum(array.nbytes + HEADER for array in state.values())
    first, second = run.rounds
    assert 0 <= second["bytes_down"] - first["bytes_down"] - erasers < HEADER * len(state)


# --- models ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedtgp", "fedgh"])
def test_nodes_with_different_networks(method: str, run_inline: InlineRun) -> None:
    run = run_inline(method=method, rounds=2, set=f'{SHORT} model.per_node=["cnn","cnn_bn"]')
    assert not run.rounds[-1]["left_out"]
    assert run.results["evaluated"] == "personal models"
    assert None not in run.results["final"].values()


@pytest.mark.parametrize("method", ["fedgh", "fdse"])
def test_a_saved_model_of_a_node_has_its_arrays_of_the_server(
    method: str, run_inline: InlineRun, tmp_path: Path
) -> None:
    run = run_inline(f"method={method} rounds=2 train.epochs=2 allocation.share=0.2 train.precision=float32")
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


def test_fediirs_gradient_is_of_both_layers_of_its_authors_head(run_inline: InlineRun) -> None:
    run = run_inline(f"method=fediir nodes={NODES} rounds=2 {SHORT} model.head=mlp-half")
    assert kept(run, 1)["knowledge"]["head-gradient"].shape == ((D * D // 2 + D // 2) + (D // 2 * C + C),)
    assert run.rounds[1]["losses"]["loss/iir"] > 0


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

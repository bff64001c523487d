"""Runs of FedHEAL, FDSE and FedSR: what travels by bytes, killed and resumed, with F2DC's modules, saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType
from killing import SHORT, KillAt, outcome, resume, start
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, Run, refusal_of

from fedshift.export import opening, saved, saving
from fedshift.export.saving import Wanted
from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_app.node import setup
from fedshift_core.errors import ConfigError
from fedshift_core.wire.records import encode
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_strategies.methods.fdse import is_eraser

FEW = "train.epochs=1 allocation.share=0.06 train.batch_size=16"
NODES = 4


class Listener:
    """Makes grids that keep all training messages, in their order."""

    def __init__(self) -> None:
        self.asked: list[Message] = []

    def make(self, *args: Any) -> ListeningGrid:
        listener = self

        class Grid(ListeningGrid):
            def pass_on(self, message: Message, reply: Message) -> Message:
                if message.metadata.message_type == MessageType.TRAIN:
                    listener.asked.append(message)
                return reply

        return Grid(*args)


def sizes(config: Any, *, private: tuple[str, ...]) -> tuple[int, int]:
    """Return the bytes of the shared weights as they travel, and those of the erasers among them."""
    state = {name: tensor.numpy() for name, tensor in setup.initial_model(config).state_dict().items()}
    record = encode({name: array for name, array in state.items() if not any(part in name for part in private)})
    each = {name: len(array.data) for name, array in record.items()}
    return sum(each.values()), sum(size for name, size in each.items() if is_eraser(name))


@pytest.mark.parametrize(
    ("method", "private"),
    [("fedheal", ()), ("fdse", (".dse_bn.running", ".dse_bn.num")), ("fedsr", ("reference.",))],
)
def test_what_travels_by_bytes(method: str, private: tuple[str, ...], run_inline: InlineRun) -> None:
    listener = Listener()
    run = run_inline(method=method, rounds=2, grid=listener.make, set=f"{FEW} model.name=cnn_bn")
    config = resolve({"experiment": str(run.folder / "config.yaml")})
    shared, erasers = sizes(config, private=private)
    assert (erasers > 0) == (method == "fdse")
    assert [line["bytes_up"] for line in run.rounds] == [NODES * shared] * 2
    assert [line["bytes_down"] for line in run.rounds] == [NODES * shared, NODES * (shared + erasers)]
    for place, message in enumerate(listener.asked):
        assert not any(part in name for name in message.content.array_records["arrays"] for part in private)
        given = message.content.array_records["knowledge"]
        assert all(is_eraser(name) for name in given)
        assert bool(given) == (method == "fdse" and place >= NODES)
    if method == "fdse":  # each node is sent others, and they are what the server keeps for it
        last = [message.content.array_records["knowledge"] for message in listener.asked[NODES:]]
        name = "encoder.0.dse_conv.weight"
        assert len({array[name].numpy().tobytes() for array in last}) == NODES
        state = load_file(run.folder / "checkpoint" / "state-00001.safetensors")
        kept = {state[f"{index}/{name}"].tobytes() for index in range(NODES)}
        assert kept == {array[name].numpy().tobytes() for array in last}


@pytest.mark.parametrize("method", ["fedheal", pytest.param("fdse", marks=pytest.mark.long)])
def test_a_killed_run_goes_on_with_what_the_server_kept_of_each_node(
    method: str, tmp_path: Path, kill_at: KillAt
) -> None:
    settings = f"{SHORT} federation.participation=0.75"
    whole = start(tmp_path / "whole", method=method, set=settings)
    with kill_at("state-00002", "half"):
        start(tmp_path / "runs", method=method, set=settings)
    with kill_at("round-00003.json", "before"):
        resume(tmp_path / "runs")
    run = resume(tmp_path / "runs")
    assert outcome(run) == outcome(whole)
    states = [load_file(one.folder / "checkpoint" / "state-00003.safetensors") for one in (run, whole)]
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("method", [pytest.param("fedheal", marks=pytest.mark.long), "fdse"])
def test_f2dcs_modules_by_configuration_alone(method: str, run_inline: InlineRun) -> None:
    run = run_inline(method=method, rounds=2, set=f"{FEW} modules=[f2dc] modules.noise=gumbel_pair modules.lambda1=0.1")
    own = {"loss/kl"} if method == "fdse" else set()
    assert set(run.rounds[-1]["losses"]) == {"loss", "loss/ce", "loss/dfd", "loss/dfc"} | own
    assert not any(line["left_out"] for line in run.rounds)


def test_a_node_of_fdse_is_saved_with_its_own_erasers(tmp_path: Path) -> None:
    requested = f"{FEW} model.name=cnn_bn train.precision=float32"
    flat = {"experiment": "handwritten", "method": "fdse", "rounds": 2, "output-dir": str(tmp_path), "set": requested}
    run = Run(runner.run_inline(flat, NODES))
    nodes = run.results["nodes"]
    folder, _ = saving.save(Wanted(run.folder, "safetensors", node=1))
    domain = nodes[1]["domain"]
    images = catalog.load("handwritten", domain, "test", Source())
    scores = opening.program_of(*saved.read(folder))(torch.from_numpy(images.x).permute(0, 3, 1, 2).float() / 255)
    result = 100 * float((scores.argmax(dim=1).numpy() == images.y).mean())
    assert result == pytest.approx(run.results["final"][domain])  # one node of each domain
    state = load_file(run.folder / "checkpoint" / "state-00002.safetensors")
    kept = load_file(folder / "model.safetensors")
    assert np.array_equal(kept["knowledge/encoder.0.dse_conv.weight"], state["1/encoder.0.dse_conv.weight"])
    assert "each node has its own model" in refusal_of(ConfigError, saving.save, Wanted(run.folder, "safetensors"))
    no_file = refusal_of(ConfigError, saving.save, Wanted(run.folder, "safetensors", shared=True))
    assert "its own encoder.0.dse_bn.bias, which no file" in no_file
    assert "fedshift save RUN --node N saves that of one of 0 (" in no_file


def test_a_network_that_cannot_be_erased_is_refused_in_one_line(run_inline: InlineRun) -> None:
    requested = f"{FEW} model.name=torchvision:mobilenet_v3_small"
    message = refusal_of(ConfigError, run_inline, method="fdse", rounds=1, set=requested)
    assert message.startswith("method fdse is made of plain convolutions, linear layers and BatchNorm; the network")

"""The app of examples/own-flower-app, which takes a strategy and a client of FedShift, and that client by itself."""

import re
import shutil
import subprocess
import tomllib
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from refusals import refused
from support import ROOT
from torch import nn

from fedshift.run.engine.inline import InlineGrid
from fedshift.run.launch import local_superlink, processes
from fedshift_clients import plain
from fedshift_clients.base import DomainClient
from fedshift_clients.methods.fedccrl import FedCCRLClient
from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.methods.moon import MoonClient
from fedshift_clients.methods.scaffold import ScaffoldClient
from fedshift_clients.models.networks import SplitModel
from fedshift_core.errors import ConfigError, RequestError
from fedshift_strategies import FedProto, Scaffold

EXAMPLE = ROOT / "examples" / "own-flower-app"
#: Two classes, of dark and of bright images.
IMAGES = np.repeat(np.array([[[20]], [[220]]], np.uint8), 16, axis=0) + np.zeros((32, 4, 4), np.uint8)
LABELS = np.repeat([0, 1], 16)


def network() -> SplitModel:
    torch.manual_seed(0)
    return SplitModel(nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU()), 6, 2)


def app(kind: type[DomainClient], **given: Any) -> ClientApp:
    """Return a ClientApp as a Flower user writes it."""
    made = ClientApp()

    def client(context: Context) -> DomainClient:
        number = int(context.node_config["partition-id"])
        settings = {"lr": 0.1, "batch_size": 8}
        return plain.node(kind, network(), IMAGES, LABELS, test=(IMAGES, LABELS), index=number, train=settings, **given)

    @made.train()
    def train(msg: Message, context: Context) -> Message:
        return plain.train(client(context), msg, context)

    @made.evaluate()
    def evaluate(msg: Message, context: Context) -> Message:
        return plain.evaluate(client(context), msg, context)

    return made


@pytest.mark.parametrize(
    ("strategy", "kind", "given", "shared"),
    [
        (FedProto(), FedProtoClient, {"share_weights": True}, True),
        (FedProto(), FedProtoClient, {"share_weights": False}, False),
        (Scaffold(buffers=()), ScaffoldClient, {}, True),
        (FedAvg(), DomainClient, {}, True),
    ],
)
def test_a_client_learns_around_a_network_of_the_users(
    strategy: FedAvg, kind: type[DomainClient], given: dict[str, Any], shared: bool
) -> None:
    """With what it keeps between messages: without shared weights all that it has learnt."""
    grid = InlineGrid(app(kind, **given), 2)
    result = strategy.start(grid, ArrayRecord(network().state_dict() if shared else {}), num_rounds=3)
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == 1.0
    losses = [result.train_metrics_clientapp[number]["loss"] for number in (1, 3)]
    assert losses[1] < losses[0]
    memory = grid.context_of(1000).state[plain.MEMORY]
    assert isinstance(memory, ArrayRecord) and any("encoder" in name for name in memory) == (not shared)


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        (FedProtoClient, {"lambda": 1.0}, "FedProtoClient lambda"),
        (FedProtoClient, {"lambda_proto": -1.0}, "FedProtoClient lambda_proto"),
        (FedProtoClient, {"train": {"lr": 0}}, "train lr 0"),
        (FedProtoClient, {"images": IMAGES / 255}, "images float64 uint8"),
        (FedProtoClient, {"labels": LABELS[1:]}, "labels (31,)"),
        (FedProtoClient, {"test": (IMAGES, LABELS + 1)}, "test labels 2"),
        (MoonClient, {}, "MoonClient"),
        (FedCCRLClient, {}, "FedCCRLClient"),
    ],
)
def test_a_bad_argument_is_named(kind: type[DomainClient], changes: dict[str, Any], named: str) -> None:
    given: dict[str, Any] = {"images": IMAGES, "labels": LABELS, **changes}
    with refused(ConfigError, *named.split()):
        plain.node(kind, network(), **given)


def test_other_arrays_than_those_that_travel_are_refused() -> None:
    client = plain.node(FedProtoClient, network(), IMAGES, LABELS, share_weights=False)
    arrays = ArrayRecord(network().state_dict())
    sent = FedProto().configure_train(1, arrays, ConfigRecord(), InlineGrid(ClientApp(), 2))
    with refused(RequestError, "classifier.bias"):
        plain.train(client, next(iter(sent)), Context(0, 0, {}, RecordDict(), {}))


def test_the_example_learns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    server, client = (import_module(f"own_flower_app.{side}_app").app for side in ("server", "client"))
    keys = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    server(InlineGrid(client, 3), Context(0, 0, {}, RecordDict(), keys | {"num-server-rounds": 4}))
    first, last = re.findall(r"round [14]: accuracy (\d\.\d+)", capsys.readouterr().out)
    assert 0.2 < float(first) < float(last)


@pytest.mark.slow
@pytest.mark.long
def test_flwr_runs_the_example() -> None:
    """As its README says, in Flower's simulation."""
    with (
        local_superlink.temporary_folder(for_ray=True) as home,
        processes.Group(local_superlink.empty_folder(home), local_superlink.environment(home)) as flower,
    ):
        example = shutil.copytree(EXAMPLE, home / EXAMPLE.name)
        link = local_superlink.SuperLink(processes.free_port())
        flower.start(
            "superlink",
            [processes.command("flower-superlink"), "--simulation", "--insecure", "--port", str(link.port)],
        )
        local_superlink.await_superlink(flower, link)
        local_superlink.connect(home, link)
        ended = subprocess.run(
            [processes.command("flwr"), "run", str(example), local_superlink.CONNECTION, "--stream",
             "--federation-config", "num-supernodes=3 client-resources-num-cpus=1",
             "--run-config", "num-server-rounds=2"],
            cwd=flower.folder, env=flower.env, capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
        shown = ended.stdout + ended.stderr
        assert re.search(r"round 2: accuracy 0\.\d+", shown) and "prototypes of 10 classes" in shown, shown

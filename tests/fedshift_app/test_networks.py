"""Runs of a library's network: from a file of weights that no node opens, with parts frozen that travel once."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from flwr.app import Message
from killing import killing, resume, start
from killing import outcome as outcome_of
from refusals import refused
from safetensors.numpy import load_file
from support import InlineRun, Run
from torchvision import models
from traffic import asked, changing
from words import config as config_of

from fedshift.export import saving
from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift.run.catalog import networks
from fedshift_app.config import validating
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.node import setup, state_folder, state_store
from fedshift_app.node.data import Place
from fedshift_app.run import build as run_build
from fedshift_app.run import initial_model
from fedshift_clients.models import torchvision_nets
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.messages import RunHeader
from fedshift_core.wire.names import START
from fedshift_core.wire.records import encode

NETWORK = "torchvision:shufflenet_v2_x0_5"
SHORT = f"dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name={NETWORK}"


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as torchvision's own are: its names, a head of 1000 classes."""
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "shuffle.safetensors"
    safetensors.torch.save_file(dict(models.get_model("shufflenet_v2_x0_5").state_dict()), path)
    return path


def of_file(path: Path) -> Arrays:
    return {f"encoder.body.{name}": array for name, array in load_file(path).items() if not name.startswith("fc.")}


def kept(run: Run, server_round: int) -> Arrays:
    return load_file(run.folder / "checkpoint" / f"weights-{server_round:05d}.safetensors")


def test_a_frozen_encoder_out_of_a_file_travels_once_and_never_changes(weights: Path, run_inline: InlineRun) -> None:
    had_it: set[tuple[str, int]] = set()

    def note(message: Message, reply: Message) -> Message:
        if START in message.content:
            had_it.add((message.metadata.message_type, asked(message)["server-round"]))
        return reply

    run = run_inline(f"nodes=2 rounds=2 {SHORT} model.weights={weights} model.freeze=encoder", grid=changing(note))
    assert had_it == {("train", 1)}
    expected, (first, second) = of_file(weights), (kept(run, server_round) for server_round in (1, 2))
    for result in (first, second):
        assert all(np.array_equal(result[name], array) for name, array in expected.items())
        assert result.keys() - expected.keys() == {"classifier.weight", "classifier.bias"}
    assert not np.array_equal(first["classifier.weight"], second["classifier.weight"])
    head = {name: array for name, array in first.items() if name not in expected}
    each, once = (2 * sum(len(array.data) for array in encode(some).values()) for some in (head, expected))
    assert [(line["bytes_down"], line["bytes_up"]) for line in run.rounds] == [(once + each, each), (each, each)]
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    client = predictions.client_of(record, record.config, "scan", record.checkpoint.nodes[0])
    assert client.begun == digest(expected)  # the report's model, too, begins from it


@pytest.mark.long
def test_a_run_goes_on_without_the_file(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
    settings = f"{SHORT} model.weights={mine} model.freeze=stages:2 model.bn=local"
    whole = start(tmp_path / "whole", rounds=2, set=settings)
    with killing(monkeypatch)("weights-00002", "before"):
        start(tmp_path / "runs", rounds=2, set=settings)
    mine.unlink()
    setup._bench.cache_clear()  # as in another process: what nodes begin from comes from the run folder
    assert outcome_of(resume(tmp_path / "runs")) == outcome_of(whole)


def test_private_batchnorm_begins_from_the_file(weights: Path) -> None:
    """A node without the file is sent it with round 1."""
    config, begun = initial_model.begin(config_of(f"{SHORT} model.weights={weights} model.bn=local"))
    initial, federation = run_build.prepare(config, "inline", begun)
    private = {name: array for name, array in of_file(weights).items() if name not in initial}
    start = federation.model.start
    assert start.keys() == private.keys() and not federation.model.frozen
    assert all(np.array_equal(start[name], array) for name, array in private.items())


# --- on the node -----------------------------------------------------------------------------------

DOMAIN_PLACE = Place("scan", 0, 4, resolve({}).dataset.source(), True, 1)
RUN_ID = "b" * 32


def frozen_client(config: Any) -> Any:
    setup._bench.cache_clear()
    return setup.make_client(config, DOMAIN_PLACE, 0)


def own_store() -> state_store.StateStore:
    return state_store.StateStore(state_folder.state_dir() / "node-0" / f"run-{RUN_ID}", own=True)


def begin(client: Any, arrays: Arrays, *, sent: bool, start_digest: str = "") -> None:
    header = RunHeader("deployment", "{}", start_digest=start_digest or digest(arrays))
    node_payload.begin(client, header, encode(arrays) if sent else None, own_store())


@pytest.fixture
def sent(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Arrays]:
    """The configuration as a node reads it, without the file, and what the server sends once."""
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    mine = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
    config = config_of(f"{SHORT} model.weights={mine} model.freeze=encoder")
    arrays = run_build.prepare(config, "inline")[1].model.start
    mine.unlink()
    return validating.from_json(config.model_dump_json()), arrays


def test_a_node_needs_no_file_and_keeps_what_it_was_sent(sent: tuple[Any, Arrays]) -> None:
    config, arrays = sent
    name = next(iter(arrays))
    begin(client := frozen_client(config), arrays, sent=True)
    later = setup.make_client(config, DOMAIN_PLACE, 0)  # of the same process: nothing is read
    assert later.begun == digest(arrays)
    anew = frozen_client(config)  # of another process: from the node's disk
    assert anew.begun == ""
    begin(anew, arrays, sent=False)
    for one in (client, anew):
        assert np.array_equal(one.model.state_dict()[name].numpy(), arrays[name])
    own_store().remember(1, {"x": np.ones(2)})
    begin(frozen_client(config), arrays, sent=False)  # what is remembered of rounds leaves it alone


def test_a_node_that_has_lost_it_says_so(sent: tuple[Any, Arrays]) -> None:
    config, arrays = sent
    client = frozen_client(config)
    with refused(FedShiftError, "frozen weights"):
        begin(client, arrays, sent=False)
    begin(client, arrays, sent=True)
    (path,) = state_folder.state_dir().rglob("start-*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FedShiftError, match="cannot read"):
        begin(frozen_client(config), arrays, sent=False)
    begin(anew := frozen_client(config), arrays, sent=True)  # the server sends it again after an error
    assert anew.begun == digest(arrays)


def test_a_node_checks_what_it_is_to_begin_from(sent: tuple[Any, Arrays]) -> None:
    config, arrays = sent
    client, (name, *others) = frozen_client(config), arrays
    for named, wrong in (
        ("evil", np.ones(1)),
        ("classifier.bias", np.ones(10, np.float32)),
        (name, arrays[name][:1]),
        (name, np.full_like(arrays[name], np.nan)),
    ):
        with refused(FedShiftError, named):
            begin(client, arrays | {named: wrong}, sent=True)
    with refused(FedShiftError, name):
        begin(client, {key: arrays[key] for key in others}, sent=True)
    for digits, is_sent in (("0" * 64, True), ("../../../etc/passwd", False)):
        with refused(FedShiftError):
            begin(client, arrays, sent=is_sent, start_digest=digits)
    assert client.begun == ""


# --- the configuration -----------------------------------------------------------------------------


def test_another_file_than_the_runs_is_refused(weights: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
    config, again = config_of(f"{SHORT} model.weights={mine}"), {"experiment": str(tmp_path / "again.yaml")}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
    assert resolve(again) == config
    mine.write_bytes(b"another")
    with refused(ConfigError, mine):
        resolve(again)
    assert resolve(again | {"set": "model.weights_sha256=''"}).model.weights_sha256 != ""
    mine.unlink()
    gone = resolve(again)  # a run that goes on does not need it; a new one says so
    with refused(ConfigError, mine):
        run_build.prepare(gone, "inline")


@pytest.mark.parametrize("error", [OSError("no route to host"), RuntimeError("invalid hash value")])
def test_weights_that_cannot_be_fetched_are_reported_in_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchvision_nets, "pretrained", Mock(side_effect=error))
    with refused(ConfigError, "model.download", NETWORK, error):
        initial_model.begin(config_of(f"{SHORT} model.download=true"))


def test_what_was_fetched_is_known_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    state = dict(models.get_model("shufflenet_v2_x0_5").state_dict())
    monkeypatch.setattr(torchvision_nets, "pretrained", lambda name: state)
    config, begun = initial_model.begin(config_of(f"{SHORT} model.download=true"))
    assert config.model.weights_sha256 == digest({name: tensor.numpy() for name, tensor in state.items()})
    assert len(begun.from_file) == len(state) - 2  # all but the head
    state["fc.bias"] = state["fc.bias"] + 1
    with pytest.raises(ConfigError, match=NETWORK):
        initial_model.begin(config)


def test_a_saved_model_has_the_frozen_parts(weights: Path, run_inline: InlineRun, tmp_path: Path) -> None:
    """It names no file of the machine that it was trained on."""
    run = run_inline(f"nodes=2 rounds=1 {SHORT} model.weights={weights} model.freeze=encoder")
    saving.save(saving.Wanted(run.folder, "safetensors", output=tmp_path / "model"))
    file = tmp_path / "model" / "model.safetensors"
    result = load_file(file)
    assert all(np.array_equal(result[name], array) for name, array in of_file(weights).items())
    assert str(weights) not in file.with_name("model.json").read_text()
    again = config_of(f"{SHORT} model.weights={file}")
    assert len(initial_model.begin(again)[1].from_file) == len(result)  # our own names, the head too


def test_the_command_tells_what_is_in_a_network() -> None:
    lines = networks.table(["cnn", NETWORK], 32, markdown=True).splitlines()
    assert lines[2].startswith("| cnn | 64 | 156,160 |") and lines[3].startswith(f"| {NETWORK} | 1024 | ")
    with refused(ConfigError, "cnn", "32x32", "--size 64"):
        networks.table(["cnn"], 64, markdown=False)


# --- nodes with different networks --------------------------------------------------------------------

TWO = "model.name=cnn3 model.per_node=[cnn3,cnn2] train.epochs=2 allocation.share=0.05"


def config(text: str = TWO) -> RunConfig:
    return config_of(f"method=fedseproto rounds=2 {text}")


def own_name(cfg: RunConfig, **given: Any) -> str:
    """Return the network of a real node that was started with this configuration."""
    started = {"domain": "scan", "data-dir": str(Path.cwd())} | given
    return setup.own_network(cfg, setup.place(cfg, make_context(1, started, {}), setup.DEPLOYMENT)).name


def test_simulated_nodes_are_dealt_networks_in_turn() -> None:
    cfg = config()
    places = [
        setup.place(cfg, make_context(1, {"partition-id": i, "num-partitions": 4}, {}), setup.SIMULATION)
        for i in range(4)
    ]  # fmt: skip
    assert [setup.own_network(cfg, where).name for where in places] == ["cnn3", "cnn2", "cnn3", "cnn2"]


def test_a_real_node_may_name_its_own() -> None:
    assert own_name(config(), **{"partition-id": 0}) == "cnn3"
    assert own_name(config(), **{"partition-id": 1}) == "cnn2"
    assert own_name(config(), **{"partition-id": 0, "model": "cnn2"}) == "cnn2"
    with pytest.raises(
        ConfigError, match=r"started without one: give it 'partition-id=N', or 'model=\"NAME\"' with one of cnn3, cnn2"
    ):
        own_name(config())
    assert own_name(config(TWO.replace("[cnn3,cnn2]", "[cnn3,cnn3]"))) == "cnn3"


def test_what_a_node_may_not_name() -> None:
    with pytest.raises(ConfigError, match="unknown model 'big'; there are cnn, "):
        own_name(config(), model="big")
    alike = config("model.name=cnn3 train.epochs=2")
    with pytest.raises(
        ConfigError, match=r"model='cnn2', but this run has one network for all, 'cnn3'.*model.per_node"
    ):
        own_name(alike, model="cnn2")
    assert own_name(alike, model="cnn3") == "cnn3"


def test_only_prototypes_travel(run_inline: InlineRun) -> None:
    settings = f"{TWO} evaluate.client_models=last dataset.domains=[scan,sketch]"
    run = run_inline(f"method=fedseproto nodes=2 rounds=1 {settings}")
    assert run.results["num_parameters"] == 0
    assert run.results["evaluated"] == "personal models"
    header = 128  # of an array in NumPy's format
    assert run.rounds[0]["bytes_up"] == 2 * (10 * 512 * 4 + 10 * 8 + 2 * header)  # each node's prototypes and counts
    matrix = run.results["client_models"]["matrix"]
    assert len(matrix) == 2
    for domain, mean in run.results["client_models"]["by_domain"].items():
        assert mean == pytest.approx(sum(result[domain] for result in matrix.values()) / 2)

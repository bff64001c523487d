"""Runs of a library's network: from a file of weights that no node opens, with parts frozen that travel once."""

import re
import shutil
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import safetensors.torch
import yaml
from flwr.app import MessageType
from killing import killing, resume, start
from killing import outcome as outcome_of
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, Run, refusal_of
from torchvision import models

from fedshift.export import saving
from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.config import validating
from fedshift_app.config.resolving import resolve
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.node import setup, state_folder, state_store
from fedshift_app.node.data import Place
from fedshift_app.run import build as run_build
from fedshift_app.run import initial_model
from fedshift_clients.models import networks as build
from fedshift_clients.models import torchvision_nets
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.messages import RunHeader
from fedshift_core.wire.names import START
from fedshift_core.wire.records import encode

NETWORK = "torchvision:shufflenet_v2_x0_5"
SHORT = f"dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name={NETWORK}"
FILE_CLASSES = 1000


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as torchvision's own are: its names, a head of 1000 classes."""
    import torch

    torch.manual_seed(5)
    path = tmp_path_factory.mktemp("weights") / "shuffle.safetensors"
    safetensors.torch.save_file(dict(models.get_model("shufflenet_v2_x0_5").state_dict()), path)
    return path


def of_file(path: Path) -> Arrays:
    return {f"encoder.body.{name}": array for name, array in load_file(path).items() if not name.startswith("fc.")}


def kept(run: Run, server_round: int) -> Arrays:
    return load_file(run.folder / "checkpoint" / f"weights-{server_round:05d}.safetensors")


class Listening(ListeningGrid):
    """Notes which message had what nodes begin from."""

    seen: ClassVar[list[tuple[str, int, int, bool]]] = []

    def pass_on(self, asked: Any, reply: Any) -> Any:
        config = asked.content.config_records["config"]
        if "server-round" in config:
            result = (asked.metadata.message_type, int(config["server-round"]), int(config["node-index"]))
            self.seen.append((*result, START in asked.content))
        return reply


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int, bool]]:
    monkeypatch.setattr(Listening, "seen", [])
    return Listening.seen


def test_a_frozen_encoder_out_of_a_file_travels_once_and_never_changes(
    weights: Path, run_inline: InlineRun, listening: list[tuple[str, int, int, bool]]
) -> None:
    run = run_inline(rounds=2, grid=Listening, set=f"{SHORT} model.weights={weights} model.freeze=encoder")
    expected = of_file(weights)
    for server_round in (1, 2):
        result = kept(run, server_round)
        assert all(np.array_equal(result[name], array) for name, array in expected.items())
        assert result.keys() - expected.keys() == {"classifier.weight", "classifier.bias"}
    assert not np.array_equal(kept(run, 1)["classifier.weight"], kept(run, 2)["classifier.weight"])
    had_it = {(kind, server_round) for kind, server_round, _, had in listening if had}
    assert had_it == {(MessageType.TRAIN, 1)}
    head = {name: array for name, array in kept(run, 1).items() if name not in expected}
    each, once = (4 * sum(len(array.data) for array in encode(some).values()) for some in (head, expected))
    assert [(line["bytes_down"], line["bytes_up"]) for line in run.rounds] == [(once + each, each), (each, each)]
    content = yaml.safe_load((run.folder / "config.yaml").read_text())["resolved"]["model"]
    assert re.fullmatch("[0-9a-f]{64}", content["weights_sha256"])
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    client = predictions.client_of(record, record.config, "scan", record.checkpoint.nodes[0])
    assert client.begun == digest(expected)  # the report's model, too, begins from it


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
    config, begun = initial_model.begin(resolve({"set": f"{SHORT} model.weights={weights} model.bn=local"}))
    initial, federation = run_build.prepare(config, "inline", begun)
    private = {name for name in of_file(weights) if name not in initial}
    assert federation.model.start.keys() == private
    assert not federation.model.frozen
    assert all(np.array_equal(federation.model.start[name], of_file(weights)[name]) for name in private)
    fedcode, head = "model.bn=average", {"classifier.weight", "classifier.bias"}
    other = resolve({"method": "fedcode", "set": f"{SHORT} {fedcode} model.weights={weights}"})
    assert run_build.prepare(other, "inline")[1].model.start == {}  # its head is private, and is not in the file
    assert not head & run_build.prepare(other, "inline")[0].keys()


# --- on the node -----------------------------------------------------------------------------------

DOMAIN_PLACE = Place("scan", 0, 4, resolve({}).dataset.source(), True, 1)
RUN_ID = "b" * 32


def frozen_client(config: Any) -> Any:
    setup._bench.cache_clear()
    return setup.make_client(config, DOMAIN_PLACE, 0)


def begin(client: Any, arrays: Arrays, *, sent: bool, changed: dict[str, Any] | None = None) -> None:
    own = state_store.StateStore(state_folder.state_dir() / "node-0" / f"run-{RUN_ID}", own=True)
    header = RunHeader("deployment", "{}", **{"start_digest": digest(arrays)} | (changed or {}))
    node_payload.begin(client, header, encode(arrays) if sent else None, own)


@pytest.fixture
def sent(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Arrays]:
    """The configuration as a node reads it, without the file, and what the server sends once."""
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    mine = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
    config = resolve({"set": f"{SHORT} model.weights={mine} model.freeze=encoder"})
    arrays = run_build.prepare(config, "inline")[1].model.start
    mine.unlink()
    return validating.from_json(config.model_dump_json()), arrays


def test_a_node_needs_no_file_and_keeps_what_it_was_sent(sent: tuple[Any, Arrays]) -> None:
    config, arrays = sent
    client = frozen_client(config)
    begin(client, arrays, sent=True)
    name = next(iter(arrays))
    assert np.array_equal(client.model.state_dict()[name].numpy(), arrays[name])
    later = setup.make_client(config, DOMAIN_PLACE, 0)  # of the same process: nothing is read
    assert later.begun == digest(arrays)
    anew = frozen_client(config)  # of another process: from the node's disk
    assert anew.begun == ""
    begin(anew, arrays, sent=False)
    assert np.array_equal(anew.model.state_dict()[name].numpy(), arrays[name])
    state_store.StateStore(state_folder.state_dir() / "node-0" / f"run-{RUN_ID}", own=True).remember(
        1, {"x": np.ones(2)}
    )
    begin(frozen_client(config), arrays, sent=False)  # what is remembered of rounds leaves it alone


def test_a_node_that_has_lost_it_says_so(sent: tuple[Any, Arrays]) -> None:
    config, arrays = sent
    client = frozen_client(config)
    with pytest.raises(FedShiftError, match="no longer has the frozen weights"):
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
    client, (name, *_) = frozen_client(config), arrays
    for wrong, result in (
        ({"evil": np.ones(1)}, "does not match its model: evil"),
        ({"classifier.bias": np.ones(10, np.float32)}, "does not match its model: classifier.bias"),
        ({name: arrays[name][:1]}, f"{name} has shape"),
        ({name: np.full_like(arrays[name], np.nan)}, "holds numbers that are not finite"),
    ):
        with pytest.raises(FedShiftError, match=re.escape(result)):
            begin(client, arrays | wrong, sent=True)
    with pytest.raises(FedShiftError, match="does not match its model: encoder"):
        begin(client, {key: array for key, array in arrays.items() if key != name}, sent=True)
    with pytest.raises(FedShiftError, match="not what it says that it is"):
        begin(client, arrays, sent=True, changed={"start_digest": "0" * 64})
    with pytest.raises(FedShiftError, match="expected 64 hexadecimal digits"):
        begin(client, arrays, sent=False, changed={"start_digest": "../../../etc/passwd"})
    assert client.begun == ""


def test_draws_of_dropout_depend_on_seed_node_and_round_alone(weights: Path) -> None:
    import torch

    config = resolve({"set": SHORT})
    client = frozen_client(config)

    def drawn(server_round: int) -> float:
        with client.own_draws("dropout", server_round):
            return float(torch.rand(()))

    before = torch.random.get_rng_state()
    assert drawn(1) == drawn(1) != drawn(2)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- the configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("model.freeze=stages:0", "model.freeze"),
        ("model.freeze=head", "model.freeze"),
        ("model.weights_sha256=" + "a" * 64, "model.weights_sha256 needs model.weights or"),
        ("model.weights=/none.pth", "model.weights: /none.pth: No such file or directory"),
        ("model.name=cnn model.download=true", "can be fetched for torchvision:NAME and timm:NAME, not for cnn"),
        ("model.name=cnn_bn model.freeze=norm model.bn=local", "model.freeze=norm leaves no BatchNorm to train"),
        ("adapt.name=fedicon adapt.flip=true model.freeze=encoder", "adapt.name=fedicon trains the encoder"),
        ("model.name=torchvision:alexnet", "model.name=torchvision:alexnet takes no images of 32x32 pixels"),
        ("model.name=torchvision:vit_b_32 modules=[f2dc]", "the network 'torchvision:vit_b_32' has no feature map"),
        ("model.name=resnet10 model.freeze=stages:5", "the network resnet10 has the stages 1 to 4"),
    ],
)  # fmt: skip
def test_what_goes_not_together_is_refused_before_a_run(given: str, reason: str) -> None:
    def asked() -> None:
        initial_model.begin(resolve({"set": given}))

    said = refusal_of(ConfigError, asked)
    assert reason in said
    assert len(said) < 300
    assert "\n" not in said


@pytest.mark.parametrize(
    ("method", "given", "reason"),
    [
        ("fedcode", "model.name=torchvision:vit_b_32", "has no feature map for SAIN to work on"),
        ("fedcode", "model.head=mlp method.global_model=average_heads", "needs model.head=linear, found mlp"),
        ("moon", "model.head=mlp method.projection=mlp", "needs model.head=linear, found mlp"),
        ("fedicon", "model.freeze=encoder adapt.name=none method.classifier_rounds=1", "trains the encoder alone"),
        ("local", "model.per_node=[cnn,cnn2] model.weights={}", "is for one network, but model.per_node"),
        ("fedproto", "model.per_node=[torchvision:resnet18,cnn]", "must be equally wide|needs dataset.size"),
    ],
)  # fmt: skip
def test_what_a_method_cannot_take_is_refused_before_a_run(method: str, given: str, reason: str, weights: Path) -> None:
    def asked() -> None:
        run_build.prepare(resolve({"method": method, "rounds": 3, "set": given.format(weights)}), "inline")

    assert re.search(reason, refusal_of(ConfigError, asked))


def test_another_file_than_the_runs_is_refused(weights: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copy(weights, tmp_path / "mine.safetensors"))
    config = resolve({"set": f"{SHORT} model.weights={mine}"})
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
    assert resolve({"experiment": str(again)}) == config
    mine.write_bytes(b"another")
    result = refusal_of(ConfigError, resolve, {"experiment": str(again)})
    assert re.search(r"has the SHA-256 [0-9a-f]{12}\.\.\., the run began with", result)
    assert resolve({"experiment": str(again), "set": "model.weights_sha256=''"}).model.weights_sha256 != ""
    mine.unlink()
    gone = resolve({"experiment": str(again)})  # a run that goes on does not need it; a new one says so
    assert "No such file" in refusal_of(ConfigError, run_build.prepare, gone, "inline")


def test_a_relative_file_is_next_to_the_experiment(weights: Path, tmp_path: Path) -> None:
    shutil.copy(weights, tmp_path / "w.safetensors")
    experiment = tmp_path / "mine.yaml"
    result = resolve({"set": SHORT}).model_dump(mode="json")
    sections = {key: result[key] for key in ("dataset", "train", "method", "rounds")}
    experiment.write_text(yaml.safe_dump(sections | {"model": {"name": NETWORK, "weights": "w.safetensors"}}))
    assert resolve({"experiment": str(experiment)}).model.weights == str(tmp_path / "w.safetensors")


@pytest.mark.parametrize("error", [OSError("no route to host"), RuntimeError("invalid hash value")])
def test_weights_that_cannot_be_fetched_are_reported_in_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(torchvision_nets, "pretrained", fail)
    config = resolve({"set": f"{SHORT} model.download=true"})
    result = refusal_of(ConfigError, initial_model.begin, config)
    assert result == f"model.download: the weights of {NETWORK} cannot be fetched: {error}"


def test_what_was_fetched_is_known_by_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    state = dict(models.get_model("shufflenet_v2_x0_5").state_dict())
    monkeypatch.setattr(torchvision_nets, "pretrained", lambda name: state)
    config, begun = initial_model.begin(resolve({"set": f"{SHORT} model.download=true"}))
    assert config.model.weights_sha256 == digest({name: tensor.numpy() for name, tensor in state.items()})
    assert len(begun.from_file) == len(state) - 2  # all but the head
    state["fc.bias"] = state["fc.bias"] + 1
    assert "the run began with" in refusal_of(ConfigError, initial_model.begin, config)


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [("resnet18", 128, "15 times the work of torchvision:resnet18"), ("resnet10", 96, "7 times"), ("resnet10", 64, ""),
     ("torchvision:resnet18", 128, ""), ("cnn", 32, "")],
)  # fmt: skip
def test_a_network_for_small_images_warns_of_large_ones(name: str, size: int, reason: str) -> None:
    said = initial_model.slow(resolve({"set": f"dataset.size={size} model.name={name}"}))
    assert reason in said
    assert bool(said) is bool(reason)


def test_the_work_that_the_warning_tells_is_counted() -> None:
    """A network with the stem of small images against torchvision's, multiplications of one image of 128 pixels."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedshift_clients.models.catalog import NETWORKS

    def work(name: str) -> int:
        model = build.build(name, 7, 0).to("meta").eval()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(torch.zeros(1, 3, 128, 128, device="meta"))
        return counter.get_total_flops()

    base = work("torchvision:resnet18")
    assert {name: round(work(name) / base) for name in ("resnet10", "resnet18")} == {
        name: NETWORKS[name].work for name in ("resnet10", "resnet18")
    }


@pytest.mark.long
def test_methods_of_prototypes_and_maps_run_on_a_librarys_network(run_inline: InlineRun) -> None:
    """The colon of the name is in results, not in names of files."""
    for method, more in (("fedproto", ""), ("f2dc", ""), ("fedcode", ""), ("fedseproto", " model.head=mlp")):
        run = run_inline(rounds=1, method=method, set=f"{SHORT}{more}".replace("epochs=1", "epochs=2"))
        assert run.results["model"] == NETWORK
        assert np.isfinite(list(run.rounds[0]["losses"].values())).all()
        assert not [path for path in run.folder.rglob("*") if ":" in path.name]


@pytest.mark.long
def test_methods_of_maps_and_levels_run_on_timms_stages(run_inline: InlineRun) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    timm = SHORT.replace(NETWORK, "timm:mobilenetv3_small_050")
    for method, more in (("f2dc", " modules.f2dc.insert_after=[3,4]"), ("fedrcl", ""), ("fedcode", "")):
        run = run_inline(rounds=1, method=method, set=f"{timm}{more}")
        assert np.isfinite(list(run.rounds[0]["losses"].values())).all()


def test_a_saved_model_has_the_frozen_parts(weights: Path, run_inline: InlineRun, tmp_path: Path) -> None:
    """It names no file of the machine that it was trained on."""
    run = run_inline(rounds=1, set=f"{SHORT} model.weights={weights} model.freeze=encoder")
    saving.save(saving.Wanted(run.folder, "safetensors", output=tmp_path / "model"))
    result = load_file(tmp_path / "model" / "model.safetensors")
    assert all(np.array_equal(result[name], array) for name, array in of_file(weights).items() if name in result)
    assert len(set(of_file(weights)) - result.keys()) == 0
    assert str(weights) not in (tmp_path / "model" / "model.json").read_text()
    again = resolve({"set": f"{SHORT} model.weights={tmp_path / 'model' / 'model.safetensors'}"})
    assert len(initial_model.begin(again)[1].from_file) == len(result)  # our own names, the head too


def test_the_command_tells_what_is_in_a_network(capsys: pytest.CaptureFixture[str]) -> None:
    from fedshift.run.catalog import networks

    lines = networks.table(["cnn", NETWORK], 32, markdown=True).splitlines()
    assert lines[2] == "| cnn | 64 | 156,160 | no | yes | 32, 64 |"
    assert lines[3].startswith(f"| {NETWORK} | 1024 | ")
    with pytest.raises(ConfigError, match="cnn takes images of 32x32 pixels only, found --size 64"):
        networks.table(["cnn"], 64, markdown=False)

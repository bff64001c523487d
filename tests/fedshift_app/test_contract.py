"""One contract for every registered method: a new method is covered the moment it is registered."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, MessageType
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid
from torch.utils._python_dispatch import TorchDispatchMode

from clients.base import DomainClient
from clients.training.batches import Batch
from datasets import catalog
from fedshift_app.config import registry, resolving
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup

#: The settings that turn each method's own terms off, which leaves FedAvg.
OFF = {
    "fedproto": "method.lambda_proto=0",
    "fedproc": "method.use_gpc=false",
    "fpl": "method.use_cpcl=false method.use_upcr=false",
    "i2pfl": "method.use_gpcl=false method.use_apa=false",
    "fedcode": "method.use_semcl=false method.use_stycl=false method.use_fdr=false method.share_head=true",
    "f2dc": "method.use_dfd_loss=false method.use_dfc_loss=false method.aggregation=fedavg",
    "fedicon": "method.lie=false method.tta=false images.views=1 images.resized_crop=null images.jitter=[0,0,0,0] "
    "images.grayscale=0",
    "fedprox": "method.mu=0",
    "moon": "method.mu=0",
}
#: Methods that cannot be FedAvg, and why.
NO_WAY_BACK = {
    "fedseproto": "its classifier stands on a layer more, the semantic encoder",
    "local": "no weights travel",
    "fedavg-ft": "its weights are FedAvg's always, what is scored is not",
    "fedbn": "BatchNorm stays on the nodes",
}
#: Methods whose server averages nothing.
NOTHING_TRAVELS = {"local"}
AUXILIARY = {
    "fedproto": {"proto"},
    "fedproc": {"gpc"},
    "fpl": {"cpcl", "upcr"},
    "i2pfl": {"apa", "gpcl"},
    "fedcode": {"semcl", "stycl", "fdr"},
    "f2dc": {"dfd", "dfc"},
    "fedicon": {"supcon"},
    "fedseproto": {"ce_base", "kd", "mi", "proto"},
    "local": set(),
    "fedavg-ft": set(),
    "fedprox": {"prox"},
    "moon": {"contrast"},
    "fedbn": set(),
}
#: What a run of two short rounds needs beyond ``SHORT``.
NEEDS = {
    "fedproto": "method.share_weights=true",  # by default no weights travel, and the hash of nothing says nothing
    "fedicon": "method.classifier_rounds=1",
    "fedseproto": "train.epochs=2",
}
#: The term that falls from the first round in which it is there to the last; by default cross-entropy.
FALLS = {"fedicon": "supcon"}
#: BatchNorm's batches in two rounds of one epoch of two batches, if not 4: FedICON freezes it in the second
#: round, FedSeProto has two epochs.
BATCHES = {"fedicon": 2, "fedseproto": 8}
#: The two-layer CNN of methods that need BatchNorm.
CNN = {"fedbn": "cnn_bn"}
METHODS = sorted(registry.METHODS)
CHANCE = 10.0
#: A fifth of the images is enough where accuracy does not matter.
SHORT = "train.epochs=1 allocation.share=0.2"


def short(method: str, more: str = "") -> str:
    return f"{SHORT} {NEEDS.get(method, '')} {more}".strip()


def test_every_method_but_fedavg_is_covered() -> None:
    assert set(OFF) | set(NO_WAY_BACK) == set(AUXILIARY) == set(METHODS) - {"fedavg"}
    assert not set(OFF) & set(NO_WAY_BACK)


@pytest.mark.parametrize("method", METHODS)
def test_a_short_run_beats_chance_in_every_domain(method: str, run_inline: InlineRun) -> None:
    phases = "method.classifier_rounds=3" if method == "fedicon" else ""
    run = run_inline(method=method, rounds=8, set=phases)
    assert set(run.results["final"]) == {"scan", "texture", "street", "sketch"}
    assert min(run.results["final"].values()) > 2.5 * CHANCE, run.results["final"]
    name = f"loss/{FALLS.get(method, 'ce')}"
    told = [line["losses"][name] for line in run.rounds if name in line["losses"]]
    assert told[-1] < told[0]
    weights = load_file(run.folder / "checkpoint" / "weights-00008.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())


@pytest.mark.parametrize("method", METHODS)
def test_the_same_configuration_gives_the_same_run(method: str, run_inline: InlineRun) -> None:
    first, second = (run_inline(method=method, rounds=2, set=short(method)) for _ in range(2))
    assert first.results["weights_sha256"] == second.results["weights_sha256"]
    timeless = [[{k: v for k, v in line.items() if k != "seconds"} for line in run.rounds] for run in (first, second)]
    assert timeless[0] == timeless[1]
    other = run_inline(method=method, rounds=2, seed=1, set=short(method))
    assert other.rounds[-1]["losses"] != first.rounds[-1]["losses"]
    changed = other.results["weights_sha256"] != first.results["weights_sha256"]
    assert changed == (method not in NOTHING_TRAVELS)


@pytest.mark.parametrize("method", sorted(OFF))
def test_switched_off_it_is_fedavg_bit_for_bit(method: str, run_inline: InlineRun) -> None:
    off = run_inline(method=method, rounds=2, set=short(method, OFF[method]))
    on = run_inline(method=method, rounds=2, set=short(method))
    fedavg = run_inline(method="fedavg", rounds=2, set=SHORT)
    assert off.results["weights_sha256"] == fedavg.results["weights_sha256"]
    assert on.results["weights_sha256"] != fedavg.results["weights_sha256"]
    assert set(off.rounds[-1]["losses"]) == {"loss", "loss/ce"}


@pytest.mark.parametrize("method", sorted(AUXILIARY))
def test_auxiliary_losses_are_positive_and_change_the_gradient(method: str, run_inline: InlineRun) -> None:
    grid = _Recorder()
    run = run_inline(method=method, rounds=2, set=short(method), grid=grid.make)
    told: dict[str, float] = {}
    for line in run.rounds:
        told |= line["losses"]
    assert set(told) == {"loss", "loss/ce"} | {f"loss/{term}" for term in AUXILIARY[method]}
    assert all(told[f"loss/{term}"] > 0 for term in AUXILIARY[method])
    memory = grid.grid._contexts[1003].state.array_records["memory"]  # of the last node, which answers last
    gradients = _gradients(grid.first_train, {}) | _gradients(grid.last_train, memory)
    for term in AUXILIARY[method]:
        assert np.abs(gradients[term]).max() > 0
        assert np.isfinite(gradients[term]).all()


@pytest.mark.parametrize("method", METHODS)
def test_private_batchnorm_stays_and_survives(method: str, run_inline: InlineRun) -> None:
    grid = _Recorder()
    few = short(method, "allocation.share=0.06 model.name=resnet10 model.bn=local train.batch_size=16")
    run_inline(method=method, rounds=2, nodes=4, set=few, grid=grid.make)
    sent = set(grid.last_train.content.array_records["arrays"])
    assert bool(sent) == (method not in NOTHING_TRAVELS)
    assert not any("bn" in name or "running" in name for name in sent)
    memories = [context.state.array_records["memory"] for context in grid.grid._contexts.values()]
    means = [memory["model/encoder.stages.0.0.bn1.running_mean"].numpy() for memory in memories]
    assert all(not np.array_equal(means[0], other) for other in means[1:])
    batches = [int(memory["model/encoder.stages.0.0.bn1.num_batches_tracked"].numpy()) for memory in memories]
    # 22 or 21 images, 2 batches, 1 epoch, 2 rounds: it went on where it was.
    assert batches == [BATCHES.get(method, 4)] * 4


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("nodes", "settings"),
    [
        (4, "allocation.share=0.1 federation.participation=0.25"),  # one node a round, so one cluster (J = 1)
        (4, "allocation.label_skew=0.05"),  # nodes lack classes
        (4, "allocation.share=0.06 train.batch_size=7"),  # 21 or 22 images: a last batch of one
    ],
)
def test_odd_federations_give_numbers(method: str, nodes: int, settings: str, run_inline: InlineRun) -> None:
    run = run_inline(method=method, rounds=2, nodes=nodes, set=short(method, settings))
    assert not run.rounds[-1]["left_out"]
    for line in run.rounds:
        assert all(value is not None and np.isfinite(value) for value in line["losses"].values()), line["losses"]
    for kind in ("weights", "knowledge"):
        arrays = load_file(run.folder / "checkpoint" / f"{kind}-00002.safetensors")
        assert all(np.isfinite(array).all() for array in arrays.values())


@pytest.mark.parametrize("model", ["cnn", "resnet10"])
@pytest.mark.parametrize("method", METHODS)
def test_a_node_with_one_image_trains(method: str, model: str) -> None:
    settings = short(method, f"model.name={CNN.get(method, model) if model == 'cnn' else model}")
    cfg = resolving.resolve({"experiment": "handwritten", "method": method, "rounds": 2, "set": settings})
    where = setup.place(cfg, make_context(1, {"partition-id": 0, "num-partitions": 4}, {}), setup.SIMULATION)
    client = setup.make_client(cfg, where, 0)
    client.train_set = client.train_set.select(np.array([3]))
    state = client.model.state_dict()
    arrays, examples, metrics = client.fit([state[name].numpy() for name in client.shared_names], {"server-round": 1})
    assert examples == 1
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert all(
        np.isfinite(array).all() for array in [*arrays, *client.memory.values(), *client.contribution().values()]
    )


class _Recorder:
    """Makes grids that remember the first and the last training message that a node was sent."""

    grid: Any
    first_train: Message
    last_train: Message

    def make(self, *args: Any) -> Any:
        recorder = self

        class Grid(ListeningGrid):
            def pass_on(self, asked: Message, reply: Message) -> Message | None:
                if asked.metadata.message_type == MessageType.TRAIN:
                    if not hasattr(recorder, "first_train"):
                        recorder.first_train = asked
                    recorder.last_train = asked
                return reply

        self.grid = Grid(*args)
        return self.grid


def _gradients(message: Message, memory: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradient of each loss term with respect to the first trained weights, over all local epochs."""
    record = message.content.config_records["config"]
    context = make_context(1, {"partition-id": 3, "num-partitions": 4}, {})
    cfg, where = setup.open_message(record, context)
    client = setup.make_client(cfg, where, 3)
    client.knowledge = {k: a.numpy() for k, a in message.content.array_records["knowledge"].items()}
    client.memory = {k: a.numpy() for k, a in memory.items()}
    server_round = int(str(record["server-round"]))
    if client._plugin is not None:
        client._plugin.start_round(client.model, client.torch_rng("modules", server_round))
    client.start_round(server_round)
    with torch.no_grad():  # as after some steps: FedProx's term has no gradient where the round starts
        for parameter in client.model.parameters():
            parameter.mul_(1.01)
    client.model.train()
    x = torch.from_numpy(client.train_set.x[:32]).permute(0, 3, 1, 2).float() / 255
    y = torch.from_numpy(client.train_set.y[:32])
    found = {}
    for epoch in range(client.epochs(server_round)):
        client.start_epoch(epoch)
        terms = client.terms(Batch(x, y, epoch, x.flip(3)))
        first = next(p for p in client.model.parameters() if p.requires_grad)
        for name, term in terms.items():
            gradient = torch.autograd.grad(term, first, retain_graph=True)[0]
            found[name] = gradient.numpy()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_method_stands_in_the_docs_and_has_defaults(method: str) -> None:
    root = Path(resolving.CONF).parent
    assert (resolving.CONF / "methods" / f"{method}.yaml").is_file()
    assert (root / "docs" / "methods" / f"{method}.md").is_file()
    assert registry.markdown() in (root / "README.md").read_text(), "run: fedshift methods --markdown"


def test_every_dataset_stands_in_the_docs() -> None:
    text = (Path(resolving.CONF).parent / "README.md").read_text()
    assert all(f"`{name}`" in text for name in catalog.DATASETS)


class _Reads(TorchDispatchMode):
    """Counts how often a number is read off a tensor, for which the host waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", METHODS)
def test_no_step_waits_for_the_device(method: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read when training is over: how often a tensor is read does not depend on the number of steps."""
    train = DomainClient._train
    reads: list[int] = []

    def counted(self: DomainClient, server_round: int) -> dict[str, float]:
        with _Reads() as mode:
            terms = train(self, server_round)
        reads.append(mode.count)
        return terms

    monkeypatch.setattr(DomainClient, "_train", counted)
    found = []
    for batch in (8, 24):
        reads.clear()
        run_inline(method=method, rounds=2, set=short(method, f"train.batch_size={batch}"))
        found.append(list(reads))
    assert found[0] == found[1]
    assert all(0 < count < 12 for count in found[0])

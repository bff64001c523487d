"""One contract for every method that can be used here, those of installed packages too; methods declare what it needs.

``FEDSHIFT_CONTRACT`` names another data set and network for all runs, or one method whose tests are all that is made:
``method=mine dataset=stripes model.name=tiny``.
"""

import fnmatch
import functools
import itertools
import json
import operator
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message
from safetensors.numpy import load_file
from support import InlineRun, Run, flat_gradients, shared
from torch.utils._python_dispatch import TorchDispatchMode
from traffic import Pair, asked, noting

from fedshift import testing
from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift_app.config import registry, resolving, validating
from fedshift_app.config.layers import parse_set
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup
from fedshift_app.run import build as run_build
from fedshift_clients.base import DomainClient, Phase, RoundInputs
from fedshift_clients.training.batches import Batch
from fedshift_core.extensions import OURS
from fedshift_core.params import NoiseParams
from fedshift_core.registry import Method
from fedshift_core.wire.messages import WorkRequest
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import declared, described

METHODS = {m.name: m for m in registry.listed() if "features" not in m.needs}  # on images
ASKED = dict(part.split("=", 1) for part in shlex.split(os.environ.get("FEDSHIFT_CONTRACT", "")))
DATASET, ONLY = ASKED.pop("dataset", ""), ASKED.pop("method", "")
OTHERS = " ".join(f"{key}={value}" for key, value in ASKED.items())
#: A few images are enough where accuracy does not matter: two batches a round, and scores of the last round alone.
SHORT = "train.epochs=1 allocation.share=0.08 train.batch_size=16 evaluate.every=2 evaluate.last=1"
if not DATASET:  # two domains, each of two nodes: half of the test images
    SHORT += " dataset.domains=[scan,sketch]"
#: Of a run of which weights and losses alone are looked at.
NO_FIGURES = "evaluate.figures=false evaluate.site_figures=false"
NODES = 4


def of_methods(methods: Iterable[Any]) -> pytest.MarkDecorator:
    """Make tests of several methods, or of the one that is asked for.

    By the module's scope pytest puts those of a method together, and so in one worker, which makes the method's
    recorded run once.
    """
    kept = [m for m in methods if ONLY in ("", m if isinstance(m, str) else m.values[0])]
    return pytest.mark.parametrize("method", kept, scope="module")


def needs_batchnorm(method: Method) -> bool:
    return method.needs.get("network") == "batchnorm"


def settings(method: str, more: str = "", first: str = "", *, brief: bool = True) -> dict[str, Any]:
    """Return the keys of a run: the test's first ones, the method's own needs, the bench's, then the test's others.

    A method's ``short`` is for runs of two rounds, which ``brief`` says this one is.
    """
    network = "model.name=cnn_bn" if needs_batchnorm(METHODS[method]) and "model.name" not in OTHERS else ""
    own = METHODS[method].short if brief else ""
    if issubclass(METHODS[method].params_class(), NoiseParams):
        own += " method.repeatable_noise=true"  # the contract compares runs bit for bit
    given = f"{first} {own} {network} {OTHERS} {more}"
    return {"method": method, "dataset": DATASET, "set": given.strip()}


def trains_as_fedavg(method: Method) -> bool:
    """Tell whether all that it is is done on the server, or before a score."""
    elsewhere = {"adapt", "aggregation", "server"}
    plain = method.client_class() is DomainClient and not method.numbers and method.name != "fedavg"
    return plain and set(method.defaults) & set(validating.METHOD_SECTIONS) <= elsewhere


TRAINING = [name for name, method in METHODS.items() if method.trains and not trains_as_fedavg(method)]
#: Their encoder, which is frozen, is random here.
FROZEN = [name for name, method in METHODS.items() if "model.freeze=encoder" in method.short]

#: Of each kind one, with private parts, with phases and an adaptation, with no weights that travel: `make test`.
OF_EACH_KIND = ("fedavg", "f2dc", "fedcode", "fedicon", "fedproto")


def some(methods: Iterable[str]) -> list[Any]:
    """Return methods as parameters; those not of ``OF_EACH_KIND`` are for ``make test-all`` alone."""
    return [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.long) for name in methods]


def short(method: str, more: str = "") -> dict[str, Any]:
    return settings(method, more, SHORT) | {"rounds": 2}


def resolved(method: str, more: str = "") -> RunConfig:
    return resolving.resolve({"experiment": "handwritten"} | short(method, more))


def sends_weights(method: str) -> bool:
    return bool(run_build.prepare(resolved(method), "inline")[0])


class Recorded(NamedTuple):
    """A method's short run, its training messages with the answers to them, and what each node kept to itself.

    The answers are without the weights, which the server takes out.
    """

    run: Run
    said: list[Pair]
    memory: list[Any]

    @property
    def asked(self) -> list[Message]:
        return [message for message, _ in self.said]

    @property
    def ends(self) -> tuple[tuple[Message, Any], tuple[Message, Any]]:
        """The first question and the last one, each with the memory of its node; the last node answers last."""
        return (self.said[0][0], {}), (self.said[-1][0], self.memory[-1])


@functools.cache
def recorded(method: str, base: Path) -> Recorded:
    """Make the method's short run; once in each process, several tests look at it."""
    said, grids = list[Pair](), list[Any]()
    grid = noting(said, "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "InlineGrid", lambda *args: grids.append(grid(*args)) or grids[0])  # type: ignore[func-returns-value]
        flat = short(method) | {"experiment": "handwritten", "output-dir": str(base / "recorded")}
        run = Run(runner.run_inline(flat, NODES))
    memory = [context.state.array_records["memory"] for context in grids[0]._contexts.values()]
    return Recorded(run, said, memory)


Record = Callable[[str], Recorded]


@pytest.fixture
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Return :func:`recorded` with a folder of this session."""
    return lambda method: recorded(method, tmp_path_factory.getbasetemp())


@of_methods(METHODS)
def test_it_declares_what_the_contract_needs(method: str) -> None:
    m = METHODS[method]
    assert m.title
    assert bool(m.off) != bool(m.never_off) or method == "fedavg", "say off or never_off"
    assert set(m.defaults) <= {*validating.METHOD_SECTIONS, *m.params_class().model_fields}


#: What a method needs to learn in eight rounds.
TO_LEARN = {"fedicon": "method.classifier_rounds=3"}


@pytest.mark.long
@of_methods([name for name in METHODS if name not in FROZEN])
def test_a_short_run_beats_chance_in_every_domain(method: str, run_inline: InlineRun) -> None:
    run = run_inline(nodes=NODES, rounds=8, **settings(method, TO_LEARN.get(method, ""), brief=False))
    config = resolving.resolve({"experiment": str(run.folder / "config.yaml")})
    assert set(run.results["final"]) == set(config.dataset.domains)
    testing.check_beats_chance(run.folder)


@of_methods(some(METHODS))
def test_the_same_configuration_gives_the_same_run(method: str, run_inline: InlineRun, record: Record) -> None:
    first, second = record(method).run, run_inline(nodes=NODES, **short(method))
    testing.check_repeats(first.folder, second.folder)
    if method not in ("fedavg", "fedproto"):
        return
    other = run_inline(nodes=NODES, seed=1, **short(method))
    assert other.rounds[-1]["losses"] != first.rounds[-1]["losses"]
    changed = other.results["weights_sha256"] != first.results["weights_sha256"]
    assert changed == sends_weights(method)


def off_alike(method: Method) -> Any:
    """Return a method with whether a node that does as FedAvg's, which the next test shows, is all that it takes.

    So it is where the server averages by FedAvg's own code: then a whole run is for ``make test-all``.
    """
    server = method.strategy_class()
    same = not method.of and (server.weights, server.merge) == (DomainStrategy.weights, DomainStrategy.merge)
    return pytest.param(method.name, marks=[pytest.mark.long] * (same and method.name not in OF_EACH_KIND))


@of_methods([off_alike(m) for m in METHODS.values() if m.off])
def test_switched_off_it_is_fedavg_bit_for_bit(
    method: str, run_inline: InlineRun, shared_run: InlineRun, record: Record
) -> None:
    off = run_inline(nodes=2, **short(method, f"{METHODS[method].off} {NO_FIGURES}"))
    plain = shared_run(nodes=2, **short("fedavg", NO_FIGURES))
    assert off.results["weights_sha256"] == plain.results["weights_sha256"]
    assert record(method).run.results["weights_sha256"] != record("fedavg").run.results["weights_sha256"]
    assert [line["losses"] for line in off.rounds] == [line["losses"] for line in plain.rounds]
    assert set(off.rounds[-1]["losses"]) == {"loss", "loss/ce"}


#: Further settings with which a method, or its form, is FedAvg on a node.
ALSO_OFF = {
    "fedcode": tuple(f"method.alpha=0 method.{fdr} method.share_head=true" for fdr in ("beta=0", "use_fdr=false")),
    "fedicon": tuple(
        f"method.lie=false images.views=1 images.resized_crop=null images.jitter=[0,0,0,0] images.grayscale=0 {more}"
        for more in ("method.classifier_training=local", "method.supervised=false", "method.tau=1")
    ),
    "feddap": (f"{METHODS['feddap'].off} method.proto_source=last_epoch",),
    "fedproto": ("method.lambda_proto=0 method.proto_source=last_epoch",),
    "fedsa": (f"{METHODS['fedsa'].off} method.proto_source=last_epoch",),
    "fpl": (f"{METHODS['fpl'].off} method.proto_source=last_epoch",),
    "i2pfl": ("method.lambda1=0 method.lambda2=0", "method.use_gpcl=false method.lambda1=0"),
}


@of_methods([name for name, m in METHODS.items() if m.off])
def test_switched_off_a_node_does_as_fedavg_whatever_it_is_sent(method: str, record: Record) -> None:
    """With knowledge of the server, too; it keeps nothing of its own, and contributes nothing but prototypes."""
    place = 0 if method == "fedicon" else -1  # its last message is of a round without an encoder
    sent, plainly = record(method).asked[place], record("fedavg").asked[place]
    for off in (METHODS[method].off, *ALSO_OFF.get(method, ())):
        changed = f"train.batch_size=8 {off}"
        mine, plain = _client_for(sent, {}, _sections(changed)), _client_for(plainly, {}, _sections(changed, "train"))
        _few(mine), _few(plain)
        for server_round in (1, 2):
            assert _fitted(mine, plainly, server_round)[:3] == _fitted(plain, plainly, server_round)[:3]
        assert (mine.memory, mine.shared_names) == ({}, plain.shared_names)
        assert set(mine.contribution()) in (set(), {"prototypes", "counts"})
        assert not mine.personal(mine.model, mine.setup.model, mine.params)
        assert mine.scores_as_sent(mine.params)


#: Settings with which other code of a method runs, which repeats as the rest does.
FORMS = dict.fromkeys(("feddap", "fedproto", "fpl"), "method.proto_source=last_epoch") | {
    "fedseproto": "method.mi_form=batch_moment, method.schedule=joint",
    "i2pfl": "method.intra_proto=input_mixup, method.augproto_scope=epoch, "
    "method.augproto_scope=class_set method.lambda1=1",
}


@of_methods(TRAINING)
def test_a_node_repeats_a_round_whatever_it_did_before_and_global_generators_hold(method: str, record: Record) -> None:
    for (question, memory), form in itertools.product(record(method).ends, {"", *FORMS.get(method, "").split(", ")}):
        server_round, fitted = asked(question)["server-round"], []
        for noise in range(2):
            torch.manual_seed(noise)
            state = torch.get_rng_state()
            client = _few(_client_for(question, memory, _sections(f"train.batch_size=8 {form}")))
            if noise and server_round > 1:
                before = dict(client.memory)
                _fitted(client, question, server_round + 1)
                client.memory = before
            fitted.append(_fitted(client, question, server_round))
            assert torch.equal(torch.get_rng_state(), state)
        assert fitted[0] == fitted[1]


@of_methods([name for name in METHODS if name != "fedavg"])
def test_its_own_losses_are_positive_and_change_the_gradient(method: str, record: Record) -> None:
    result, terms = record(method), METHODS[method].terms
    fields: dict[str, float] = functools.reduce(operator.or_, (line["losses"] for line in result.run.rounds))
    assert {*fields} == {"loss", *["loss/ce"] * METHODS[method].trains, *(f"loss/{term}" for term in terms)}
    gradients = functools.reduce(operator.or_, itertools.starmap(_gradients, result.ends))
    for term in terms:
        assert fields[f"loss/{term}"] > 0 and 0 < np.abs(gradients[term]).max() < np.inf


@of_methods(METHODS)
def test_what_nodes_send_is_what_the_strategy_declares(method: str, record: Record) -> None:
    run, travels = record(method).run, registry.travels(METHODS[method])
    assert not any(line["left_out"] for line in run.rounds)
    testing.check_declared(METHODS[method], run.folder)
    contributes = METHODS[method].strategy_class().contributes
    assert bool(contributes) == ("up: " in travels)
    assert all(described({name: shape}) in travels for name, shape in contributes.items())


#: What a method sends or tells with a setting that is not its default, besides what it declares as such (`optional`).
WITH_A_SETTING = {"feddyn": {"alpha"}, "fedsa": {"prototypes", "labels"}}


@of_methods(name for name in METHODS if registry.METHODS.origin(name) == OURS)
def test_what_nodes_are_sent_is_what_the_strategy_declares(method: str, record: Record) -> None:
    """Nodes refuse other names; each that is declared is sent, or told, in a run of two rounds."""
    strategy, messages = METHODS[method].strategy_class(), record(method).asked
    sent = {name for message in messages for name in message.content.array_records["knowledge"]}
    told = {name for message in messages for name in WorkRequest.from_record(message.content).scalars}
    idle: set[str] = set()
    for names, patterns in ((sent, declared(strategy, "sends")), (told, declared(strategy, "tells"))):
        assert patterns is not None
        found = {pattern: fnmatch.filter(names, pattern) for pattern in patterns}
        assert {*itertools.chain(*found.values())} == names
        idle |= {pattern for pattern in patterns if not found[pattern]} - {*strategy.optional}
    assert idle == WITH_A_SETTING.get(method, set())


@of_methods(some(name for name in METHODS if name not in FROZEN))
def test_private_batchnorm_stays_and_survives(method: str, run_inline: InlineRun) -> None:
    layer, few = "encoder.1", "allocation.share=0.06 train.batch_size=16 model.name=cnn_bn model.bn=local"
    run = run_inline(nodes=NODES, rounds=2, **settings(method, few, "train.epochs=1"))
    sent = load_file(run.folder / "checkpoint" / "weights-00002.safetensors")
    assert bool(sent) == sends_weights(method)
    assert not any(layer in name or "running" in name for name in sent)
    memories = [load_file(path) for path in (run.folder / "checkpoint" / "nodes").rglob("round-00002-*.safetensors")]
    assert len(memories) == NODES
    means = [memory[f"model/{layer}.running_mean"] for memory in memories]
    assert all(not np.array_equal(means[0], other) for other in means[1:])
    batches = {int(memory[f"model/{layer}.num_batches_tracked"]) for memory in memories}
    config = resolving.resolve({"experiment": str(run.folder / "config.yaml")})
    per_epoch = -(-client_of(0, config).train_set.x.shape[0] // 16)
    # It went on where it was; FedICON's encoder is frozen in its classifier rounds.
    assert len(batches) == 1 and min(batches) >= (2 - int(config.method.get("classifier_rounds", 0))) * per_epoch


@of_methods(some(METHODS))
@pytest.mark.parametrize(
    "odd",
    [
        # one node a round, so one cluster (J = 1)
        pytest.param("allocation.share=0.1 federation.participation=0.25", marks=pytest.mark.long),
        pytest.param("allocation.label_skew=0.05", marks=pytest.mark.long),  # nodes lack classes
        "allocation.share=0.06 train.batch_size=7",  # 21 or 22 images: a last batch of one
    ],
)
def test_odd_federations_give_numbers(method: str, odd: str, run_inline: InlineRun) -> None:
    run = run_inline(nodes=NODES, **short(method, odd))
    assert not run.rounds[-1]["left_out"]
    for line in run.rounds:
        assert np.isfinite(np.array([*line["losses"].values()], float)).all(), line["losses"]
    files = {file.stem: load_file(file) for file in (run.folder / "checkpoint").glob("*-00002.safetensors")}
    assert {"knowledge-00002", "weights-00002"} <= {*files}
    for arrays in files.values():  # and the server's state, where the method has any
        assert all(np.isfinite(array).all() for array in arrays.values())


def client_of(index: int, config: RunConfig) -> DomainClient:
    """Return the client of a simulated node before its first message."""
    context = make_context(1, {"partition-id": index, "num-partitions": NODES}, {})
    return setup.make_client(config, setup.place(config, context, setup.SIMULATION), index)


def _finite(client: DomainClient, arrays: list[Any], metrics: Mapping[str, Any]) -> bool:
    """Tell whether all that a client sends and keeps are numbers."""
    kept = (*arrays, *client.memory.values(), *client.contribution().values(), *metrics.values())
    return all(np.isfinite(array).all() for array in kept)


@of_methods(TRAINING)
def test_a_node_with_one_image_trains(method: str) -> None:
    client = client_of(0, resolved(method))
    client.train_set = client.train_set.select(np.array([3]))
    arrays, examples, metrics = client.fit(shared(client), {"server-round": 1})
    assert examples == 1 and _finite(client, arrays, metrics)


@of_methods(TRAINING)
def test_a_node_of_one_class_trains_in_each_precision(method: str, record: Record) -> None:
    """With what the server and the node's memory hold after a round."""
    question, memory = record(method).ends[1]
    for precision in ("float32", "bf16"):
        client = _client_for(question, memory, {"train": {"precision": precision, "arithmetic": ""}})
        images = client.train_set.select(np.flatnonzero(client.train_set.y == client.train_set.y[0]))
        client.train_set = images
        arrays, _, metrics = client.fit(_weights(client, question), {"server-round": 2})
        assert _finite(client, arrays, metrics) and not any(array.dtype == np.float64 for array in arrays)
        counts = client.contribution().get("counts")
        if counts is not None and METHODS[method].strategy_class().contributes["counts"] == ("C",):
            assert counts.tolist() == np.bincount(images.y, minlength=client.model.num_classes).tolist()


def _gradients(message: Message, memory: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the gradient of each loss term with respect to all trained weights, in a row, over all local epochs."""
    client = _client_for(message, memory)
    client.take([array.numpy() for array in message.content.array_records["arrays"].values()])
    phases = client._prepare_round(asked(message)["server-round"])
    with torch.no_grad():  # as after some steps: FedProx's term has no gradient where the round starts
        for parameter in client.model.parameters():
            parameter.mul_(1.01)
    client.model.train()
    x = torch.from_numpy(client.train_set.x[:32]).permute(0, 3, 1, 2).float() / 255
    y = torch.from_numpy(client.train_set.y[:32])
    content: dict[str, np.ndarray[Any, Any]] = {}
    for epoch, phase in enumerate(one for one in phases for _ in range(one.epochs)):
        client._phase = phase
        for name, parameter in client.model.named_parameters():
            parameter.requires_grad_(phase.learns(name))
        client.start_epoch(epoch)
        slopes = flat_gradients(client, Batch(x, y, epoch + 1, x.flip(3)))
        content |= {name: slope for name, (_, slope) in slopes.items()}
    return content


class _Reads(TorchDispatchMode):
    """Counts how often a number is read off a tensor, for which the host waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without torch's compiler, of which nothing runs here: to import it takes longer than the tests."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


#: Settings without what reads numbers that it draws on the host in each step: torchvision's AugMix.
READS_OWN_DRAWS: dict[str, dict[str, Any]] = {"fedccrl": {"method": {"use_augmix": False}}}


@of_methods(TRAINING)
def test_no_step_waits_for_the_device(method: str, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are read when training is over: how often a tensor is read does not depend on the number of steps."""
    train = DomainClient._train
    reads: list[int] = []

    def counted(self: DomainClient, server_round: int, phases: list[Phase]) -> dict[str, float]:
        with _Reads() as mode:
            terms = train(self, server_round, phases)
        reads.append(mode.count)
        return terms

    monkeypatch.setattr(DomainClient, "_train", counted)
    for question, memory in record(method).ends:
        for size in (8, 16):  # two steps an epoch and one
            own = READS_OWN_DRAWS.get(method, {})
            client = _few(_client_for(question, memory, {"train": {"batch_size": size}, **own}))
            client.fit(_weights(client, question), {"server-round": asked(question)["server-round"]})
        assert 0 < reads.pop() == reads.pop() < 12


def _few(client: DomainClient) -> DomainClient:
    """Leave a client 16 of its images: two batches of eight, or one."""
    client.train_set = client.train_set.select(np.arange(16))
    return client


def _sections(text: str, *only: str) -> dict[str, dict[str, Any]]:
    """Return settings by their sections: all that ``text`` names, or some sections alone."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in parse_set(text).items():
        section, key = dotted.split(".")
        if not only or section in only:
            sections.setdefault(section, {})[key] = value
    return sections


def _weights(client: DomainClient, message: Message) -> list[Any]:
    """Return a message's weights in a client's order; a form's network may have fewer."""
    record = message.content.array_records["arrays"]
    return [record[name].numpy() for name in client.shared_names]


def _fitted(client: DomainClient, message: Message, server_round: int) -> list[Any]:
    """Train a client from a message's weights; return what it sends, bytes for arrays."""
    trained, examples, metrics = client.fit(_weights(client, message), {"server-round": server_round})
    contributed = {k: a.tobytes() for k, a in client.contribution().items()}
    return [examples, metrics, [a.tobytes() for a in trained], contributed]


def _client_for(message: Message, memory: Any, changed: Mapping[str, Any] = MappingProxyType({})) -> DomainClient:
    """Return the client that the message is for, ready for it, with some settings changed."""
    sent = asked(message)
    layers = json.loads(sent["run"])
    for section, values in changed.items():
        layers[section] |= values
    layers = validating.sections_of_run({"resolved": layers})  # with the parameters of a recipe in their sections
    index = sent["node-index"]
    context = make_context(1, {"partition-id": index, "num-partitions": NODES}, {})
    config, where = setup.open_message(ConfigRecord(sent | {"run": json.dumps(layers)}), context)
    client = setup.make_client(config, where, index)
    knowledge, kept = (
        {name: array.numpy() for name, array in of.items()}
        for of in (message.content.array_records["knowledge"], memory)
    )
    client.prepare(RoundInputs(knowledge, WorkRequest.from_record(message.content).scalars, kept))
    return client

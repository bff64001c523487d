"""One contract for every method that can be used here, those of installed packages too; methods declare what it needs.

``FEDSHIFT_CONTRACT`` names another data set and network for all runs, or one method whose tests are all that is made:
``method=mine dataset=stripes model.name=tiny``.
"""

import fnmatch
import functools
import itertools
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from contract_bench import (
    DATASET,
    FROZEN,
    METHODS,
    NO_FIGURES,
    NODES,
    OF_EACH_KIND,
    TRAINING,
    TWO,
    Record,
    client_for,
    client_of,
    few,
    fitted,
    gradients,
    of_methods,
    recorded,
    resolved,
    sections,
    sends_weights,
    settings,
    short,
    some,
    weights,
)
from flwr.app import Message
from safetensors.numpy import load_file
from support import InlineRun, shared
from torch.utils._python_dispatch import TorchDispatchMode
from traffic import asked

from fedshift import testing
from fedshift_app.config import registry, resolving, validating
from fedshift_clients.base import DomainClient, Phase
from fedshift_core.extensions import OURS
from fedshift_core.registry import Method
from fedshift_core.wire.messages import WorkRequest
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import declared, described


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
TO_LEARN = {"fedicon": "method.classifier_rounds=3", "fpl": "allocation.share=1 train.lr=0.005"}


@pytest.mark.long
@of_methods([name for name in METHODS if name not in FROZEN])
def test_a_short_run_beats_chance_in_every_domain(method: str, run_inline: InlineRun) -> None:
    small = f"{'' if DATASET else f'{TWO} allocation.share=0.4'} evaluate.every=8 evaluate.last=1"
    given = settings(method, f"{small} {TO_LEARN.get(method, '')}", brief=False)
    run = run_inline(nodes=NODES if DATASET else 2, rounds=8, **given)
    config = resolving.resolve({"experiment": str(run.folder / "config.yaml")})
    assert set(run.results["final"]) == set(config.dataset.domains)
    testing.check_beats_chance(run.folder)


@of_methods(OF_EACH_KIND)
def test_the_same_configuration_gives_the_same_run(method: str, run_inline: InlineRun, record: Record) -> None:
    """Of the others: what is compared between engines, and with runs that were killed."""
    first, second = record(method).run, run_inline(nodes=NODES, **short(method))
    testing.check_repeats(first.folder, second.folder)
    if method not in ("fedavg", "fedproto"):
        return
    other = run_inline(nodes=NODES, seed=1, **short(method))
    assert other.rounds[-1]["losses"] != first.rounds[-1]["losses"]
    changed = other.results["weights_sha256"] != first.results["weights_sha256"]
    assert changed == sends_weights(method)


def is_off_on_nodes_alone(method: Method) -> bool:
    """Tell whether the server averages by FedAvg's own code: a node that does as FedAvg's is all that it takes."""
    server = method.strategy_class()
    return not method.of and (server.weights, server.merge) == (DomainStrategy.weights, DomainStrategy.merge)


@of_methods(m.name for m in METHODS.values() if m.off and (m.name in OF_EACH_KIND or not is_off_on_nodes_alone(m)))
def test_switched_off_it_is_fedavg_bit_for_bit(method: str, run_inline: InlineRun, record: Record) -> None:
    off, plain = run_inline(nodes=NODES, **short(method, f"{METHODS[method].off} {NO_FIGURES}")), record("fedavg").run
    assert off.results["weights_sha256"] == plain.results["weights_sha256"]
    assert record(method).run.results["weights_sha256"] != plain.results["weights_sha256"]
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


@functools.cache
def by_fedavg(message: Message, words: str) -> list[Any]:
    """Return the weights that a node of FedAvg shares, and what it sends in two rounds, with some settings changed."""
    plain = few(client_for(message, {}, sections(words)), 8)
    return [plain.shared_names, *(fitted(plain, message, server_round)[:3] for server_round in (1, 2))]


@of_methods([name for name, m in METHODS.items() if m.off])
def test_switched_off_a_node_does_as_fedavg_whatever_it_is_sent(method: str, record: Record) -> None:
    """With knowledge of the server, too; it keeps nothing of its own, and contributes nothing but prototypes."""
    place = 0 if method == "fedicon" else -1  # its last message is of a round without an encoder
    sent, plainly = record(method).asked[place], record("fedavg").asked[place]
    for off in (METHODS[method].off, *ALSO_OFF.get(method, ())):
        changed = f"train.batch_size=4 {off}"
        mine = few(client_for(sent, {}, sections(changed)), 8)
        names, *wanted = by_fedavg(plainly, " ".join(word for word in changed.split() if word.startswith("train.")))
        assert [fitted(mine, plainly, server_round)[:3] for server_round in (1, 2)] == wanted
        assert (mine.memory, mine.shared_names) == ({}, names)
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
        server_round, results = asked(question)["server-round"], []
        for noise in range(2):
            torch.manual_seed(noise)
            state = torch.get_rng_state()
            client = few(client_for(question, memory, sections(f"train.batch_size=8 {form}")))
            if noise and server_round > 1:
                before = dict(client.memory)
                fitted(client, question, server_round + 1)
                client.memory = before
            results.append(fitted(client, question, server_round))
            assert torch.equal(torch.get_rng_state(), state)
        assert results[0] == results[1]


@of_methods([name for name in METHODS if name != "fedavg"])
def test_its_own_losses_are_positive_and_change_the_gradient(method: str, record: Record) -> None:
    result, terms = record(method), METHODS[method].terms
    fields: dict[str, float] = functools.reduce(operator.or_, (line["losses"] for line in result.run.rounds))
    assert {*fields} == {"loss", *["loss/ce"] * METHODS[method].trains, *(f"loss/{term}" for term in terms)}
    slopes = functools.reduce(operator.or_, itertools.starmap(gradients, result.ends))
    for term in terms:
        assert fields[f"loss/{term}"] > 0 and 0 < np.abs(slopes[term]).max() < np.inf


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
    layer, small = "encoder.1", f"{NO_FIGURES} model.name=cnn_bn model.bn=local"
    run = run_inline(nodes=NODES, **short(method, small))
    sent = run.weights
    assert bool(sent) == sends_weights(method)
    assert not any(layer in name or "running" in name for name in sent)
    memories = [load_file(path) for path in (run.folder / "checkpoint" / "nodes").rglob("round-00002-*.safetensors")]
    assert len(memories) == NODES
    means = [memory[f"model/{layer}.running_mean"] for memory in memories]
    assert all(not np.array_equal(means[0], other) for other in means[1:])
    batches = {int(memory[f"model/{layer}.num_batches_tracked"]) for memory in memories}
    config = resolving.resolve({"experiment": str(run.folder / "config.yaml")})
    per_epoch = -(-client_of(0, config).train_set.x.shape[0] // config.train.batch_size)
    # It went on where it was; FedICON's encoder is frozen in its classifier rounds.
    assert len(batches) == 1 and min(batches) >= (2 - int(config.method.get("classifier_rounds", 0))) * per_epoch


@of_methods(some(METHODS))
@pytest.mark.parametrize(
    "odd",
    [
        # 21 or 22 images, a last batch of one; one node a round, so one cluster (J = 1)
        "allocation.share=0.06 train.batch_size=7 federation.participation=0.25",
        pytest.param("allocation.label_skew=0.05", marks=pytest.mark.long),  # nodes lack classes
    ],
)
def test_odd_federations_give_numbers(method: str, odd: str, run_inline: InlineRun) -> None:
    run = run_inline(nodes=4, **short(method, f"{odd} {NO_FIGURES}"))
    assert not run.rounds[-1]["left_out"]
    for line in run.rounds:
        assert np.isfinite(np.array([*line["losses"].values()], float)).all(), line["losses"]
    files = {file.stem: load_file(file) for file in (run.folder / "checkpoint").glob("*-00002.safetensors")}
    assert {"knowledge-00002", "weights-00002"} <= {*files}
    for arrays in files.values():  # and the server's state, where the method has any
        assert all(np.isfinite(array).all() for array in arrays.values())


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
        client = client_for(question, memory, {"train": {"precision": precision, "arithmetic": ""}})
        images = client.train_set.select(np.flatnonzero(client.train_set.y == client.train_set.y[0]))
        client.train_set = images
        arrays, _, metrics = client.fit(weights(client, question), {"server-round": 2})
        assert _finite(client, arrays, metrics) and not any(array.dtype == np.float64 for array in arrays)
        counts = client.contribution().get("counts")
        if counts is not None and METHODS[method].strategy_class().contributes["counts"] == ("C",):
            assert counts.tolist() == np.bincount(images.y, minlength=client.model.num_classes).tolist()


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
        for size in (4, 8):  # two steps an epoch and one
            own = READS_OWN_DRAWS.get(method, {})
            client = few(client_for(question, memory, {"train": {"batch_size": size}, **own}), 8)
            client.fit(weights(client, question), {"server-round": asked(question)["server-round"]})
        assert 0 < reads.pop() == reads.pop() < 12

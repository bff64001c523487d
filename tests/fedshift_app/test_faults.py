"""Nodes that fail: left out and named; the run goes on, and ends with an error only when none is left."""

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from refusals import refused
from support import InlineRun, Run, listening
from traffic import asked, changing, failed, lost

from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import reasons
from fedshift_app.node.setup import Place, place
from fedshift_app.run import status
from fedshift_clients.base import DomainClient
from fedshift_clients.calls import Call
from fedshift_core.errors import ConfigError, FederationError, ForgottenError, StorageError
from fedshift_core.wire import names
from fedshift_core.wire.names import WORK

SHORT = "train.epochs=1 allocation.share=0.05 evaluate.figures=false"
Change = Callable[[Message, Message], Message | None]


def _rewrite(edit: Callable[[Any], dict[str, Any]]) -> Change:
    """Return what makes something else of a reply's arrays: ``edit`` is given the first one."""

    def change(message: Message, reply: Message) -> Message:
        arrays = {name: a.numpy() for name, a in reply.content.array_records["arrays"].items()}
        new = arrays | edit(arrays[FIRST])
        reply.content["arrays"] = ArrayRecord({name: Array(a) for name, a in new.items() if a is not None})
        return reply

    return change


def _metrics(**changes: Any) -> Change:
    def change(message: Message, reply: Message) -> Message:
        reply.content["metrics"] = MetricRecord(dict(reply.content.metric_records["metrics"]) | changes)
        return reply

    return change


def _gift(message: Message, reply: Message) -> Message:
    reply.content["gift\x1b[2J"] = ArrayRecord({"a": Array(np.zeros(9))})
    return reply


DOMAINS = ("scan", "texture", "street", "sketch")
FIRST = "encoder.0.weight"
BROKEN: tuple[Change, ...] = (
    failed("RuntimeError: out of memory"),
    failed("\x1b[2J\nfaked line: all is well\n" + "x" * 100_000),
    lost,
    NAN := _rewrite(lambda a: {FIRST: np.full_like(a, np.nan)}),
    _rewrite(lambda a: {FIRST: a[:1]}),
    _rewrite(lambda a: {FIRST: a.astype(np.float64)}),
    _rewrite(lambda a: {FIRST: None}),
    _rewrite(lambda a: {FIRST: np.full_like(a, 1e30)}),
    _rewrite(lambda a: {"evil": np.zeros(3)}),
    _metrics(**{"num-examples": 10**8}),
    _metrics(**{"num-examples": float("inf")}),
    _metrics(evil=1.0),
    _metrics(**{"loss/mine": 1.0}),
    _metrics(loss=float("inf")),
    _metrics(loss=[1.0] * 1000),
    _gift,
)


def test_broken_nodes_are_left_out_and_named(run_inline: InlineRun, capsys: Any) -> None:
    """Each in a way of its own, next to four honest ones, in the round after as well."""
    faults = dict(enumerate(BROKEN, 4))
    grid = changing(lambda message, reply: faults[asked(message)["node-index"]](message, reply), "train", faults)
    run = run_inline(f"nodes={4 + len(faults)} rounds=2 {SHORT}", grid=grid)
    shown = capsys.readouterr().out
    for line in run.rounds:
        assert line["nodes"] == [0, 1, 2, 3]
        nodes = [text.partition(": ")[0] for text in line["left_out"]]
        assert {*nodes} == {f"node {index} ({DOMAINS[index % 4]})" for index in faults} and len(nodes) == len(faults)
        assert all(text.isprintable() and len(text) < 600 for text in line["left_out"])
        assert all(f"round 1: {node} " in shown for node in nodes)
        assert None not in line["accuracy"].values()
    weights = run.weights
    assert all(np.isfinite(array).all() for array in weights.values())


def test_the_others_are_averaged_as_if_the_broken_node_had_not_been_asked(run_inline: InlineRun) -> None:
    broken, gone = (run_inline(f"rounds=1 {SHORT}", grid=changing(fault, "train", [2])) for fault in (NAN, lost))
    assert broken.results["weights_sha256"] == gone.results["weights_sha256"]


def test_when_none_is_left_the_run_fails_and_keeps_what_was_done(run_inline: InlineRun, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"^round 3: ") as caught:
        run_inline(f"rounds=4 {SHORT}", grid=changing(BROKEN[0], "train", rounds=[3, 4]))
    assert str(caught.value).count("out of memory") == 1  # said once, for all four
    (folder,) = (tmp_path / "runs").iterdir()
    assert [line["round"] for line in Run(folder).rounds] == [1, 2]
    assert (folder / "checkpoint" / "weights-00002.safetensors").is_file()
    assert not (folder / "results.json").exists()


NO_MEMORY = (
    MemoryError("Unable to allocate 3 GiB"), RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
)  # fmt: skip


@pytest.mark.parametrize("error", NO_MEMORY, ids=str)
@pytest.mark.parametrize("work", ["train", "scores"])
def test_a_simulated_node_without_memory_is_counted_as_lost(
    error: Exception, work: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else runs on the machine decides that, and with it the run's numbers: it is degraded, not completed."""
    works = getattr(DomainClient, work)

    def fails(client: DomainClient, *given: Any) -> Any:
        if client.setup.index == 1:
            raise error
        return works(client, *given)

    monkeypatch.setattr(DomainClient, work, fails)
    run = run_inline(f"nodes=4 rounds=1 {SHORT} dataset.domains=[scan,street]")
    (reason,) = run.rounds[0]["left_out"]
    assert reason.startswith("node 1 (street): ") and reason.endswith(f"{type(error).__name__}: {error}")
    assert run.results["lost"] == {"1": [1]}
    assert status.read(run.folder).state == "degraded"


def test_a_real_nodes_disk_and_memory_are_its_own() -> None:
    simulated, real = (make_context(1, given, {}) for given in ({"partition-id": 0}, GOOD))
    errors = (OSError(errno.ENOSPC, "full"), MemoryError(), StorageError("full"), ForgottenError("gone"))
    assert {reasons.of(error, real)[0] for error in errors} == {names.RAISED}
    assert [reasons.of(one, simulated)[0] for one in (errors[0], ValueError())] == [names.DISK_FAILED, names.RAISED]


def test_a_domain_without_an_answer_is_missing_not_zero(run_inline: InlineRun) -> None:
    run = run_inline(f"rounds=1 {SHORT}", grid=changing(BROKEN[0], "evaluate", [1]))
    (line,), results = run.rounds, run.results
    assert line["accuracy"]["texture"] is results["domains"]["texture"] is results["avg"] is line["avg"] is None
    said = [results[key] for key in ("missing", "unscored", "lost")]
    assert said == [["texture"], {"texture": [1]}, {"1": [1]}]


FLOODS: dict[str, dict[str, Any]] = {
    "names": {f"other-correct/{i}\x1b[2J\nwell/scan": 1 for i in range(20_000)},
    "a long name": {f"seconds/{'x' * 5_000_000}": 1.0},
    "a part of the work": {"seconds/\x1b[2J\nround 9/9  scan 100.0": 1.0, "process": 7},
}


@pytest.mark.parametrize("flood", FLOODS)
def test_names_of_a_node_reach_neither_screen_nor_files(flood: str, run_inline: InlineRun, capsys: Any) -> None:
    run = run_inline(f"rounds=1 {SHORT} profile=true", grid=changing(_metrics(**FLOODS[flood]), nodes=[0], rounds=[1]))
    (line,) = run.rounds
    assert [result.split(":")[0] for result in line["left_out"]] == ["node 0 (scan)"] * 2
    assert all(result.isprintable() and len(result) < 200 for result in line["left_out"])
    assert line["accuracy"]["scan"] is None and None not in list(line["accuracy"].values())[1:]
    assert "others" not in line
    assert set(line["profile"]["nodes"]) <= set(WORK)
    shown = capsys.readouterr().out
    assert all(text.isprintable() for text in shown.splitlines()) and len(shown) < 10_000
    written = [path for path in run.folder.iterdir() if path.suffix in (".json", ".jsonl")]
    assert {"metrics.jsonl", "results.json", "profile.json", "log.jsonl", "status.json"} <= {p.name for p in written}
    assert all(path.stat().st_size < 50_000 and "\\u001b" not in path.read_text() for path in written)


def test_an_answer_of_the_last_round_sent_again_is_dropped(run_inline: InlineRun) -> None:
    kept: list[Message] = []
    number = itertools.count()

    def named(message: Message) -> None:  # as Flower does
        vars(message.metadata)["_message_id"] = str(next(number))

    def again(message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train" or asked(message)["node-index"] != 2:
            return reply
        # The server takes the weights out of the one that it gets.
        kept.append(Message(RecordDict(dict(reply.content)), reply_to=message))
        return reply if len(kept) == 1 else kept[0]

    run = run_inline(f"rounds=2 {SHORT}", grid=listening(again, named))
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3], [0, 1, 3]]
    assert [text.partition(":")[0] for text in run.rounds[1]["left_out"]] == ["node 2 (street)"]


def test_a_node_that_cannot_take_part_stops_the_run_before_training(run_inline: InlineRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(FederationError, match="mnist train"):
        run_inline("digits-small", nodes=6, rounds=1, data_dir=str(data))
    assert not (tmp_path / "runs").exists()


GOOD = {"domain": "scan", "data-dir": "/somewhere", "partition-id": 3}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"domain": None}, "'domain'"),
        ({"data-dir": None}, "'data-dir'"),
        ({"domain": "photo"}, "'photo' scan street"),
        ({"data-dir": "relative"}, "'relative'"),
        ({"partition-id": "one"}, "partition-id 'one'"),
    ],
)
def test_a_node_config_that_lacks_something_is_named(change: dict[str, Any], named: str) -> None:
    given = {key: value for key, value in (GOOD | change).items() if value is not None}
    with refused(ConfigError, *named.split()):
        _place(given)


def _place(node_config: dict[str, Any]) -> Place:
    return place(resolve({}), make_context(1, node_config, {}), "deployment")


def test_private_parts_that_diverged_are_not_kept(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is left out once and comes back with what it had before."""
    train, had = DomainClient._trained, dict[int, dict[str, Any]]()

    def diverging(client: DomainClient, call: Call) -> Any:
        if client.setup.index != 1:
            return train(client, call)
        had[call.server_round] = dict(client.memory)
        result = train(client, call)
        if client.server_round == 2:
            name = next(name for name, array in client.memory.items() if array.dtype.kind == "f")
            client.memory[name] = np.full_like(client.memory[name], np.nan)
        return result

    monkeypatch.setattr(DomainClient, "_trained", diverging)
    run = run_inline(f"method=fedbn rounds=3 {SHORT} model.name=cnn_bn")
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert run.rounds[1]["left_out"][0].startswith("node 1 (texture): ")
    assert had[2] and all((had[3][name] == array).all() for name, array in had[2].items())

"""Nodes that fail: left out and named; the run goes on, and ends with an error only when none is left."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from refusals import refused
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid

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

SHORT = "train.epochs=1 allocation.share=0.05"
Change = Callable[[Message, Message], Message | None]


def _grid(kind: str, bad: tuple[int, ...], change: Change, first_round: int = 1) -> Any:
    """Return a grid in which ``change`` is applied to the replies of kind ``kind`` of the nodes ``bad``."""

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message | None:
            config = message.content.config_records["config"]
            concerned = message.metadata.message_type == kind and config.get("node-index") in bad
            if concerned and int(str(config["server-round"])) >= first_round:
                return change(message, reply)
            return reply

    return Grid


def _raise(message: Message, reply: Message) -> Message:
    return Message(Error(code=2, reason="RuntimeError: out of memory"), reply_to=message)


def _vanish(message: Message, reply: Message) -> None:
    return None


def _rewrite(edit: Callable[[dict[str, np.ndarray[Any, Any]]], dict[str, np.ndarray[Any, Any]]]) -> Change:
    def change(message: Message, reply: Message) -> Message:
        arrays = {name: a.numpy() for name, a in reply.content.array_records["arrays"].items()}
        reply.content["arrays"] = ArrayRecord({name: Array(a) for name, a in edit(arrays).items()})
        return reply

    return change


def _metrics(**changes: Any) -> Change:
    def change(message: Message, reply: Message) -> Message:
        fields = {name.replace("_", "-"): value for name, value in changes.items()}
        reply.content["metrics"] = MetricRecord(dict(reply.content.metric_records["metrics"]) | fields)
        return reply

    return change


def _gift(message: Message, reply: Message) -> Message:
    reply.content["gift\x1b[2J"] = ArrayRecord({"a": Array(np.zeros(9))})
    return reply


def _scream(message: Message, reply: Message) -> Message:
    return Message(Error(code=2, reason="\x1b[2J\nfaked line: all is well\n" + "x" * 100_000), reply_to=message)


DOMAINS = ("scan", "texture", "street", "sketch")
FIRST = "encoder.0.weight"
BROKEN: dict[str, Change] = {
    "raises": _raise,
    "vanishes": _vanish,
    "NaN": _rewrite(lambda a: a | {FIRST: np.full_like(a[FIRST], np.nan)}),
    "shape": _rewrite(lambda a: a | {FIRST: a[FIRST][:1]}),
    "type": _rewrite(lambda a: a | {FIRST: a[FIRST].astype(np.float64)}),
    "lacks a name": _rewrite(lambda a: {k: v for k, v in a.items() if k != FIRST}),
    "huge": _rewrite(lambda a: a | {FIRST: np.full_like(a[FIRST], 1e30)}),
    "says too much": _scream,
    "counts too much": _metrics(num_examples=10**8),
    "counts infinitely": _metrics(num_examples=float("inf")),
    "another metric": _metrics(evil=1.0),
    "a loss of its own": _metrics(**{"loss/mine": 1.0}),
    "an endless loss": _metrics(loss=float("inf")),
    "a list": _metrics(loss=[1.0] * 1000),
    "another record": _gift,
    "another name": _rewrite(lambda a: a | {"evil": np.zeros(3)}),
}


def test_broken_nodes_are_left_out_and_named(run_inline: InlineRun, capsys: Any) -> None:
    """Each in a way of its own, next to four honest ones, in the round after as well."""
    faults = dict(enumerate(BROKEN.values(), 4))

    def change(message: Message, reply: Message) -> Message | None:
        return faults[int(str(message.content.config_records["config"]["node-index"]))](message, reply)

    run = run_inline(rounds=2, nodes=4 + len(faults), set=SHORT, grid=_grid(MessageType.TRAIN, tuple(faults), change))
    shown = capsys.readouterr().out
    for line in run.rounds:
        assert line["nodes"] == [0, 1, 2, 3]
        nodes = [text.partition(": ")[0] for text in line["left_out"]]
        assert sorted(nodes, key=lambda node: int(node.split()[1])) == [
            f"node {index} ({DOMAINS[index % 4]})" for index in faults
        ]
        assert all(text.isprintable() and len(text) < 600 for text in line["left_out"])
        assert all(f"round 1: {node} " in shown for node in nodes)
        assert None not in line["accuracy"].values()
    weights = load_file(run.folder / "checkpoint" / "weights-00002.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())


def test_the_others_are_averaged_as_if_the_broken_node_had_not_been_asked(run_inline: InlineRun) -> None:
    broken = run_inline(rounds=1, set=SHORT, grid=_grid(MessageType.TRAIN, (2,), BROKEN["NaN"]))
    gone = run_inline(rounds=1, set=SHORT, grid=_grid(MessageType.TRAIN, (2,), _vanish))
    assert broken.results["weights_sha256"] == gone.results["weights_sha256"]


def test_when_none_is_left_the_run_fails_and_keeps_what_was_done(run_inline: InlineRun, tmp_path: Path) -> None:
    grid = _grid(MessageType.TRAIN, (0, 1, 2, 3), _raise, first_round=3)
    with pytest.raises(FederationError, match=r"^round 3: ") as caught:
        run_inline(rounds=4, set=SHORT, grid=grid)
    assert str(caught.value).count("out of memory") == 1  # said once, for all four
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
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

    def fails(*given: Any) -> None:
        raise error

    class Grid(ListeningGrid):
        def _answer(self, message: Message) -> Message:
            with monkeypatch.context() as patch:
                if message.content.config_records["config"].get("node-index") == 2:
                    patch.setattr(DomainClient, work, fails)
                return super()._answer(message)

    run = run_inline(rounds=1, nodes=8, set=SHORT, grid=Grid)
    (reason,) = run.rounds[0]["left_out"]
    assert reason.startswith("node 2 (street): ") and reason.endswith(f"{type(error).__name__}: {error}")
    assert run.results["lost"] == {"1": [2]}
    assert status.read(run.folder).state == "degraded"


def test_a_real_nodes_disk_and_memory_are_its_own() -> None:
    error, simulated, real = (
        OSError(errno.ENOSPC, "full"),
        make_context(1, {"partition-id": 0}, {}),
        make_context(1, GOOD, {}),
    )
    assert reasons.of(error, simulated)[0] == names.DISK_FAILED
    for error_of in (error, MemoryError(), StorageError("full"), ForgottenError("gone")):
        assert reasons.of(error_of, real)[0] == names.RAISED
    assert reasons.of(ValueError("its own"), simulated)[0] == names.RAISED


DIVIDED = f"{SHORT} images.eval_batch=4"  # 90 test images in 23 batches: two parts


@pytest.mark.parametrize(("settings", "bad", "fault"), [(SHORT, 0, _raise), (DIVIDED, 4, _vanish)])
def test_a_failed_part_of_a_test_set_is_scored_by_another_node_of_the_domain(
    settings: str, bad: int, fault: Change, run_inline: InlineRun
) -> None:
    whole = run_inline(rounds=1, nodes=8, set=settings)
    replaced = run_inline(rounds=1, nodes=8, set=settings, grid=_grid(MessageType.EVALUATE, (bad,), fault))
    for scores in ("accuracy", "test_loss"):
        assert replaced.rounds[0][scores] == whole.rounds[0][scores]
    assert replaced.rounds[0]["left_out"][0].startswith(f"node {bad} (scan): ")


def test_a_domain_without_an_answer_is_missing_not_zero(run_inline: InlineRun) -> None:
    run = run_inline(rounds=1, set=SHORT, grid=_grid(MessageType.EVALUATE, (1,), _raise))
    assert run.rounds[0]["accuracy"]["texture"] is None
    assert run.results["domains"]["texture"] is None
    assert run.results["missing"] == ["texture"]
    assert run.results["avg"] is run.rounds[0]["avg"] is None
    assert run.results["unscored"] == {"texture": [1]} and run.results["lost"] == {"1": [1]}


FLOODS: dict[str, dict[str, Any]] = {
    "names": {f"other-correct/{i}\x1b[2J\nwell/scan": 1 for i in range(20_000)},
    "a long name": {f"seconds/{'x' * 5_000_000}": 1.0},
    "a part of the work": {"seconds/\x1b[2J\nround 9/9  scan 100.0": 1.0, "process": 7},
}


@pytest.mark.parametrize("flood", FLOODS)
def test_names_of_a_node_reach_neither_screen_nor_files(flood: str, run_inline: InlineRun, capsys: Any) -> None:
    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message | None:
            if message.content.config_records["config"].get("node-index") == 0:
                reply.content["metrics"] = MetricRecord(dict(reply.content.metric_records["metrics"]) | FLOODS[flood])
            return reply

    run = run_inline(rounds=1, set=f"{SHORT} profile=true", grid=Grid)
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

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            request = list(messages)
            for message in request:  # as Flower does
                vars(message.metadata)["_message_id"] = f"{len(self.sent)}-{message.metadata.dst_node_id}"
                self.sent.append(message.metadata.message_id)
            return super().send_and_receive(request, timeout=timeout)

        def pass_on(self, request: Message, reply: Message) -> Message | None:
            config = request.content.config_records["config"]
            if request.metadata.message_type != MessageType.TRAIN or config["node-index"] != 2:
                return reply
            if config["server-round"] == 1:  # the server takes the weights out of the one that it gets
                again = Message(RecordDict(dict(reply.content)), reply_to=request)
                kept.append(again)
                return reply
            return kept[0]

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.sent: list[str] = []

    run = run_inline(rounds=2, set=SHORT, grid=Grid)
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3], [0, 1, 3]]
    assert [text.partition(":")[0] for text in run.rounds[1]["left_out"]] == ["node 2 (street)"]


def test_a_node_that_cannot_take_part_stops_the_run_before_training(run_inline: InlineRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(FederationError, match="mnist train"):
        run_inline("digits-small", nodes=6, rounds=1, data_dir=str(data))
    assert not (tmp_path / "runs").exists()


GOOD = {"domain": "scan", "data-dir": "/somewhere", "partition-id": 3}


def test_a_real_nodes_place_comes_from_its_node_config() -> None:
    where = _place(GOOD)
    assert (where.domain, where.partition_id, where.shared) == ("scan", 3, False)
    assert where.source.data_dir == Path("/somewhere")


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
    train = DomainClient._trained
    had: dict[int, dict[str, np.ndarray[Any, Any]]] = {}

    def diverging(client: DomainClient, call: Call) -> Any:
        if client.setup.index == 1:
            had[call.server_round] = dict(client.memory)
        result = train(client, call)
        if (client.setup.index, client.server_round) == (1, 2):
            name = next(name for name, array in client.memory.items() if array.dtype.kind == "f")
            client.memory[name] = np.full_like(client.memory[name], np.nan)
        return result

    monkeypatch.setattr(DomainClient, "_trained", diverging)
    run = run_inline(method="fedbn", rounds=3, set=f"{SHORT} model.name=cnn_bn")
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3]]
    assert run.rounds[1]["left_out"][0].startswith("node 1 (texture): ")
    assert had[2] and all((had[3][name] == array).all() for name, array in had[2].items())

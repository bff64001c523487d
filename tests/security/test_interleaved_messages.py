"""A server sends messages of two runs in turn, one twice, or while the owner stops the node: none tells of another."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MessageType
from real_node import AppOfNode

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import chained_log, out_log, state_folder
from fedshift_clients.base import DomainClient
from fedshift_core.arrays import digest
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

TINY = "dataset.domains=[scan,sketch] allocation.share=0.1"
ONE, TWO = "1" * 32, "2" * 32
#: A run whose BatchNorm stays at the node, and one that shares it.
PRIVATE, SHARED = "model.name=resnet10 model.bn=local", "model.name=resnet10 model.bn=average"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> NodeFolder:
    config = resolve({"experiment": "handwritten", "set": TINY})
    return exporting.export(config, 2, tmp_path_factory.mktemp("real") / "nodes")[0]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Return a function that gives nodes an empty folder for what they remember."""
    made: list[Path] = []

    def change() -> None:
        made.append(tmp_path / f"state-{len(made)}")
        monkeypatch.setenv(state_folder.STATE_DIR, str(made[-1]))

    change()
    return change


def train(node: AppOfNode, run_id: str, server_round: int, **more: Any) -> str:
    """Return the hash of what a node answers, or its reason."""
    reply = node.ask(MessageType.TRAIN, server_round, **{names.RUN_ID: run_id}, **more)
    return str(reply.error.reason) if reply.has_error() else said(reply)


def said(reply: Message) -> str:
    return digest(decode(reply.content.array_records["arrays"]) | decode(reply.content.array_records["knowledge"]))


def runs(folder: NodeFolder) -> tuple[AppOfNode, AppOfNode]:
    """Return a node in each of two runs, as Flower's SuperNode has it: with a state of its own for each."""
    return (AppOfNode(folder, f"{TINY} {PRIVATE}", "fedproto"), AppOfNode(folder, f"{TINY} {SHARED}"))


def test_two_runs_in_turn_have_the_answers_of_each_alone(folder: NodeFolder, fresh: Callable[[], None]) -> None:
    one, two = runs(folder)
    alone = [[train(node, run, number) for number in (1, 2)] for node, run in ((one, ONE), (two, TWO))]
    fresh()
    one, two = runs(folder)
    in_turn = [(train(one, ONE, number), train(two, TWO, number)) for number in (1, 2)]
    assert [list(answers) for answers in zip(*in_turn, strict=True)] == alone
    assert len({*alone[0], *alone[1]}) == 4


def test_a_run_that_takes_the_id_of_another_gets_none_of_its_private_parts(
    folder: NodeFolder, fresh: Callable[[], None]
) -> None:
    """It shares what the other one keeps at the node, under the same names."""
    wanted = train(runs(folder)[1], ONE, 2)
    assert len(wanted) == 64, wanted
    fresh()
    one, two = runs(folder)
    train(one, ONE, 1)
    assert any(state_folder.state_dir().glob(f"*/run-{ONE}/round-00001-*"))
    assert train(two, ONE, 2) == wanted
    assert train(two, ONE, 2, **{names.MEMORY_ROUND: 1}) == wanted


def test_a_message_that_comes_twice_tells_nothing_new(folder: NodeFolder, fresh: Callable[[], None]) -> None:
    """The same work gives the same bits; where noise is drawn anew, the second one is refused."""
    one, _ = runs(folder)
    first = train(one, ONE, 1)
    assert train(one, ONE, 1) == first and len(first) == 64, first
    noised = AppOfNode(folder, f"{TINY} privacy.name=local-dp privacy.epsilon=5 model.name=cnn")
    train(noised, TWO, 1)
    assert "a round's update leaves a node once" in train(noised, TWO, 1)


@pytest.mark.parametrize("kind", [MessageType.TRAIN, MessageType.EVALUATE])
def test_nothing_leaves_that_was_worked_on_while_the_owner_stopped_the_node(
    kind: str, folder: NodeFolder, fresh: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is switched off when its work is done, and its answer not yet on its way."""
    node = AppOfNode(folder, f"{TINY} model.name=cnn")
    name = "train" if kind == MessageType.TRAIN else "scores"
    work = getattr(DomainClient, name)

    def stopped(self: Any, *given: Any) -> Any:
        done = work(self, *given)
        own = state_folder.own_folder(node.context.node_config)
        assert own is not None
        chained_log.switch_off(own)  # as `fedshift site stop` does first
        return done

    monkeypatch.setattr(DomainClient, name, stopped)
    asked = {names.DOMAINS: ["scan"]} if kind == MessageType.EVALUATE else {}
    reply = node.ask(kind, 1, **asked)
    assert reply.has_error() and reply.error.reason == out_log.SWITCHED_OFF
    assert node.ask(MessageType.QUERY).error.reason == out_log.SWITCHED_OFF

"""A server sends messages of two runs in turn, or while the owner stops the node: none tells of another."""

import itertools
from typing import Any

import pytest
from flwr.app import MessageType
from real_node import AppOfNode

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import chained_log, out_log, state_folder
from fedshift_clients.base import DomainClient
from fedshift_core.arrays import digest
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

TINY = "dataset.domains=[scan,sketch] model.name=cnn_bn"
ONE, TWO = "1" * 32, "2" * 32


def train(node: AppOfNode, run_id: str, server_round: int, **more: Any) -> str:
    """Return the hash of what a node answers, or its reason."""
    reply = node.ask(MessageType.TRAIN, server_round, **{names.RUN_ID: run_id}, **more)
    if reply.has_error():
        return str(reply.error.reason)
    arrays = reply.content.array_records
    return digest(decode(arrays["arrays"]) | decode(arrays["knowledge"]))


@pytest.fixture
def runs(folder: NodeFolder, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives a node in each of two runs, with an empty folder for what both remember.

    As Flower's SuperNode has them, with a state of its own for each; the first run's BatchNorm stays at the node.
    """
    numbers = itertools.count()

    def new() -> tuple[AppOfNode, AppOfNode]:
        monkeypatch.setenv(state_folder.STATE_DIR, str(folder.path.parent / f"state-{next(numbers)}"))
        return AppOfNode(folder, f"{TINY} model.bn=local", "fedproto"), AppOfNode(folder, TINY)

    return new


def test_two_runs_in_turn_have_the_answers_of_each_alone(runs: Any) -> None:
    alone = [[train(node, run, number) for number in (1, 2)] for node, run in zip(runs(), (ONE, TWO), strict=True)]
    one, two = runs()
    in_turn = [(train(one, ONE, number), train(two, TWO, number)) for number in (1, 2)]
    assert [list(answers) for answers in zip(*in_turn, strict=True)] == alone
    assert len({*alone[0], *alone[1]}) == 4 and train(one, ONE, 2) == alone[0][1]  # the same work, the same bits


def test_a_run_that_takes_the_id_of_another_gets_none_of_its_private_parts(runs: Any) -> None:
    """It shares what the other one keeps at the node, under the same names."""
    wanted = train(runs()[1], ONE, 2)
    assert len(wanted) == 64, wanted
    one, two = runs()
    train(one, ONE, 1)
    assert any(state_folder.state_dir().glob(f"*/run-{ONE}/round-00001-*"))
    assert train(two, ONE, 2) == wanted
    assert train(two, ONE, 2, **{names.MEMORY_ROUND: 1}) == wanted


@pytest.mark.parametrize(("kind", "name"), [(MessageType.TRAIN, "train"), (MessageType.EVALUATE, "scores")])
def test_nothing_leaves_that_was_worked_on_while_the_owner_stopped_the_node(
    kind: str, name: str, folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is switched off when its work is done, and its answer not yet on its way."""
    node = AppOfNode(folder, "model.name=cnn")
    work = getattr(DomainClient, name)

    def stopped(self: Any, *given: Any) -> Any:
        done, own = work(self, *given), state_folder.own_folder(node.context.node_config)
        assert own is not None
        chained_log.switch_off(own)  # as `fedshift site stop` does first
        return done

    monkeypatch.setattr(DomainClient, name, stopped)
    reply = node.ask(kind, 1, **({names.DOMAINS: ["scan"]} if kind == MessageType.EVALUATE else {}))
    assert reply.error.reason == node.ask(MessageType.QUERY).error.reason == out_log.SWITCHED_OFF

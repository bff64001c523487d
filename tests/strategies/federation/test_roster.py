"""Who takes part, and in which order: by partition id, else by domain; never by arrival."""

import math
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from refusals import refused, worded
from support import public_set_feature

from fedshift_app.flower.internals import identify_process
from fedshift_core.errors import FederationError
from fedshift_strategies.federation.roster import Roster

DOMAINS = ("scan", "texture", "street")


class FakeGrid:
    """Nodes that answer a question about themselves; more may come and go."""

    def __init__(self, **nodes: Any) -> None:
        identify_process()
        self.nodes: dict[int, Any] = {int(key[1:]): value for key, value in nodes.items()}
        self.questions = 0

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        requests = list(messages)
        self.questions += len(requests)
        return [self._reply(message) for message in reversed(requests)]

    def _reply(self, message: Message) -> Message:
        result = self.nodes[message.metadata.dst_node_id]
        if isinstance(result, str):
            return Message(Error(code=2, reason=result), reply_to=message)
        domain, partition_id, *changes = result
        numbers = {
            "class-counts": [3, 4], "num-test": 5, "shared-test": 0,
            "partition-id": partition_id, "num-partitions": -1,
        } | dict(*changes)  # fmt: skip
        return Message(
            RecordDict({"config": ConfigRecord({"domain": domain}), "metrics": MetricRecord(numbers)}), reply_to=message
        )


def gathered(grid: FakeGrid, at_least: int = 1, engine: str = "deployment") -> Roster:
    roster = Roster(DOMAINS, engine, "{}", 2, public_set_feature())
    roster.gather(grid, at_least, timeout=0.05)  # type: ignore[arg-type]
    return roster


def two() -> FakeGrid:
    return FakeGrid(n5=("scan", 0), n6=("texture", 1))


def test_a_node_of_a_held_out_domain_takes_no_part(caplog: pytest.LogCaptureFixture) -> None:
    """Else it would be trained on, and its score filed as that of an unseen domain."""
    roster = Roster(DOMAINS, "deployment", "{}", 2, public_set_feature(), held_out=("street",))
    roster.gather(FakeGrid(n7=("scan", 0), n9=("street", 1)), 1, timeout=0.05)  # type: ignore[arg-type]
    assert order(roster) == [(0, "scan", 7)]
    assert "allocation.held_out" in caplog.text


def online(roster: Roster, grid: FakeGrid) -> list[tuple[int, int]]:
    return [(node.index, node.node_id) for node in roster.online(grid, timeout=0.05)]  # type: ignore[arg-type]


def order(roster: Roster) -> list[tuple[int, str, int]]:
    return [(node.index, node.domain, node.node_id) for node in roster.nodes]


def test_a_node_that_returns_before_flower_misses_it_takes_its_place_and_the_old_id_is_not_asked_again() -> None:
    grid = two()
    roster = gathered(grid)
    grid.nodes[50] = ("scan", 0)  # 5 was killed, and counts as connected for a minute
    for _ in range(2):
        assert online(roster, grid) == [(0, 50), (1, 6)]
    assert grid.questions == 3


def test_without_partition_ids_a_node_that_returns_waits_for_its_place_and_takes_it() -> None:
    grid = FakeGrid(n5=("scan", -1), n6=("texture", -1))
    roster = gathered(grid)
    grid.nodes[50] = ("scan", -1)  # 5 was killed, and counts as connected for a while
    assert online(roster, grid) == [(0, 5), (1, 6)]
    del grid.nodes[5]
    assert online(roster, grid) == [(0, 50), (1, 6)]
    grid.nodes[7] = ("street", -1)
    del grid.nodes[50]
    grid.nodes[51] = ("scan", -1)
    assert online(roster, grid) == [(0, 51), (1, 6), (2, 7)]


def test_another_node_that_asks_for_a_taken_place_waits_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    grid = two()
    roster = gathered(grid)
    grid.nodes[7] = ("street", 0)
    for _ in range(2):
        assert online(roster, grid) == [(0, 5), (1, 6)]
    worded(*caplog.messages, "partition-id 0", "scan", "street")
    del grid.nodes[5]
    assert online(roster, grid) == [(0, 7), (1, 6)]


def test_a_round_waits_for_nodes_with_a_message_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    grid = two()
    roster = gathered(grid)
    del grid.nodes[5]
    with refused(FederationError, 1, 2, "federation.min_nodes"):
        roster.wait_for(grid, 2, timeout=0.3)  # type: ignore[arg-type]
    (message,) = caplog.messages
    worded(message, 1, 2, "federation.min_nodes")
    grid.nodes[8] = ("scan", 0)
    assert len(roster.wait_for(grid, 2, timeout=0.3)) == 2  # type: ignore[arg-type]


def test_a_killed_node_for_which_superlink_answers_is_not_there() -> None:
    class Grid(FakeGrid):
        def _reply(self, message: Message) -> Message:
            reply = super()._reply(message)
            if message.metadata.dst_node_id == 9:
                vars(reply.metadata)["_src_node_id"] = 1  # of SuperLink itself
            return reply

    assert order(gathered(Grid(n5=("scan", 0), n9="Node Unavailable"))) == [(0, "scan", 5)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"class-counts": [3, 4, 5]}, "3 2"),
        ({"class-counts": 3}, "training images"),
        ({"class-counts": [0, 0]}, "0"),
        ({"class-counts": [3, -4]}, "class-counts -4"),
        ({"num-test": math.nan}, "num-test nan"),
        ({"partition-id": 10**9}, "partition-id 1e+09"),
        ({"shared-test": 1}, "test sets"),
        ({"unheld-test/photo": 1}, "unheld-test/photo"),
        ({"num-validation": -1}, "num-validation -1"),
        ({"fastest": 4}, "fastest 4"),
        ({"\x1b[2J": 1}, " [2J"),
        ({"x" * 5_000_000: 1}, "xxx"),
        ({f"n{i}": i for i in range(20_000)}, "20005"),
        ({"class-counts": list(range(1_000_000))}, "1000000 2"),
    ],
)
def test_a_node_that_says_nonsense_of_itself_is_left_out_and_the_others_start(
    change: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    roster = gathered(FakeGrid(n5=("scan", 0, change), n6=("texture", 1)))
    assert order(roster) == [(1, "texture", 6)]
    (record,) = caplog.records
    assert vars(record)["event"] == "refused_node"
    worded(caplog.messages[0], *named.split())
    assert caplog.messages[0].isprintable() and len(caplog.messages[0]) < 300
    # Simulated nodes have one configuration: what is wrong with one is the user's own mistake, and stops the run.
    if "shared-test" not in change:
        with refused(FederationError, *named.split()):
            gathered(FakeGrid(n5=("scan", 0, change), n6=("texture", 1)), engine="simulation")


def test_a_foreign_domain_is_left_out_and_does_not_count() -> None:
    grid = FakeGrid(n5=("\x1b[2J../../" + "x" * 5000, 0), n6=("texture", 1), n7=("street", 2))
    assert order(gathered(grid, at_least=2)) == [(1, "texture", 6), (2, "street", 7)]
    with refused(FederationError, "2 of 3", "federation.node_timeout", " [2J../../xxx") as caught:
        gathered(grid, at_least=3)
    message = str(caught.value)
    assert message.replace("\n", "").isprintable() and len(message) < 400


@pytest.mark.parametrize("first", [5, 7])
def test_of_two_nodes_with_one_partition_id_one_waits(first: int, caplog: pytest.LogCaptureFixture) -> None:
    """The one whose domain comes first in the experiment has the place, whatever the order of arrival."""
    named = "partition-id 1", "scan", "street"
    grid = FakeGrid(**{f"n{first}": ("scan", 1), "n6": ("street", 1), "n8": ("texture", 0)})
    roster = gathered(grid, at_least=2)
    assert order(roster) == [(0, "texture", 8), (1, "scan", first)]
    worded(*caplog.messages, *named)
    assert vars(caplog.records[0])["event"] == "refused_node"
    with refused(FederationError, "2 of 3", *named):
        gathered(grid, at_least=3)
    with refused(FederationError, *named):
        gathered(grid, engine="simulation")
    del grid.nodes[first]
    assert online(roster, grid) == [(0, 8), (1, 6)]


def test_an_error_tells_two_of_many_reasons_and_the_number_of_nodes() -> None:
    nodes = {f"n{number}": f"reason {number} " + "x" * 9000 for number in range(10, 60)}
    with refused(FederationError, "0 of 1", 50, 19) as caught:
        gathered(FakeGrid(**nodes))
    assert len(str(caught.value)) < 1300
    with refused(FederationError, "2 of 3", "federation.min_nodes"):
        gathered(two(), at_least=3)


def test_problems_before_the_first_round_are_reported_each_once(caplog: pytest.LogCaptureFixture) -> None:
    nodes: dict[str, Any] = {"n5": "no images", "n6": "no images", "n7": ("scan", 0), "n8": "bad labels"}
    with pytest.raises(FederationError, match=r"^bad labels\nno images$"):
        gathered(FakeGrid(**nodes), engine="simulation")
    grid = FakeGrid(**nodes)
    roster = gathered(grid)
    assert order(roster) == [(0, "scan", 7)]
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["bad labels", "no images"]
    assert caplog.messages[1].startswith("2 nodes")
    grid.nodes[9] = "gone"
    for _ in range(2):
        assert online(roster, grid) == [(0, 7)]
    assert grid.questions == 5  # none is asked again

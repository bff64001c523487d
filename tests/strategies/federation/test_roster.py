"""Who takes part, and in which order: by partition id, else by domain; never by arrival."""

import math
import re
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from support import public_set_feature

from fedshift_app.flower.internals import identify_process
from fedshift_core.errors import FederationError
from fedshift_strategies.federation.roster import MOST_ASKED, Roster

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


def test_a_node_of_a_held_out_domain_takes_no_part(caplog: pytest.LogCaptureFixture) -> None:
    """Else it would be trained on, and its score filed as that of an unseen domain."""
    roster = Roster(DOMAINS, "deployment", "{}", 2, public_set_feature(), held_out=("street",))
    with caplog.at_level("WARNING", "fedshift"):
        roster.gather(FakeGrid(n7=("scan", 0), n9=("street", 1)), 1, timeout=0.05)  # type: ignore[arg-type]
    assert order(roster) == [(0, "scan", 7)]
    assert "it holds 'street', which allocation.held_out keeps from all nodes" in caplog.text


def order(roster: Roster) -> list[tuple[int, str, int]]:
    return [(node.index, node.domain, node.node_id) for node in roster.nodes]


def test_partition_ids_are_the_order_whatever_the_node_ids() -> None:
    roster = gathered(FakeGrid(n7=("scan", 2), n9=("street", 0), n3=("texture", 1)))
    assert order(roster) == [(0, "street", 9), (1, "texture", 3), (2, "scan", 7)]
    assert [node.num_examples for node in roster.nodes] == [7, 7, 7]


def test_without_partition_ids_domains_are_the_order() -> None:
    roster = gathered(FakeGrid(n1=("street", -1), n5=("scan", -1), n2=("scan", -1), n8=("texture", -1)))
    assert order(roster) == [(0, "scan", 2), (1, "scan", 5), (2, "texture", 8), (3, "street", 1)]


def test_nodes_tell_what_trains_fastest_on_their_machines() -> None:
    roster = gathered(FakeGrid(n7=("scan", 2, {"fastest": 1}), n9=("street", 0, {"fastest": 0}), n3=("texture", 1)))
    assert roster.fastest == {7: "float32/nchw", 9: "float32/channels_last"}


def test_each_node_is_asked_once_and_newcomers_come_last() -> None:
    grid = FakeGrid(n5=("street", -1), n6=("texture", -1))
    roster = gathered(grid)
    grid.nodes[1] = ("scan", -1)
    for _ in range(3):
        online = roster.online(grid, timeout=1)  # type: ignore[arg-type]
    assert grid.questions == 3
    assert [(node.index, node.domain) for node in online] == [(0, "texture"), (1, "street"), (2, "scan")]


def test_a_node_that_returns_under_a_new_id_takes_its_place() -> None:
    grid = FakeGrid(n5=("scan", 0), n6=("texture", 1))
    roster = gathered(grid)
    del grid.nodes[5]
    assert [node.index for node in roster.online(grid, timeout=1)] == [1]  # type: ignore[arg-type]
    grid.nodes[50] = ("scan", 0)
    assert [(n.index, n.node_id) for n in roster.online(grid, timeout=1)] == [(0, 50), (1, 6)]  # type: ignore[arg-type]


def test_a_node_that_returns_before_flower_misses_it_takes_its_place_and_the_old_id_is_not_asked_again() -> None:
    grid = FakeGrid(n5=("scan", 0), n6=("texture", 1))
    roster = gathered(grid)
    grid.nodes[50] = ("scan", 0)  # 5 was killed, and counts as connected for a minute
    for _ in range(2):
        assert [(n.index, n.node_id) for n in roster.online(grid, timeout=1)] == [(0, 50), (1, 6)]  # type: ignore[arg-type]
    assert grid.questions == 3


def test_without_partition_ids_a_node_that_returns_waits_for_its_place_and_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    grid = FakeGrid(n5=("scan", -1), n6=("texture", -1))
    roster = gathered(grid)
    grid.nodes[50] = ("scan", -1)  # 5 was killed, and counts as connected for a while
    with caplog.at_level("WARNING", "fedshift"):
        assert [n.node_id for n in roster.online(grid, timeout=1)] == [5, 6]  # type: ignore[arg-type]
    assert "announces the same images as node 0 (scan), which is connected" in caplog.text
    del grid.nodes[5]
    assert [(n.index, n.node_id) for n in roster.online(grid, timeout=0)] == [(0, 50), (1, 6)]  # type: ignore[arg-type]
    grid.nodes[7] = ("street", -1)
    del grid.nodes[50]
    grid.nodes[51] = ("scan", -1)
    assert [(n.index, n.node_id) for n in roster.online(grid, timeout=0)] == [(0, 51), (1, 6), (2, 7)]  # type: ignore[arg-type]


def test_a_run_that_goes_on_expects_the_nodes_of_before() -> None:
    grid = FakeGrid(n5=("scan", 0), n6=("texture", 1))
    before = gathered(grid).nodes
    del grid.nodes[6]
    roster = gathered(grid)
    roster.expect(before)
    assert [n.index for n in roster.online(grid, timeout=1)] == [0]  # type: ignore[arg-type]
    assert [str(n) for n in roster.nodes] == ["node 0 (scan)", "node 1 (texture)"]
    assert roster.why_absent(roster.nodes[1]) == "it is not connected"
    grid.nodes[60] = ("texture", 1)
    assert [(n.index, n.node_id) for n in roster.online(grid, timeout=1)] == [(0, 5), (1, 60)]  # type: ignore[arg-type]


def test_another_node_that_asks_for_a_taken_place_waits_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(n5=("scan", 0), n6=("texture", 1))
    roster = gathered(grid)
    grid.nodes[7] = ("street", 0)
    with caplog.at_level("WARNING", "fedshift"):
        for _ in range(2):
            assert [n.node_id for n in roster.online(grid, timeout=1)] == [5, 6]  # type: ignore[arg-type]
    assert [node.node_id for node in roster.nodes] == [5, 6]
    assert len(caplog.records) == 1
    assert "two nodes have partition-id 0: one holds 'scan', the other 'street'" in caplog.text
    del grid.nodes[5]
    assert [n.node_id for n in roster.online(grid, timeout=1)] == [7, 6]  # type: ignore[arg-type]


def test_a_round_waits_for_nodes_with_a_message_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(n5=("scan", 0), n6=("texture", 1))
    roster = gathered(grid)
    del grid.nodes[5]
    with (
        caplog.at_level("WARNING", "fedshift"),
        pytest.raises(FederationError, match=r"1 of at least 2 nodes \(federation.min_nodes\) were connected for 0 s"),
    ):
        roster.wait_for(grid, 2, timeout=0.3)  # type: ignore[arg-type]
    assert caplog.messages == [
        "waiting for nodes: 1 of at least 2 (federation.min_nodes) are connected; the run ends in 0 s"
    ]

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
    ("change", "message"),
    [
        ({"class-counts": [3, 4, 5]}, "announces training images of 3 classes, expected are 2 classes"),
        ({"class-counts": 3}, "announces training images of no list"),
        ({"class-counts": [0, 0]}, "announces 0 training images"),
        ({"class-counts": [3, -4]}, "class-counts is -4, expected a whole number from 0 to"),
        ({"class-counts": [3.0, math.inf]}, "class-counts is inf"),
        ({"num-test": math.nan}, "num-test is nan"),
        ({"num-test": 10**15}, r"num-test is 1e\+15"),
        ({"partition-id": 10**9}, r"partition-id is 1e\+09, expected a whole number from -1 to 1000000"),
        ({"shared-test": 1}, "sees whole test sets, which only simulated nodes do"),
        ({"unheld-test/photo": 1}, "unknown metric 'unheld-test/photo'"),
        ({"num-validation": -1}, "num-validation is -1"),
        ({"fastest": 4}, "fastest is 4, expected a whole number from 0 to 3"),
        ({"fastest": -1}, "fastest is -1"),
        ({"\x1b[2J": 1}, r"unknown metric ' \[2J'"),
        ({"x" * 5_000_000: 1}, "unknown metric 'xxx"),
        ({f"n{i}": i for i in range(20_000)}, "20005 metrics, allowed are 1000"),
        ({"class-counts": list(range(1_000_000))}, "training images of 1000000 classes, expected are 2"),
        ({"num-test": list(range(1_000_000))}, "num-test is a list"),
    ],
)
def test_a_node_that_says_nonsense_of_itself_is_left_out_and_the_others_start(
    change: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", "fedshift"):
        roster = gathered(FakeGrid(n5=("scan", 0, change), n6=("texture", 1)))
    assert order(roster) == [(1, "texture", 6)]
    (record,) = caplog.records
    assert vars(record)["event"] == "refused_node"
    assert re.search(message, caplog.messages[0])
    assert caplog.messages[0].startswith("a node cannot take part, the others go on: ")
    assert caplog.messages[0].isprintable() and len(caplog.messages[0]) < 300
    # Simulated nodes have one configuration: what is wrong with one is the user's own mistake, and stops the run.
    if "shared-test" not in change:
        with pytest.raises(FederationError, match=message):
            gathered(FakeGrid(n5=("scan", 0, change), n6=("texture", 1)), engine="simulation")


def test_a_foreign_domain_is_left_out_and_does_not_count() -> None:
    grid = FakeGrid(n5=("\x1b[2J../../" + "x" * 5000, 0), n6=("texture", 1), n7=("street", 2))
    assert order(gathered(grid, at_least=2)) == [(1, "texture", 6), (2, "street", 7)]
    with pytest.raises(FederationError) as caught:
        gathered(grid, at_least=3)
    message = str(caught.value)
    assert message.startswith(
        "2 of 3 nodes that can take part answered within 0 s (federation.node_timeout), 1 was refused:\n"
        "a node says that its domain is ' [2J../../xxx"
    )
    assert message.replace("\n", "").isprintable() and len(message) < 400


@pytest.mark.parametrize("first", [5, 7])
def test_of_two_nodes_with_one_partition_id_one_waits(first: int, caplog: pytest.LogCaptureFixture) -> None:
    """The one whose domain comes first in the experiment has the place, whatever the order of arrival."""
    grid = FakeGrid(**{f"n{first}": ("scan", 1), "n6": ("street", 1), "n8": ("texture", 0)})
    with caplog.at_level("WARNING", "fedshift"):
        roster = gathered(grid, at_least=2)
    assert order(roster) == [(0, "texture", 8), (1, "scan", first)]
    assert caplog.messages == [
        "a node cannot take part: two nodes have partition-id 1: one holds 'scan', the other 'street', which waits"
    ]
    assert vars(caplog.records[0])["event"] == "refused_node"
    with pytest.raises(
        FederationError, match=r"2 of 3 nodes that can take part .* 1 was refused:\ntwo nodes have part"
    ):
        gathered(grid, at_least=3)
    with pytest.raises(FederationError, match=r"^two nodes have partition-id 1: one holds 'scan', the other 'street'"):
        gathered(grid, engine="simulation")
    del grid.nodes[first]
    assert [n.node_id for n in roster.online(grid, timeout=1)] == [8, 6]  # type: ignore[arg-type]


def test_an_error_tells_two_of_many_reasons_and_the_number_of_nodes() -> None:
    nodes = {f"n{number}": f"reason {number} " + "x" * 9000 for number in range(10, 60)}
    with pytest.raises(FederationError) as caught:
        gathered(FakeGrid(**nodes))
    message = str(caught.value)
    assert (
        "0 of 1 node that can take part" in message and ", 50 were refused:\n" in message and "(and 19 more)" in message
    )
    assert len(message) < 1300


def test_too_few_nodes_end_in_an_error_with_the_numbers() -> None:
    with pytest.raises(FederationError, match="2 of 3 nodes answered within 0 s"):
        gathered(FakeGrid(n5=("scan", 0), n6=("texture", 1)), at_least=3)


def test_problems_before_the_first_round_are_reported_each_once(caplog: pytest.LogCaptureFixture) -> None:
    nodes: dict[str, Any] = {"n5": "no images", "n6": "no images", "n7": ("scan", 0), "n8": "bad labels"}
    with pytest.raises(FederationError) as caught:
        gathered(FakeGrid(**nodes), engine="simulation")
    assert str(caught.value) == "bad labels\nno images"
    with caplog.at_level("WARNING", "fedshift"):
        assert order(gathered(FakeGrid(**nodes))) == [(0, "scan", 7)]
    assert caplog.messages == [
        "a node cannot take part, the others go on: bad labels",
        "2 nodes cannot take part, the others go on: no images",
    ]


def test_a_newcomer_with_a_problem_does_not_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    grid = FakeGrid(n5=("scan", 0))
    roster = gathered(grid)
    grid.nodes[6] = "no images"
    assert [node.node_id for node in roster.online(grid, timeout=1)] == [5]  # type: ignore[arg-type]
    assert [node.node_id for node in roster.online(grid, timeout=1)] == [5]  # type: ignore[arg-type]
    assert grid.questions == 2


def test_an_unknown_domain_is_refused() -> None:
    with pytest.raises(FederationError, match="domain is 'photo'; allowed are scan, texture, street"):
        gathered(FakeGrid(n5=("photo", 0)))


def test_domains_that_no_node_holds_come_with_their_number_of_test_images() -> None:
    class Grid(FakeGrid):
        def _reply(self, message: Message) -> Message:
            reply = super()._reply(message)
            reply.content.metric_records["metrics"]["unheld-test/street"] = 12
            return reply

    (node,) = gathered(Grid(n7=("scan", 0))).nodes
    assert [node.tests_of(domain) for domain in DOMAINS] == [5, 0, 12]


def test_a_thousand_nodes_without_a_number_get_their_places_in_order() -> None:
    grid = FakeGrid(**{f"n{number}": (DOMAINS[number % 3], -1) for number in range(1, 1001)})
    roster = gathered(grid)
    assert [node.index for node in roster.nodes] == list(range(1000))
    assert [node.domain for node in roster.nodes] == sorted(
        (DOMAINS[number % 3] for number in range(1, 1001)), key=DOMAINS.index
    )


def test_very_many_simulated_nodes_are_asked_in_parts_and_get_the_same_places() -> None:
    number = 2 * MOST_ASKED + 3
    asked: list[int] = []

    class Counting(FakeGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
            asked.append(len(messages))
            return super().send_and_receive(messages, timeout=timeout)

    grid = Counting()
    grid.nodes = {7 * i: (DOMAINS[i % 3], number - 1 - i, {"shared-test": 1}) for i in range(number)}
    roster = gathered(grid, engine="simulation")
    assert asked == [MOST_ASKED, MOST_ASKED, 3]
    assert [node.index for node in roster.nodes] == list(range(number))
    assert [node.node_id for node in roster.nodes] == [7 * (number - 1 - i) for i in range(number)]
    assert {id(node.domain) for node in roster.nodes} == {id(domain) for domain in DOMAINS}
    assert roster.nodes is roster.nodes
    roster.online(grid, 0.05)  # type: ignore[arg-type]
    assert len(asked) == 3


def test_the_order_of_nodes_is_made_anew_when_one_comes() -> None:
    grid = FakeGrid(n5=("street", 4), n6=("texture", 2))
    roster = gathered(grid, 2)
    before, most = roster.nodes, roster.most_images
    grid.nodes[9] = ("scan", 3, {"class-counts": [30, 40]})
    roster.online(grid, 0.05)  # type: ignore[arg-type]
    assert [node.index for node in before] == [2, 4]
    assert [node.index for node in roster.nodes] == [2, 3, 4]
    roster.max_images = 2
    assert (most, roster.most_images) == (math.inf, 14)

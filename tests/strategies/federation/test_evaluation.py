"""Who evaluates which domain, in simulation, in a deployment, with personal models, and held out."""

from itertools import pairwise
from typing import Any

import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from refusals import worded
from support import node as node_of
from support import scored_round, server_feature

from fedshift_app.features.validation.server import Validation
from fedshift_app.flower.internals import identify_process
from fedshift_strategies.features.base import Scoring
from fedshift_strategies.features.catalog import Around
from fedshift_strategies.federation.evaluation import MIN_BATCHES, Evaluation, Questions, divide
from fedshift_strategies.federation.roster import Node

DOMAINS = ("scan", "texture")


def nodes(*domains: str, shared: bool = True, num_test: int = 9) -> list[Node]:
    unheld = tuple((domain, num_test) for domain in DOMAINS if shared and domain not in domains)
    fields: dict[str, Any] = {"shared_test": shared, "unheld_tests": unheld}
    return [node_of(i, (5,), domain, num_test, **fields) for i, domain in enumerate(domains)]


def validated(nodes: list[Node], **more: Any) -> tuple[Evaluation, Around, Scoring]:
    """Return an evaluation with validation parts, and what goes on around it."""
    feature = server_feature(Validation, domains=DOMAINS, validation_fraction=0.1)
    return scored_round(feature, DOMAINS, nodes, **more)


def places(questions: Questions) -> dict[int, list[tuple[int, int]]]:
    return {node.index: [(part.start, part.stop) for part in parts] for node, parts in questions.items()}


def reply(node: Node, **values: Any) -> Message:
    """Return an answer; an error where it has no values."""
    identify_process()
    question = Message(RecordDict({"arrays": ArrayRecord()}), node.node_id, "evaluate")
    if not values:
        return Message(Error(code=2, reason="broken"), reply_to=question)
    return Message(RecordDict({"metrics": MetricRecord(values)}), reply_to=question)


def scores(domain: str, correct: int, count: int) -> dict[str, Any]:
    """Return what a node says of a domain's test images; a loss of 0.5 each."""
    return {f"correct/{domain}": correct, f"count/{domain}": count, f"loss-sum/{domain}": 0.5 * count}


THREE, TWO = ("scan", "texture", "scan"), ("scan", "scan")
REAL = {"shared": False}


@pytest.mark.parametrize(
    ("domains", "of", "how", "asked"),
    [
        (THREE, {}, "", "0 scan, 1 texture"),  # in simulation one node scores a small test set
        (THREE, REAL, "", "0 scan, 1 texture, 2 scan"),  # each its own part
        (THREE, {}, "personal", "0 scan, 1 texture, 2 scan"),
        (THREE, {}, "own_tests", "0 scan, 1 texture, 2 scan"),
        (THREE, {}, "personal silent", "0 scan, 2 scan"),  # a silent node's domain is nobody else's
        (THREE, {}, "personal everywhere silent", "0 scan, 0 texture, 2 scan, 2 texture"),
        (TWO, {}, "", "0 scan, 1 texture"),  # a domain that is held out goes to one node
        (TWO, {}, "personal", "0 scan, 0 texture, 1 scan, 1 texture"),  # or to all
        (TWO, {}, "own_tests", "0 scan, 0 texture, 1 scan, 1 texture"),
        (("scan",), REAL, "", "0 scan"),  # a real node is never asked for a foreign domain
        (("scan",), {**REAL, "num_test": 0}, "", ""),
    ],
)
def test_who_is_asked_for_which_domain(domains: tuple[str, ...], of: dict[str, Any], how: str, asked: str) -> None:
    ways: dict[str, Any] = {"personal": False} | dict.fromkeys(how.split(), True)
    ways |= {"silent": {1}} if "silent" in how else {}
    questions = Evaluation(DOMAINS, nodes(*domains, **of), **ways).first()
    found = sorted(f"{node.index} {part.domain}" for node, parts in questions.items() for part in parts)
    assert ", ".join(found) == asked


@pytest.mark.parametrize("trained_only", [True, False])
def test_a_node_that_lost_its_own_parts_is_scored_only_if_that_counts(trained_only: bool) -> None:
    two = nodes(*TWO)
    evaluation = Evaluation(("scan",), two, personal=True, trained_only=trained_only)
    evaluation.first()
    heard: list[int] = []
    lost = scores("scan", 0, 9) | {"started-anew": 1}
    answers = [reply(two[0], **lost), reply(two[1], **scores("scan", 9, 9))]
    assert evaluation.read(answers, lambda node, metrics: heard.append(node.index)) == []
    assert heard == [0, 1]
    assert evaluation.replacements() == {}
    assert evaluation.tally().accuracy() == {"scan": 100.0 if trained_only else 50.0}


def test_a_failing_node_is_replaced_until_nobody_is_left() -> None:
    three = nodes(*THREE)
    evaluation = Evaluation(DOMAINS, three, personal=False)
    evaluation.first()
    good = reply(three[1], **scores("texture", 1, 9))
    assert evaluation.read([reply(three[0]), good]) == [(three[0], "broken")]
    assert places(evaluation.replacements()) == {2: [(0, 9)]}
    assert evaluation.read([]) == [(three[2], "no answer in time")]
    assert evaluation.replacements() == {}
    assert evaluation.tally().accuracy() == {"scan": None, "texture": pytest.approx(100 / 9)}


# --- one test set, many nodes ------------------------------------------------------------------------

LARGE = 2 * MIN_BATCHES * 4  # images of a test set that is worth two parts, in batches of 4


def divided(*domains: str, num_test: int = LARGE, **more: Any) -> tuple[list[Node], Evaluation]:
    some = nodes(*domains, num_test=num_test)
    return some, Evaluation(DOMAINS, some, **{"personal": False, "batch": 4, **more})


def scored(node: Node, domain: str, correct: int = 1, count: int = LARGE // 2) -> Message:
    return reply(node, **scores(domain, correct, count))


FIRST, SECOND, WHOLE = (0, LARGE // 2), (LARGE // 2, LARGE), (0, LARGE)


@pytest.mark.parametrize(
    ("domains", "how", "parts"),
    [
        ((*THREE, "scan"), {}, [[FIRST], [WHOLE], [SECOND], []]),
        (TWO, {}, [[FIRST, SECOND], [SECOND, FIRST]]),  # one that is held out, among all nodes
        (THREE, {"divisible": False}, [[WHOLE], [WHOLE], []]),
        (THREE, {"personal": True}, [[WHOLE]] * 3),
        (THREE, {"own_tests": True}, [[WHOLE]] * 3),
    ],
)
def test_a_large_test_set_is_divided_where_the_parts_add_up(
    domains: tuple[str, ...], how: dict[str, Any], parts: list[list[tuple[int, int]]]
) -> None:
    questions = places(divided(*domains, **how)[1].first())
    assert [questions.get(index, []) for index in range(len(parts))] == parts


def test_each_part_is_tried_with_every_node_once_then_the_domain_is_missing() -> None:
    _, evaluation = divided("scan", "scan", "scan")
    tried: list[tuple[int, int]] = []
    questions = evaluation.first()
    while questions:
        for node, parts in questions.items():
            scan = [part.start for part in parts if part.domain == "scan"]
            assert len(scan) <= 1  # an answer has one place for a domain
            tried += [(node.index, start) for start in scan]
        evaluation.read([scored(node, "texture") for node, parts in questions.items() if parts[0].domain == "texture"])
        questions = evaluation.replacements()
    assert len(tried) == len(set(tried)) >= 3
    assert {index for index, _ in tried} == {0, 1, 2}
    assert evaluation.tally().accuracy()["scan"] is None


# --- what a node may answer --------------------------------------------------------------------------


def answered(lie: dict[str, Any]) -> str:
    """Return why the answer of the only node of scan is refused that changes it so; empty if it is taken."""
    one = nodes("scan", shared=False)
    evaluation = Evaluation(DOMAINS, one, personal=False, scores=("global",))
    evaluation.first()
    heard: list[Node] = []
    right = scores("scan", 3, 9) | {"other-correct/global/scan": 2} | lie
    came = reply(one[0], **{name: value for name, value in right.items() if value is not None})
    problems = evaluation.read([came], lambda node, metrics: heard.append(node))
    accuracy = evaluation.tally().accuracy()["scan"]
    # What is not used is let go.
    assert (accuracy, heard, len(came.content)) == ((None, [], 0) if problems else (100 * 3 / 9, one, 1))
    return problems[0][1] if problems else ""


def test_a_whole_answer_is_taken() -> None:
    assert answered({"num-examples": 9}) == ""
    assert answered({"other-correct/global/scan": None, "seconds/data": 1.0, "process": 3}) == ""


@pytest.mark.parametrize(
    ("lie", "named"),
    [
        ({"count/scan": 8}, "scan 8 9"),
        ({"count/scan": 10**12}, "count/scan 1e+12"),
        ({"correct/scan": 10}, "scan 10 9"),
        ({"correct/scan": -1}, "correct/scan -1"),
        ({"correct/scan": [3]}, "correct/scan"),
        ({"correct/scan": None}, "scan"),
        ({"loss-sum/scan": float("nan")}, "loss-sum/scan nan"),
        ({"other-correct/global/scan": 10}, "other-correct/global/scan 10 9"),
        ({"other-correct/mine/scan": 1}, "other-correct/mine/scan"),
        ({"other-correct/\x1b[2J\nwell/scan": 1}, "other-correct/ [2J well/scan"),
        ({f"other-correct/{i}/scan": 1 for i in range(20_000)}, "20004"),
        ({"correct/texture": 1}, "correct/texture"),
        ({"loss/ce": 1.0}, "loss/ce"),
    ],
)
def test_anything_else_is_refused_whole(lie: dict[str, Any], named: str) -> None:
    result = answered(lie)
    worded(result, *named.split())
    assert result.isprintable() and len(result) < 200


@pytest.mark.parametrize(
    ("announced", "correct", "count", "named"),
    [
        (0, 1, 4, "validation-correct"),
        (4, 4, 4, ""),
        (4, 5, 4, "validation-correct 5"),
        (4, 1, 5, "validation-count is 5"),
    ],
)
def test_a_validation_part_is_as_large_as_was_announced(announced: int, correct: int, count: int, named: str) -> None:
    node = node_of(0, (5,), "scan", 9, shared_test=False, num_validation=announced)
    evaluation, around, scoring = validated([node], personal=False)
    evaluation.first()
    assert around.options(node) == {"validation": True}
    more = {"validation-correct": correct, "validation-count": count, "validation-loss-sum": 6.0}
    problems = evaluation.read([reply(node, **scores("scan", 3, 9), **more)])
    assert [named in why for _, why in problems] == ([True] if named else [])
    around.finish()
    shown = [scoring.result.shown[name]["scan"] for name in ("validation", "validation_loss")]
    # Nothing of it is used.
    assert [*shown, evaluation.tally().accuracy()["scan"]] == ([None] * 3 if named else [100.0, 1.5, 100 / 3])


@given(images=st.integers(1, 5000), batch=st.integers(1, 70), number=st.integers(1, 50))
def test_parts_are_whole_batches_and_cover_every_image_once(images: int, batch: int, number: int) -> None:
    cuts = divide(images, batch, number)
    edges = [0, *(stop for _, stop in cuts)]
    assert cuts == [*pairwise(edges)] and edges[-1] == images
    assert all(start % batch == 0 for start in edges[:-1])
    batches = [-(-(stop - start) // batch) for start, stop in cuts]
    assert len(cuts) <= number and max(batches) - min(batches) <= 1
    assert len(cuts) == 1 or min(batches) >= MIN_BATCHES

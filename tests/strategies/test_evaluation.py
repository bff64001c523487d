"""Who evaluates which domain, in simulation, in a deployment, with personal models, and held out."""

from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedshift_app.flower_internals import identify_process
from strategies.evaluation import Evaluation, Tally
from strategies.roster import Node

DOMAINS = ("scan", "texture")


def nodes(*domains: str, shared: bool = True, num_test: int = 9) -> list[Node]:
    return [Node(100 + i, i, domain, (5,), num_test, shared, i) for i, domain in enumerate(domains)]


def asked(evaluation: Evaluation) -> dict[int, list[str]]:
    return {node.index: domains for node, domains in evaluation.first().items()}


def reply(node: Node, **values: float) -> Message:
    identify_process()
    question = Message(RecordDict({"arrays": ArrayRecord()}), node.node_id, "evaluate")
    if not values:
        return Message(Error(code=2, reason="broken"), reply_to=question)
    named = {name.replace("_", "/", 1): value for name, value in values.items()}
    return Message(RecordDict({"metrics": MetricRecord(named)}), reply_to=question)


def test_in_simulation_one_node_of_each_domain_is_asked() -> None:
    assert asked(Evaluation(DOMAINS, nodes("scan", "texture", "scan"), personal=False)) == {0: ["scan"], 1: ["texture"]}


def test_in_a_deployment_every_node_answers_for_its_own_part() -> None:
    found = asked(Evaluation(DOMAINS, nodes("scan", "texture", "scan", shared=False), personal=False))
    assert found == {0: ["scan"], 1: ["texture"], 2: ["scan"]}


def test_personal_models_are_all_asked() -> None:
    found = asked(Evaluation(DOMAINS, nodes("scan", "texture", "scan"), personal=True))
    assert found == {0: ["scan"], 1: ["texture"], 2: ["scan"]}


def test_nodes_with_test_sets_of_their_own_are_all_asked() -> None:
    found = asked(Evaluation(DOMAINS, nodes("scan", "scan"), personal=False, own_tests=True))
    assert found == {0: ["scan", "texture"], 1: ["scan", "texture"]}
    both = Evaluation(DOMAINS, nodes("scan", "texture", "scan"), personal=False, own_tests=True)
    assert asked(both) == {0: ["scan"], 1: ["texture"], 2: ["scan"]}


def test_a_held_out_domain_goes_to_one_node_or_with_personal_models_to_all() -> None:
    assert asked(Evaluation(DOMAINS, nodes("scan", "scan"), personal=False)) == {0: ["scan"], 1: ["texture"]}
    found = asked(Evaluation(DOMAINS, nodes("scan", "scan"), personal=True))
    assert found == {0: ["scan", "texture"], 1: ["scan", "texture"]}


def test_a_real_node_is_never_asked_for_a_foreign_domain_nor_without_test_images() -> None:
    assert asked(Evaluation(DOMAINS, nodes("scan", shared=False), personal=False)) == {0: ["scan"]}
    assert asked(Evaluation(DOMAINS, nodes("scan", shared=False, num_test=0), personal=False)) == {}


def test_parts_of_a_domain_add_up() -> None:
    both = nodes("scan", "scan", shared=False)
    evaluation, tally = Evaluation(DOMAINS, both, personal=False), Tally(DOMAINS)
    evaluation.first()
    replies = [
        reply(both[0], correct_scan=3, count_scan=10, **{"loss-sum_scan": 4.0}),
        reply(both[1], correct_scan=9, count_scan=10, **{"loss-sum_scan": 2.0}),
    ]
    assert evaluation.read(replies, tally) == []
    assert tally.accuracy() == {"scan": 60.0, "texture": None}
    assert tally.loss() == {"scan": 0.3, "texture": None}
    assert evaluation.replacements(tally) == {}  # nobody holds texture, and no node sees foreign images


def test_a_failing_node_is_replaced_until_nobody_is_left() -> None:
    three = nodes("scan", "texture", "scan")
    evaluation, tally = Evaluation(DOMAINS, three, personal=False), Tally(DOMAINS)
    evaluation.first()
    good = reply(three[1], correct_texture=1, count_texture=4, **{"loss-sum_texture": 4.0})
    assert evaluation.read([reply(three[0]), good], tally) == [(three[0], "broken")]
    assert evaluation.replacements(tally) == {three[2]: ["scan"]}
    assert evaluation.read([], tally) == [(three[2], "no answer in time")]
    assert evaluation.replacements(tally) == {}
    assert tally.accuracy() == {"scan": None, "texture": 25.0}

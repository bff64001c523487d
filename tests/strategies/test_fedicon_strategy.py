"""FedICON on the server: which round trains what, which scalars a node gets, and runs that are too short."""

from typing import Any

import pytest
from refusals import refused
from support import ask, new_strategy, node

from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedicon import FedICONParams
from fedshift_strategies.methods.fedicon import FedICONStrategy

NODE = node(counts=(1, 1), num_test=5)


def strategy(rounds: int = 12, **params: Any) -> FedICONStrategy:
    return new_strategy(FedICONStrategy, classes=2, personal=True, rounds=rounds, **params)


def phases(server: FedICONStrategy) -> list[int]:
    """The scalars of a node in each round of the run: 1 for the classifier."""
    values = [server.tell(NODE, ask(server_round)) for server_round in range(1, server.federation.rounds + 1)]
    assert all(set(value) == {"phase"} for value in values)
    return [["encoder", "classifier"].index(str(value["phase"])) for value in values]


@pytest.mark.parametrize("training", ["federated_personal", "federated"])
@pytest.mark.parametrize(("rounds", "last"), [(12, 10), (2, 1), (20, 5)])
def test_last_rounds_train_the_classifier(training: str, rounds: int, last: int) -> None:
    server = strategy(rounds, classifier_training=training, classifier_rounds=last)
    expected = [0] * (rounds - last) + [1] * last
    assert phases(server) == expected
    assert [int(server.scores_round(r)) for r in range(1, rounds + 1)] == expected
    assert server.knowledge == {}  # nothing to remember from round to round: the number of the round says it


@pytest.mark.parametrize(
    "params", [{"classifier_training": "local"}, {"lie": False}, {"lie": False, "classifier_rounds": 99}]
)
def test_without_classifier_rounds_every_round_is_scored_and_nothing_is_sent(params: dict[str, Any]) -> None:
    server = strategy(3, **params)
    for server_round in (1, 2, 3):
        assert server.tell(NODE, ask(server_round)) == server.knowledge_for(NODE, ask(server_round)) == {}
        assert server.scores_round(server_round)


@pytest.mark.parametrize(("rounds", "last"), [(10, 10), (9, 10), (1, 1)])
def test_run_without_encoder_rounds_is_refused(rounds: int, last: int) -> None:
    params = FedICONParams(classifier_rounds=last)
    with refused(ConfigError, f"rounds={rounds}", f"method.classifier_rounds={last}"):
        FedICONStrategy.check_run(params, rounds)
    FedICONStrategy.check_run(params, last + 1)
    FedICONStrategy.check_run(params.model_copy(update={"lie": False}), rounds)
    FedICONStrategy.check_run(params.model_copy(update={"classifier_training": "local"}), rounds)

"""What a node tells of its own images where weights go by generalisation gaps: before and after, and no trace of it."""

from typing import Any

import pytest
from support import fedavg, fit, image_set, same, shared

from clients.base import DomainClient
from fedshift_core.wire.names import DOMAINS, GAP, LOCAL_RECEIVED, LOCAL_TRAINED, SERVER_ROUND


def asked(of: DomainClient, *how: str) -> tuple[list[Any], dict[str, Any]]:
    arrays, _, metrics = of.fit(shared(of), {SERVER_ROUND: 1, GAP: list(how)})
    return arrays, metrics


@pytest.mark.parametrize("where", ["train", "validation"])
def test_both_models_on_its_own_images(where: str) -> None:
    held = image_set(9, seed=5)
    made = fedavg(own_sets={"validation": held}, test_set=lambda domain: image_set() if domain == "train" else held)
    given = shared(made)
    arrays, metrics = asked(made, "loss", where)
    for name, weights in ((LOCAL_RECEIVED, given), (LOCAL_TRAINED, arrays)):
        loss, number, scores = made.evaluate(weights, {SERVER_ROUND: 1, DOMAINS: [where]})
        assert metrics[name] == pytest.approx(loss)
        again = fedavg(own_sets={"validation": held})
        share = again.fit(weights, {SERVER_ROUND: 1, GAP: ["accuracy", where]})[2][LOCAL_RECEIVED]
        assert share == scores[f"correct/{where}"] / number


def test_it_changes_nothing_and_tells_nothing_unasked() -> None:
    (arrays, result), (plain, metrics) = asked(fedavg(model="cnn_bn"), "loss", "train"), fit(fedavg(model="cnn_bn"))
    assert same(arrays, plain)
    assert set(result) - set(metrics) == {LOCAL_RECEIVED, LOCAL_TRAINED}
    assert {name: result[name] for name in metrics} == metrics
    assert set(asked(fedavg(), "loss", "validation")[1]) == set(metrics)  # it has no such part

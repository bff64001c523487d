"""FedProc on a node: both terms and their shares against NumPy, and the way back to FedAvg."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    ROUND,
    C,
    N,
    batch,
    begun,
    check_accepted,
    fit,
    flat_gradients,
    global_prototypes,
    image_set,
    new_client,
    normalised,
)

from fedshift_clients.methods.fedproc import FedProcClient
from fedshift_clients.training.batches import Batch
from fedshift_strategies.methods.fedproc import FedProcStrategy

ALPHA = 0.75
client = partial(new_client, FedProcClient)
known = partial(global_prototypes, (0, 2, 3))  # class 1 has no prototype


def later(params: dict[str, Any] | None = None, alpha: float = ALPHA, **options: Any) -> FedProcClient:
    """A client in a round to which the server sent prototypes and alpha."""
    return client(params, known(), scalars={"alpha": alpha}, **options)


def terms_of(
    params: dict[str, Any] | None = None, alpha: float = ALPHA, given: Batch | None = None
) -> dict[str, tuple[float, NDArray[np.float32]]]:
    """Each term of a batch, and its gradient with respect to all weights."""
    return flat_gradients(begun(later(params, alpha)), given or batch())


# --- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 0.75, 0.01])
@pytest.mark.parametrize("tau", [0.5, 0.1])
def test_both_terms_against_numpy(alpha: float, tau: float) -> None:
    made, given = client({"tau": tau}), batch()
    y, g = given.y.tolist(), known()["prototypes"].astype(np.float64)
    with torch.no_grad():
        z, logits = (part.numpy().astype(np.float64) for part in made.model(given.x))
    contrast, entropy = [], []
    for i in range(len(y)):
        s = [float(z[i] @ row) / float(np.linalg.norm(z[i]) * np.linalg.norm(row)) for row in g]
        place = {0: 0, 2: 1, 3: 2}.get(y[i])  # class 1 has no prototype: left out
        if place is not None:
            contrast.append(-np.log(np.exp(s[place] / tau) / sum(np.exp(v / tau) for v in s)))
        entropy.append(-np.log(np.exp(logits[i][y[i]]) / np.exp(logits[i]).sum()))
    terms = terms_of({"tau": tau}, alpha)
    assert list(terms) == ["ce", "gpc"]
    assert terms["gpc"][0] == pytest.approx(alpha * np.mean(contrast), rel=1e-4)
    assert terms["ce"][0] == pytest.approx((1 - alpha) * np.mean(entropy), rel=1e-4, abs=1e-12)


def test_alpha_moves_weight_from_cross_entropy_to_the_contrast() -> None:
    late, early = terms_of(alpha=0.25), terms_of(alpha=0.75)
    assert early["gpc"][0] == pytest.approx(3 * late["gpc"][0], rel=1e-6)
    assert late["ce"][0] == pytest.approx(3 * early["ce"][0], rel=1e-6)


def test_temperature_changes_the_contrast_only() -> None:
    default, sharp = terms_of(), terms_of({"tau": 0.1})
    assert sharp["ce"][0] == default["ce"][0] and np.array_equal(sharp["ce"][1], default["ce"][1])
    assert sharp["gpc"][0] != default["gpc"][0]


def test_contrast_is_positive_and_moves_the_encoder_only() -> None:
    value, grad = terms_of()["gpc"]
    in_encoder = sum(p.numel() for p in client().model.encoder.parameters())
    assert value > 0
    assert np.isfinite(grad).all() and grad[:in_encoder].any()
    assert not grad[in_encoder:].any()


@pytest.mark.parametrize("y", [(1,), (1, 1, 1), (0,)])
def test_small_batches_and_classes_without_a_prototype(y: tuple[int, ...]) -> None:
    terms = terms_of(given=batch(y=y))
    assert all(np.isfinite(value) and np.isfinite(grad).all() for value, grad in terms.values())
    assert (terms["gpc"][0] > 0) is (y == (0,))


def test_without_prototypes_cross_entropy_has_its_full_weight() -> None:
    assert list(flat_gradients(begun(client()), batch())) == ["ce"]


# --- a round ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("classes", [C - 1, 1])
def test_a_round_contributes_the_class_means(precision: str, classes: int) -> None:
    train_set = image_set(classes=classes)
    made = later(epochs=1, precision=precision, train_set=train_set)
    _, metrics = fit(made, ROUND)
    assert metrics["loss"] == pytest.approx(metrics["loss/ce"] + metrics["loss/gpc"])
    assert all(np.isfinite(value) for value in metrics.values())
    got = made.contribution()
    check_accepted(made, FedProcStrategy)
    assert got["counts"].tolist() == ([7, 7, 6, 0] if classes > 1 else [N, 0, 0, 0])
    with torch.no_grad():
        h = made.forward(normalised(train_set, made.setup.images))[0].numpy()
    tolerance = 1e-4 if precision == "float32" else 2e-2
    np.testing.assert_allclose(got["prototypes"][0], h[train_set.y == 0].mean(axis=0), rtol=tolerance, atol=tolerance)
    assert not got["prototypes"][3].any()

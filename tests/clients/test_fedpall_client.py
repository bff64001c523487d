"""FedPall's client: its classifier, and the mixed and masked features that it sends."""

from typing import Any

import numpy as np
import pytest
import torch
from method_cases import amplified
from support import D, N, begun, fit, new_client, weights

from fedshift_clients.methods.fedpall import FedPallClient
from fedshift_core.arrays import Arrays


def client(params: dict[str, Any] | None = None, **more: Any) -> FedPallClient:
    return new_client(FedPallClient, params, amplified(), **more)


@pytest.mark.parametrize("take", [1.0, 0.25, 0.0])
def test_the_servers_classifier_takes_the_place_of_the_nodes(take: float) -> None:
    made = client({"take": take})
    own = weights(made)
    begun(made)
    now, sent = weights(made), amplified()
    for name in ("weight", "bias"):
        expected = (1 - take) * own[f"classifier.{name}"] + take * sent[f"head/{name}"]
        np.testing.assert_allclose(now[f"classifier.{name}"], expected, rtol=1e-6)
    assert all(np.array_equal(now[name], own[name]) for name in own if not name.startswith("classifier."))


def test_what_a_node_sends_is_mixed_and_masked() -> None:
    """One share and one mask for a round; a class without a prototype is sent as it is; images in their order."""
    made = client()
    fit(made, 2)
    sent = made.contribution()
    made.model.eval()
    with torch.no_grad():
        z = torch.cat([made.forward(x)[0] for x, _ in made.plain_batches(made.train_set)]).numpy()
    mask = (sent["features"] != 0).any(axis=0) | (z == 0).all(axis=0)
    assert (sent["features"] == 0).all(axis=0).sum() >= D - int(0.9 * D)
    y = made.train_set.y
    assert np.array_equal(sent["labels"], y)
    bare = y == 2  # no prototype of it
    np.testing.assert_allclose(
        sent["features"][bare][:, mask], (z * mask)[bare][:, mask] * _kept(sent, z)[mask], rtol=1e-5
    )
    g = dict(zip([0, 1, 3], amplified()["prototypes"], strict=True))
    row, kept = int(np.flatnonzero(y == 1)[0]), np.flatnonzero(_kept(sent, z))
    shares = (sent["features"][row] - g[1])[kept] / (z[row] - g[1])[kept]
    assert np.ptp(shares) < 1e-3
    assert 0.8 <= shares.mean() <= 1.0 and round(float(shares.mean()), 2) == pytest.approx(shares.mean(), abs=1e-4)


def test_mixing_and_mask_are_the_systems_unless_the_run_is_to_be_repeatable() -> None:
    """From the run's seed the server could draw them again, and undo them."""

    def features(**params: Any) -> Any:
        made = client(params)
        fit(made, 2)
        return made.contribution()["features"]

    drawn = [features() for _ in range(4)]
    masks = {tuple((array == 0).all(axis=0)) for array in drawn}
    assert len({array.tobytes() for array in drawn}) == 4
    assert len(masks) > 1
    np.testing.assert_array_equal(features(repeatable_noise=True), features(repeatable_noise=True))


def _kept(sent: Arrays, z: Any) -> Any:
    """Return which dimensions are not masked."""
    return (sent["features"] != 0).any(axis=0)


def test_no_more_features_than_asked_for() -> None:
    made = client({"most_features": 5})
    fit(made)
    assert made.contribution()["features"].shape == (5, D)
    assert made.contribution()["counts"].sum() == N

"""FedPall's client: its classifier, and the mixed and masked features that it sends."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from method_cases import amplified
from support import D, N, begun, features_of, fit, new_client, normalised, weights

from fedshift_clients.methods.fedpall import FedPallClient

client = partial(new_client, FedPallClient, knowledge=amplified())


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
    sent, images = made.contribution(), made.train_set
    z, y = features_of(made.model.eval(), normalised(images, made.setup.images)), images.y
    kept = (sent["features"] != 0).any(axis=0)
    assert (~kept).sum() >= D - int(0.9 * D) and np.array_equal(sent["labels"], y)
    bare = y == 2  # no prototype of it
    np.testing.assert_allclose(sent["features"][bare][:, kept], z[bare][:, kept], rtol=1e-5, atol=1e-6)
    g, row = amplified()["prototypes"][1], int(np.flatnonzero(y == 1)[0])
    shares = ((sent["features"][row] - g) / (z[row] - g))[kept]
    assert np.ptp(shares) < 1e-3
    assert 0.8 <= shares.mean() <= 1.0 and round(float(shares.mean()), 2) == pytest.approx(shares.mean(), abs=1e-4)


def test_mixing_and_mask_are_the_systems_unless_the_run_is_to_be_repeatable() -> None:
    """From the run's seed the server could draw them again, and undo them."""

    def features(**params: Any) -> Any:
        made = client(params)
        fit(made, 2)
        return made.contribution()["features"]

    drawn = [features() for _ in range(4)]
    assert len({array.tobytes() for array in drawn}) == 4
    assert len({tuple((array == 0).all(axis=0)) for array in drawn}) > 1
    np.testing.assert_array_equal(features(repeatable_noise=True), features(repeatable_noise=True))


def test_no_more_features_than_asked_for() -> None:
    made = client({"most_features": 5})
    fit(made)
    assert made.contribution()["features"].shape == (5, D)
    assert made.contribution()["counts"].sum() == N

"""FedPall's client: its classifier, its loss, and what it sends."""

from typing import Any

import numpy as np
import pytest
import torch
from support import C, D, N, batch, begun, check_accepted, fit, new_client, same, weights, whole

from fedshift_app.config.resolving import resolve
from fedshift_clients.methods import fedpall as terms
from fedshift_clients.methods.fedpall import FedPallClient
from fedshift_clients.methods.local import LocalClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_strategies.methods.fedpall import FedPallStrategy

H, NODES = 6, 2


def knowledge(seed: int = 0, *, prototypes: bool = True) -> Arrays:
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> Any:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    content: Arrays = {"head/weight": drawn(C, D), "head/bias": drawn(C)}
    content |= {
        "amplifier/linear1": drawn(H, D),
        "amplifier/linear2": drawn(H, H),
        "amplifier/linear3": drawn(NODES, H),
    }
    content |= {f"amplifier/scale{k}": 1 + drawn(H) for k in (1, 2)} | {f"amplifier/shift{k}": drawn(H) for k in (1, 2)}
    if prototypes:
        content |= {"prototypes": drawn(3, D), "labels": np.array([0, 1, 3])}  # class 2 has none, nobody has class 3
    return content


def client(params: dict[str, Any] | None = None, **more: Any) -> FedPallClient:
    return new_client(FedPallClient, params, more.pop("knowledge", knowledge()), **more)


@pytest.mark.parametrize("take", [1.0, 0.25, 0.0])
def test_the_servers_classifier_takes_the_place_of_the_nodes(take: float) -> None:
    made = client({"take": take})
    own = weights(made)
    begun(made)
    now, sent = weights(made), knowledge()
    for name in ("weight", "bias"):
        expected = (1 - take) * own[f"classifier.{name}"] + take * sent[f"head/{name}"]
        np.testing.assert_allclose(now[f"classifier.{name}"], expected, rtol=1e-6)
    assert all(np.array_equal(now[name], own[name]) for name in own if not name.startswith("classifier."))


def test_the_loss_is_the_three_terms_weighted() -> None:
    made = begun(client({"lambda_adv": 0.3, "lambda_con": 0.7, "tau": 2.0}))
    given = batch()
    result = made.loss(given)
    z, logits = made.model(given.x)
    sent = {name: torch.from_numpy(array) for name, array in knowledge().items()}
    amplifier = {name.removeprefix("amplifier/"): tensor for name, tensor in sent.items() if "amplifier" in name}
    g, present = torch.zeros(C, D), torch.tensor([True, True, False, True])
    g[sent["labels"]] = sent["prototypes"]
    torch.testing.assert_close(result["ce"], torch.nn.functional.cross_entropy(logits, given.y))
    torch.testing.assert_close(result["adv"], 0.3 * terms.confusion(terms.amplifier(z, amplifier)))
    torch.testing.assert_close(result["con"], 0.7 * terms.collaboration(z, given.y, g, present, 2.0))
    assert set(begun(client(knowledge=knowledge(prototypes=False))).loss(given)) == {"ce", "adv"}  # round 1
    assert set(begun(client({"lambda_adv": 0, "lambda_con": 0})).loss(given)) == {"ce"}


def test_what_a_node_sends_is_mixed_and_masked() -> None:
    """One share and one mask for a round; a class without a prototype is sent as it is; images in their order."""
    made = client()
    fit(made, 2)
    sent = made.contribution()
    check_accepted(made, FedPallStrategy)
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
    g = dict(zip([0, 1, 3], knowledge()["prototypes"], strict=True))
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


def test_switched_off_it_is_local_training_bit_for_bit() -> None:
    off = {"lambda_adv": 0, "lambda_con": 0, "take": 0}
    made, plain = client(off, knowledge={}), new_client(LocalClient)
    for server_round in (1, 2):
        assert fit(made, server_round)[1] == fit(plain, server_round)[1]
        assert same(whole(made), whole(plain))
    assert made.contribution() == {}
    assert made.shared_names == []


def test_nodes_may_have_different_networks_and_one_linear_layer() -> None:
    config = resolve({"method": "fedpall", "set": "model.name=cnn3 model.per_node=[cnn3,cnn2]"})
    assert config.model.per_node == ("cnn3", "cnn2")
    with pytest.raises(ConfigError, match=r"fedpall needs model\.head=linear, found mlp"):
        resolve({"method": "fedpall", "set": "model.head=mlp"})

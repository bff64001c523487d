"""FedDAP on a node: its three terms against NumPy, domains without prototypes, noise."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import PAIRS, by_pairs
from numpy.typing import NDArray
from slow_terms import cosines, cross_entropy
from support import INDEX, ROUND, SEED, C, D, as64, batch, begun, new_client

from fedshift_clients.methods.feddap import FedDAPClient
from fedshift_clients.training.batches import Batch
from fedshift_core.seeding import generator

client = partial(new_client, FedDAPClient, knowledge=by_pairs(PAIRS), scalars={"domain": 1}, epochs=1)


def mixed_batch() -> Batch:
    return batch(y=(0, 1, 2, 3, 0, 2))


def slow_terms(made: FedDAPClient, given: Batch, tau: float) -> dict[str, list[float]]:
    """Terms of each image by the pairs."""
    with torch.no_grad():
        z, logits = (as64(part) for part in made.model(given.x))
    (classes, domains), found = np.array(PAIRS).T, {"ce": [], "dpa": [], "cpcl": []}  # type: ignore[var-annotated]
    for row, scores, y in zip(cosines(z, by_pairs(PAIRS)["prototypes"]), logits, given.y, strict=True):
        own, e = classes == int(y), np.exp(row / tau) * (domains != 1)
        found["ce"].append(cross_entropy(scores[None], [int(y)]))
        found["dpa"].append(float((1 - row)[own & (domains == 1)].sum()))
        found["cpcl"].append(-np.log(e[own].sum() / e.sum()) if e[own].sum() else 0.0)
    return found


@pytest.mark.parametrize("tau", [0.02, 0.5])
def test_terms_against_loops(tau: float) -> None:
    made, given = begun(client({"tau": tau, "lambda1": 2.0, "lambda2": 3.0})), mixed_batch()
    expected = slow_terms(made, given, tau)
    assert expected["dpa"][2] == expected["cpcl"][1] == 0 < expected["dpa"][1]
    terms, each = made.loss(given), made.image_losses(given)
    assert list(terms) == list(each) == ["ce", "dpa", "cpcl"]
    for name, factor in {"ce": 1.0, "dpa": 2.0, "cpcl": 3.0}.items():
        wanted = factor * np.array(expected[name])
        np.testing.assert_allclose(each[name].detach().numpy(), wanted, rtol=1e-3, atol=1e-5)
        assert float(terms[name].detach()) == pytest.approx(wanted.mean(), rel=1e-3)


@pytest.mark.parametrize(
    ("pairs", "terms"),
    [
        ([], ["ce"]),
        ([(0, 1), (1, 1)], ["ce", "dpa"]),  # no other domain
        ([(0, 0), (1, 2)], ["ce", "cpcl"]),  # a new domain
    ],
)
def test_domains_that_have_no_prototypes_yet(pairs: list[tuple[int, int]], terms: list[str]) -> None:
    made = begun(client(knowledge=by_pairs(pairs)))
    assert list(made.loss(mixed_batch())) == terms
    assert list(begun(client(knowledge={})).loss(mixed_batch())) == ["ce"]


def contribution(server_round: int = ROUND, **params: Any) -> dict[str, NDArray[Any]]:
    return client(params).finish_round(server_round)


def test_noise_is_on_the_sum_of_a_class() -> None:
    plain, noisy = contribution(), contribution(dp="add", dp_scale=0.5, dp_q=0.3, repeatable_noise=True)
    drawn = generator(SEED, "feddap-dp", INDEX, ROUND).normal(0.0, 0.5, (C, D))
    for k, count in enumerate(plain["counts"].tolist()):
        wanted = plain["prototypes"][k] + 0.3 * drawn[k] / count if count else np.zeros(D)
        np.testing.assert_allclose(noisy["prototypes"][k], wanted, rtol=1e-4, atol=1e-6)
    assert plain["counts"].tolist() == noisy["counts"].tolist() == [7, 7, 6, 0]
    system = [contribution(dp="add", dp_scale=0.5, dp_q=0.3)["prototypes"] for _ in range(2)]
    assert not np.array_equal(system[0], system[1])

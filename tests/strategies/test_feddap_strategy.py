"""FedDAP on the server: prototypes of a class merged within each domain, against loops; pairs that come and go."""

from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics.pairwise import cosine_similarity
from support import ask, federation, node

from fedshift_core.methods.feddap import FedDAPParams
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.feddap import FedDAPStrategy, by_similarity

DOMAINS, D = ("a", "b", "c"), 2


def strategy(**params: Any) -> FedDAPStrategy:
    return FedDAPStrategy(federation(domains=DOMAINS), FedDAPParams(**params), lambda result, weights: None)


def sent(domain: str, prototypes: Any, counts: tuple[int, ...], index: int = 0) -> Update:
    knowledge = {"prototypes": np.array(prototypes, np.float32), "counts": np.array(counts, np.int64)}
    return Update(node(index, counts, domain), encode({}), knowledge, max(sum(counts), 1), {})


def merged(server: FedDAPStrategy, *updates: Update) -> dict[tuple[int, str], list[float]]:
    """Merge; return the prototype of each class and domain."""
    server.merge_knowledge(list(updates))
    prototypes, classes, domains = (server.knowledge[name] for name in ("prototypes", "labels", "domains"))
    assert (prototypes.dtype, classes.dtype, domains.dtype) == (np.float32, np.int64, np.int64)
    assert prototypes.shape == (len(classes), D) and set(server.knowledge) == {"prototypes", "labels", "domains"}
    pairs = [(int(k), DOMAINS[d]) for k, d in zip(classes, domains, strict=True)]
    assert len(set(pairs)) == len(pairs)
    return dict(zip(pairs, prototypes.tolist(), strict=True))


@pytest.mark.parametrize("tau", [0.001, 0.1, 3.0])
def test_merging_against_scikit_learn(tau: float) -> None:
    for n in (1, 2, 3, 5):
        members = np.random.default_rng(n).uniform(0.1, 1, (n, 4)).astype(np.float32)
        wanted = softmax(cosine_similarity(members.astype(float)).sum(axis=1) / tau) @ members
        np.testing.assert_allclose(by_similarity(members, tau), wanted, rtol=1e-5)
    assert not by_similarity(np.zeros((3, 2), np.float32), tau).any()


def test_the_mean_takes_each_node_alike() -> None:
    updates = [sent("b", [row, [9, 9], [9, 9]], (10**i, 0, 0), i) for i, row in enumerate(([1, 0], [0, 1], [0, 2]))]
    (value,) = merged(strategy(merge_by="mean"), *updates).values()
    assert value == pytest.approx([1 / 3, 1]) and value != pytest.approx(*merged(strategy(), *updates).values())


def test_pairs_come_and_go() -> None:
    server = strategy()
    assert server.knowledge == {}
    first = merged(server, sent("a", [[1, 2], [3, 4], [9, 9]], (1, 1, 0)), sent("b", [[5, 6]] * 3, (1, 0, 0), 1))
    assert set(first) == {(0, "a"), (1, "a"), (0, "b")}
    second = merged(server, sent("a", [[7, 8]] * 3, (0, 0, 1)), sent("c", [[1, 1]] * 3, (1, 0, 0), 2))
    assert second == first | {(2, "a"): [7, 8], (0, "c"): [1, 1]}
    assert merged(server, sent("b", [[2, 2]] * 3, (1, 0, 0), 1)) == second | {(0, "b"): [2, 2]}
    assert merged(strategy(), sent("a", [[1, 1]] * 3, (0, 0, 0))) == {}


def test_a_node_is_told_its_domain_and_all_are_sent_the_same() -> None:
    server = strategy()
    assert [server.tell(node(i, domain=name), ask()) for i, name in enumerate("cab")] == [
        {"domain": 2}, {"domain": 0}, {"domain": 1},
    ]  # fmt: skip
    assert server.knowledge_for(node(), ask()) is server.knowledge
    assert "prototypes" in FedDAPStrategy.needs_single(server.params)  # secure sums hide whose they are

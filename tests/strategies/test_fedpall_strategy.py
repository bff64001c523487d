"""FedPall's server: prototypes by direction, a classifier and an amplifier trained on what nodes send."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support import new_strategy, node

from fedshift_core.arrays import Arrays
from fedshift_core.seeding import generator
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.dense import slopes
from fedshift_strategies.methods.fedpall import FedPallStrategy, mean_directions

NODES = [node(i, counts=(6, 6, 0)) for i in range(2)]


@pytest.fixture(autouse=True)
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "nodes", property(lambda self: NODES))


def server(**params: float) -> FedPallStrategy:
    made = new_strategy(FedPallStrategy, personal=True, **{"hidden": 8} | params)
    made.start_run(ArrayRecord())
    return made


def sent(of: Node, seed: int = 0) -> Update:
    """Two classes on either side of 0 in one dimension, two nodes in the other."""
    rng = np.random.default_rng(seed + 10 * of.index)
    labels = np.arange(12, dtype=np.int64) % 2
    features = np.stack([4.0 * labels - 2, np.full(12, 4.0 * (of.index % 2) - 2)], axis=1) + rng.normal(0, 0.1, (12, 2))
    means = [features[labels == k].mean(axis=0) if k < 2 else np.zeros(2) for k in range(3)]
    knowledge: Arrays = {
        "prototypes": np.array(means, np.float32), "counts": np.array([6, 6, 0]),
        "features": features.astype(np.float32), "labels": labels,
    }  # fmt: skip
    return Update(of, ArrayRecord(), knowledge, 12, {})


def test_prototypes_are_means_of_directions() -> None:
    p = np.array([[[3.0, 4], [0, 2]], [[0.0, 9], [5, 0]]], np.float32)  # two nodes, two classes
    g, held = mean_directions(p, np.array([[1, 0], [3, 2]]))
    np.testing.assert_allclose(g, [[0.25 * 0.6, 0.25 * 0.8 + 0.75], [1, 0]], rtol=1e-6)
    assert held.tolist() == [True, True]
    g, held = mean_directions(p, np.array([[1, 0], [3, 0]]))
    assert held.tolist() == [True, False] and not g[1].any()


def test_two_rounds_step_for_step() -> None:
    """Momentum 0.9, kept over rounds, and decay 1e-5, as in the authors' code; epochs in the order that is drawn."""
    made = server(server_lr=0.05, server_epochs=2, server_batch=5)
    began = {name: array.astype(float) for name, array in made.knowledge.items()}
    amplifier = {name.removeprefix("amplifier/"): array for name, array in began.items() if "head" not in name}
    networks = {"classifier": {"linear1": began["head/weight"], "bias": began["head/bias"]}, "amplifier": amplifier}
    speeds = {kind: {name: 0 * array for name, array in network.items()} for kind, network in networks.items()}
    for server_round in (1, 2):
        made._result.server_round = server_round
        updates = [sent(n, server_round) for n in NODES]
        made.merge_knowledge(updates)
        x, classes = (np.concatenate([u.knowledge[name] for u in updates]) for name in ("features", "labels"))
        for (kind, network), y in zip(networks.items(), (classes, np.repeat([0, 1], 12)), strict=True):
            rng, speed = generator(0, f"fedpall-{kind}", server_round), speeds[kind]
            for order in (rng.permutation(24), rng.permutation(24)):
                for some in np.split(order, range(5, 24, 5)):
                    for name, slope in slopes(network, x[some].astype(float), y[some]).items():
                        speed[name] = 0.9 * speed[name] + slope + 1e-5 * network[name]
                        network[name] = network[name] - 0.05 * speed[name]
    head = networks["classifier"]
    wanted = {"head/weight": head["linear1"], "head/bias": head["bias"]}
    wanted |= {f"amplifier/{name}": array for name, array in amplifier.items()}
    assert wanted.keys() == began.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(made.knowledge[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
        assert not np.allclose(array, began[name], atol=1e-3)


def test_a_node_that_comes_later_adds_an_output() -> None:
    made = server()
    made.merge_knowledge([sent(n) for n in NODES])
    before = made.knowledge["amplifier/linear3"].copy()
    assert before.shape == (2, 8)
    made.merge_knowledge([sent(NODES[0]), sent(node(100_000, counts=(6, 6, 0)))])
    assert made.knowledge["amplifier/linear3"].shape == made.state["momentum/amplifier/linear3"].shape == (3, 8)
    assert made.state["nodes"].tolist() == [0, 1, 100_000]

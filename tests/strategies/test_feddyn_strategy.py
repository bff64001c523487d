"""FedDyn's server against the paper's h, with nodes that miss rounds."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from support import BUFFER, COUNT, ask, federation, node, with_buffers

from fedshift_core.arrays import Arrays
from fedshift_core.methods.feddyn import FedDynParams
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.feddyn import FedDynStrategy

ALPHA, M = 0.05, 4
NODES = [node(i, counts=(i + 1, 0, 1)) for i in range(M)]


@pytest.fixture(autouse=True)
def four_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Roster, "nodes", property(lambda self: NODES))


def server(**params: Any) -> FedDynStrategy:
    given = FedDynParams(**{"alpha": ALPHA} | params)
    return FedDynStrategy(federation(buffers=(BUFFER,)), given, lambda *result: None)


def update(of: Node, arrays: Arrays) -> Update:
    return Update(of, encode(arrays), {}, of.num_examples, {})


def test_rounds_against_the_paper() -> None:
    """h <- h - alpha/m sum (w_n - w^t), w^{t+1} = mean - h / alpha, in float64, parameter by parameter."""
    made, sent = server(), with_buffers(0)
    h = {name: np.zeros(sent[name].shape) for name in ("w", "b")}
    for server_round, who in enumerate([(0, 1, 2, 3), (1, 3), (2,), (0, 2, 3)], start=1):
        came = {
            i: {n: (a + with_buffers(10 * server_round + i)[n] / 10).astype(a.dtype) for n, a in sent.items()}
            for i in who
        }
        made._global = encode(sent)
        updates = [update(NODES[i], arrays) for i, arrays in came.items()]
        shares = made.node_weights(updates)
        assert shares == [1 / len(who)] * len(who)
        result = decode(made.merge(updates, shares))
        assert list(result) == list(sent)
        for name, h_of in h.items():
            h_of -= ALPHA / M * sum(came[i][name].astype(np.float64) - sent[name] for i in who)
            mean = sum(came[i][name].astype(np.float64) for i in who) / len(who)
            assert_allclose(result[name], mean - h_of / ALPHA, rtol=1e-5, atol=1e-6)
            assert result[name].dtype == np.float32
        assert_allclose(result[BUFFER], np.mean([came[i][BUFFER] for i in who], axis=0), rtol=1e-6)
        assert result[COUNT] == np.rint(np.mean([came[i][COUNT] for i in who]))
        assert set(made.state) == {"drift/w", "drift/b"}
        sent = dict(result)


def test_alpha_by_images_is_sent_to_nodes_that_train() -> None:
    made = server(alpha_by_images=True)
    # 2, 3, 4 and 5 images, 3.5 in the mean
    assert [made.tell(n, ask())["alpha"] for n in NODES] == pytest.approx([ALPHA * 3.5 / size for size in (2, 3, 4, 5)])
    assert made.tell(NODES[0], ask(trains=False)) == {}
    assert server().tell(NODES[0], ask()) == {}


@pytest.mark.parametrize("scores", ["cloud", "mean"])
def test_what_is_scored_and_that_training_does_not_depend_on_it(scores: str) -> None:
    made, plain, sent = server(scores=scores), server(), encode(with_buffers(0))
    for server_round in (1, 2):
        came = [with_buffers(10 * server_round + n.index) for n in NODES[:3]]
        updates = [update(n, arrays) for n, arrays in zip(NODES, came, strict=False)]
        for of in (made, plain):
            of._global = sent
            of._global = of.merge([*updates], [1 / 3] * 3)
        merged, trained, scored = (decode(of) for of in (made._global, plain._global, made.scored_weights()))
        assert list(scored) == list(merged) and merged.keys() == trained.keys()
        for name, array in trained.items():
            assert np.array_equal(merged[name], array)
            mean = scores == "mean" and name in ("w", "b")
            wanted = np.mean([c[name] for c in came], axis=0) if mean else array
            assert_allclose(scored[name], wanted, rtol=1e-5, atol=1e-6)
            assert scored[name].dtype == array.dtype
        sent = made._global
    assert {key.split("/")[0] for key in made.state} == ({"drift", "mean"} if scores == "mean" else {"drift"})

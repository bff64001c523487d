"""Servers that average prototypes: classes that come and go, what nodes count, and that nothing changes in place."""

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support import after_rounds, new_strategy
from support import update as prototypes_of_a_node

from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedcode import FedCodeStrategy
from fedshift_strategies.methods.fedmlp import FedMLPStrategy
from fedshift_strategies.methods.fedproc import FedProcStrategy
from fedshift_strategies.methods.fedproto import FedProtoStrategy
from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy
from fedshift_strategies.methods.fpl import FPLStrategy
from fedshift_strategies.methods.i2pfl import I2PFLStrategy

C, D = 3, 2
#: Those whose global prototype is the plain mean over the nodes that hold a class.
MEANS: dict[str, tuple[type[DomainStrategy[Any]], dict[str, Any]]] = {
    "fedcode": (FedCodeStrategy, {}),
    "fedmlp": (FedMLPStrategy, {}),
    "fedproc": (FedProcStrategy, {}),
    "fedproto": (FedProtoStrategy, {"prototype_mean": "plain"}),
    "fedseproto": (FedSeProtoStrategy, {}),
}
#: Those for which one or two nodes give their mean.
PAIRS = MEANS | {
    "fpl": (FPLStrategy, {}),
    "i2pfl": (I2PFLStrategy, {"use_ema": False}),
    "i2pfl-finch": (I2PFLStrategy, {"use_ema": False, "inter_proto": "finch"}),
}
ALL = PAIRS | {"fedproto-weighted": (FedProtoStrategy, {})}


def strategy(name: str) -> DomainStrategy[Any]:
    kind, params = ALL[name]
    return new_strategy(kind, personal=True, **params)


def update(prototypes: Any, counts: list[int], index: int = 0) -> Update:
    one = prototypes_of_a_node(prototypes, counts, index)
    style = {"style-prototype": np.ones(D, np.float32)}  # which FedCode takes besides
    return Update(one.node, ArrayRecord(), {**one.knowledge, **style}, one.num_examples, {})


@pytest.mark.parametrize("name", ALL)
def test_classes_come_and_go(name: str) -> None:
    server, nobody = strategy(name), update([[9, 9]] * C, [0] * C)
    assert server.knowledge == {}
    assert after_rounds(server, [nobody]) == {}
    assert after_rounds(server, [update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])]) == {2: [1, 3]}
    assert after_rounds(server, [update([[5, 7], [9, 9], [9, 9]], [1, 0, 0])]) == {0: [5, 7], 2: [1, 3]}
    seen = server.knowledge["prototypes"]
    assert after_rounds(server, [update([[9, 9], [9, 9], [3, 5]], [0, 0, 1])], [nobody]) == {0: [5, 7], 2: [3, 5]}
    assert seen.tolist() == [[5, 7], [1, 3]]  # what an observer or a message still has stays as it was


@pytest.mark.parametrize("name", PAIRS)
def test_each_node_that_has_a_class_counts_once_however_many_images_it_has(name: str) -> None:
    first, second = update([[3, 0], [2, 2], [9, 9]], [30, 1, 0]), update([[11, 0], [9, 9], [9, 9]], [1, 0, 0], 1)
    assert after_rounds(strategy(name), [first, second]) == {0: [7, 0], 1: [2, 2]}

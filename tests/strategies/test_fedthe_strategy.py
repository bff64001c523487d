"""FedTHE on the server: the plain mean of the nodes' mean features, and nothing where it is off."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from support import check_knowledge, new_strategy, node

from fedshift_core.limits import Refused
from strategies.federation.updates import Update
from strategies.fedthe import FedTHEStrategy


def sent_by(index: int, images: int, feature: list[float]) -> Update:
    fields = {"feature": np.array(feature, np.float32)}
    return Update(node(index, (images, 0, 0)), ArrayRecord(), fields, images, {})


def test_each_node_counts_the_same_however_many_images_it_has() -> None:
    server = new_strategy(FedTHEStrategy)
    server.merge_knowledge([sent_by(0, 1, [1, 4]), sent_by(1, 99, [3, -2]), sent_by(3, 5, [2, 1])])
    assert server.knowledge["feature"].tolist() == [2, 1]
    assert server.knowledge["feature"].dtype == np.float32


def test_what_travels_is_one_feature_or_nothing() -> None:
    check_knowledge(new_strategy(FedTHEStrategy), {"feature": np.zeros(2, np.float32)})
    with pytest.raises(Refused, match=r"feature of shape \(3,\)"):
        check_knowledge(new_strategy(FedTHEStrategy), {"feature": np.zeros(3, np.float32)})
    off = new_strategy(FedTHEStrategy, personal_head=False)
    check_knowledge(off, {})
    off.merge_knowledge([Update(node(0), ArrayRecord(), {}, 3, {})])
    assert off.knowledge == {}

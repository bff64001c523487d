"""FPL on the server: clusters of each class, and classes that come and go."""

from functools import partial

import numpy as np
from support import new_strategy, update

from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fpl import FPLStrategy

D = 2
strategy = partial(new_strategy, FPLStrategy)


def merged(server: FPLStrategy, *updates: Update) -> dict[int, list[list[float]]]:
    """Merge; return the cluster prototypes of each class, sorted."""
    server.merge_knowledge(list(updates))
    prototypes, labels = server.knowledge["prototypes"], server.knowledge["labels"]
    assert (str(prototypes.dtype), str(labels.dtype)) == ("float32", "int64")
    assert prototypes.shape == (len(labels), D)
    assert labels.tolist() == sorted(labels.tolist())
    return {int(k): sorted(prototypes[labels == k].round(4).tolist()) for k in np.unique(labels)}


# Class 0: three nodes near (1, 0), three near (0, 1); the means of each three are (2, 0.1) and (0.1, 2).
TWO_SIDES = [(1.0, 0.0), (0.0, 1.0), (2.0, 0.3), (0.3, 2.0), (3.0, 0.0), (0.0, 3.0)]


def test_classes_come_and_go_with_all_their_clusters() -> None:
    server = strategy()
    assert server.knowledge == {}
    both = merged(server, *(update([list(row), [5, 5], [9, 9]], [1, 1, 0], i) for i, row in enumerate(TWO_SIDES)))
    np.testing.assert_allclose(both[0], [[0.1, 2], [2, 0.1]], rtol=1e-5)
    assert both[1] == [[5, 5]]
    # Round 2: only class 2 is held, the others stay. Round 3: class 0 comes back as one cluster.
    assert merged(server, update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])) == both | {2: [[1, 3]]}
    assert merged(server, update([[4, 4], [9, 9], [9, 9]], [1, 0, 0])) == {0: [[4, 4]], 1: both[1], 2: [[1, 3]]}

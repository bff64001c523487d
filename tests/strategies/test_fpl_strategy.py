"""FPL on the server: clusters of each class, and classes that come and go."""

import numpy as np
from support import new_strategy, update

from fedshift_strategies.methods.fpl import FPLStrategy

D = 2


# Class 0: three nodes near (1, 0), three near (0, 1); the means of each three are (2, 0.1) and (0.1, 2).
TWO_SIDES = [(1.0, 0.0), (0.0, 1.0), (2.0, 0.3), (0.3, 2.0), (3.0, 0.0), (0.0, 3.0)]


def test_classes_come_and_go_with_all_their_clusters() -> None:
    server = new_strategy(FPLStrategy)
    assert server.knowledge == {}
    both = [[0, 0.1, 2], [0, 2, 0.1], [1, 5, 5]]
    for updates, wanted in (
        ([update([row, [5, 5], [9, 9]], [1, 1, 0], i) for i, row in enumerate(TWO_SIDES)], both),
        # Round 2: only class 2 is held, the others stay. Round 3: class 0 comes back as one cluster.
        ([update([[9, 9], [9, 9], [1, 3]], [0, 0, 1])], [*both, [2, 1, 3]]),
        ([update([[4, 4], [9, 9], [9, 9]], [1, 0, 0])], [[0, 4, 4], [1, 5, 5], [2, 1, 3]]),
    ):
        server.merge_knowledge(updates)
        prototypes, labels = server.knowledge["prototypes"], server.knowledge["labels"]
        assert (prototypes.dtype, labels.dtype) == (np.float32, np.int64)
        assert labels.tolist() == sorted(labels.tolist())
        found = sorted([k, *row] for k, row in zip(labels.tolist(), prototypes.tolist(), strict=True))
        np.testing.assert_allclose(found, wanted, rtol=1e-5)

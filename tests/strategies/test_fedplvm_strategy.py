"""FedPLVM on the server: prototypes of all nodes, clustered once more; ragged contributions and their bounds."""

from functools import partial

import numpy as np
from flwr.app import ArrayRecord
from numpy.testing import assert_allclose
from slow_finch import slow_finch
from support import check_knowledge, new_strategy, node

from fedshift_core.arrays import Arrays
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedplvm import FedPLVMStrategy, collected
from fedshift_strategies.methods.prototypes import cluster_means

strategy = partial(new_strategy, FedPLVMStrategy)
#: Three near (1, 0) and three near (0, 1): two clusters of means (2, 0.1) and (0.1, 2).
TWO_SIDES = [(1.0, 0.0), (0.0, 1.0), (2.0, 0.3), (0.3, 2.0), (3.0, 0.0), (0.0, 3.0)]


def sent_by(rows: list[tuple[float, float]], classes: list[int], counts: list[int] | None = None) -> Arrays:
    counts = [1] * len(rows) if counts is None else counts
    return {
        "prototypes": np.array(rows, np.float32).reshape(-1, 2), "labels": np.array(classes, np.int64),
        "counts": np.array(counts, np.int64),
    }  # fmt: skip


def test_classes_come_and_go_with_all_their_clusters() -> None:
    server = strategy()
    both = [[0, 0.1, 2], [0, 2, 0.1]]
    for knowledge, wanted in (
        (sent_by([*TWO_SIDES, (4, 4)], [0] * 6 + [1]), [*both, [1, 4, 4]]),
        (sent_by([(7, 7)], [1]), [*both, [1, 7, 7]]),
        (sent_by([], []), [*both, [1, 7, 7]]),
    ):
        server.merge_knowledge([Update(node(), ArrayRecord(), knowledge, 3, {})])
        prototypes, labels = server.knowledge["prototypes"], server.knowledge["labels"]
        assert (prototypes.dtype, labels.dtype) == (np.float32, np.int64)
        found = sorted([k, *row] for k, row in zip(labels.tolist(), prototypes.tolist(), strict=True))
        assert_allclose(found, wanted, rtol=1e-5)


def test_a_prototype_of_no_image_is_none_and_of_too_many_those_of_the_most_images_are_compared() -> None:
    check_knowledge(strategy(), sent_by(TWO_SIDES, [0, 0, 1, 1, 2, 2]), announced=[2, 2, 2])
    one, other = sent_by(TWO_SIDES[:3], [0, 0, 0], [3, 0, 1]), sent_by(TWO_SIDES[3:], [0, 0, 1], [2, 3, 1])
    prototypes, labels = collected([one, other], 3)
    assert labels.tolist() == [0, 0, 0, 1]
    assert_allclose(prototypes, [TWO_SIDES[i] for i in (0, 3, 4, 5)])


def test_clusters_against_finchs_definition() -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        points = rng.uniform(size=(30, 4)).astype(np.float32)
        result, labels = cluster_means(points, np.full(30, 2), early_exit=False, dtype=np.float64)
        wanted = [
            points[sorted(group)].astype(np.float64).mean(axis=0) for group in slow_finch(list(points.astype(float)))
        ]
        assert labels.tolist() == [2] * len(wanted)
        assert_allclose(sorted(result.tolist()), sorted(np.array(wanted).tolist()), rtol=1e-5)

"""FedPLVM on a node: the clusters that it contributes."""

from functools import partial

import numpy as np
import pytest
import torch
from method_cases import clusters
from support import (
    ROUND,
    C,
    check_accepted,
    fit,
    image_set,
    new_client,
    normalised,
    same,
)  # fmt: skip

from fedshift_clients.methods.fedplvm import FedPLVMClient
from fedshift_core.clustering import finch_groups
from fedshift_strategies.methods.fedplvm import FedPLVMStrategy

client = partial(new_client, FedPLVMClient)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_prototypes_are_the_means_of_the_clusters_of_each_class(precision: str) -> None:
    images = image_set(40)
    made = client({"lambda_proto": 0.01}, clusters(), epochs=1, precision=precision, train_set=images)
    fit(made, ROUND)
    check_accepted(made, FedPLVMStrategy)
    got = made.contribution()
    assert got["counts"].sum() == 40
    assert (
        np.bincount(got["labels"], weights=got["counts"], minlength=C).tolist()
        == np.bincount(images.y, minlength=C).tolist()
    )
    if precision == "float32":
        assert C - 1 < len(got["labels"]) < 40
        with torch.no_grad():
            z = made.model.encoder(normalised(images, made.setup.images)).numpy()
        for k in range(C - 1):
            own = z[images.y == k]
            wanted = [own[group].mean(axis=0) for group in finch_groups(own, early_exit=False)]
            np.testing.assert_allclose(got["prototypes"][got["labels"] == k], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("locally", "counts"), [(False, [7, 7, 6]), (True, [5, 5, 5])])
def test_not_clustered_they_are_the_class_means_and_of_a_large_class_a_sample_is_clustered(
    locally: bool, counts: list[int]
) -> None:
    made, again = (client({"cluster_locally": locally, "most_images": 5}, epochs=1) for _ in range(2))
    fit(made)
    fit(again)
    got = made.contribution()
    assert same(list(got.values()), list(again.contribution().values()))
    assert np.bincount(got["labels"], weights=got["counts"]).tolist() == counts
    if not locally:
        means, _ = made.class_prototypes()
        np.testing.assert_allclose(got["prototypes"], means[:3].numpy(), rtol=1e-4, atol=1e-6)

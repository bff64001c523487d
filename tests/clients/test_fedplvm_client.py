"""FedPLVM on a node: its terms as a whole, what it contributes, its switches."""

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


def test_not_clustered_locally_they_are_the_class_means() -> None:
    made = client({"cluster_locally": False, "most_images": 3}, epochs=1)
    fit(made)
    means, counts = made.class_prototypes()
    got = made.contribution()
    assert got["labels"].tolist() == [0, 1, 2] and got["counts"].tolist() == counts[:3].tolist()
    np.testing.assert_allclose(got["prototypes"], means[:3].numpy(), rtol=1e-4, atol=1e-6)


def test_of_a_large_class_a_sample_is_clustered() -> None:
    made = client({"most_images": 5}, epochs=1)
    fit(made)
    assert np.bincount(made.contribution()["labels"], weights=made.contribution()["counts"]).tolist() == [5, 5, 5]
    again = client({"most_images": 5}, epochs=1)
    fit(again)
    assert same(list(made.contribution().values()), list(again.contribution().values()))

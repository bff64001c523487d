"""FedPAC on a node: two phases, its statistics, its head."""

from functools import partial

import numpy as np
import pytest
import torch
from support import (
    C,
    D,
    batch,
    changed,
    features_of,
    fit,
    global_prototypes,
    in_phase,
    new_client,
    normalised,
    parts_of,
    weights,
)  # fmt: skip

from fedshift_clients.methods.fedpac import FedPACClient, statistics
from fedshift_clients.training.settings import ImageConfig

client = partial(new_client, FedPACClient, epochs=1)


@pytest.mark.parametrize(("place", "part"), [(0, "classifier"), (1, "encoder")])
def test_head_and_body_train_one_after_the_other(place: int, part: str) -> None:
    made = client(knowledge=global_prototypes(), model="cnn_bn")
    (first, second), before = made.phases(2), weights(made)
    made.start_round(2)
    made._train(2, [(first, second)[place]])
    assert parts_of(changed(before, weights(made))) == {part}
    assert (first.epochs, first.lr, second.epochs, second.lr, second.fresh) == (1, 0.1, 1, None, True)


def test_the_head_learns_by_cross_entropy_alone_and_so_does_all_in_round_1() -> None:
    assert list(in_phase(client(knowledge=global_prototypes()), place=0).terms_of(batch())) == ["ce"]
    assert list(in_phase(client(), 1, place=1).terms_of(batch())) == ["ce"]


def test_statistics_are_the_received_bodys_and_prototypes_the_trained_ones() -> None:
    made = client(images=ImageConfig(crop_padding=2, eval_batch=7))
    x, y = normalised(made.train_set, made.setup.images), made.train_set.y
    received = features_of(made.model, x)
    fit(made)
    sent, trained = made.contribution(), features_of(made.model, x)
    means, squares = np.zeros((C, D)), np.zeros(C)
    for k in range(C - 1):
        means[k], squares[k] = received[y == k].mean(axis=0), (received[y == k] ** 2).sum(axis=1).mean()
        np.testing.assert_allclose(sent["prototypes"][k], trained[y == k].mean(axis=0), atol=1e-5)
    counts = torch.from_numpy(np.bincount(y, minlength=C))
    h, v = statistics(torch.from_numpy(means), torch.from_numpy(squares), counts)
    np.testing.assert_allclose(sent["class-features"], h, atol=1e-5)
    np.testing.assert_allclose(sent["variance"], v, rtol=1e-4)

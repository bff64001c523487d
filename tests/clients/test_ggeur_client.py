"""GGEUR on a node: statistics once, rows in the place of images, an encoder that must be frozen."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from slow_terms import cross_entropy
from support import C, D, as64, check_accepted, drawn, fedavg, fit, new_client, same, shared

from fedshift_clients.methods.ggeur import GGEURClient, Rows
from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.models.networks import SplitModel
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_strategies.methods.ggeur import GGEURStrategy

SAMPLES, PROTOTYPES = 30, 2


def network(projection: int = 0) -> SplitModel:
    model = networks.build("cnn", C, 0, 32, "linear", projection)
    freeze(model, "encoder", "cnn")
    return model


def sent(width: int = D, components: int = 3) -> Arrays:
    """What the server sends: covariances of all classes, prototypes of two domains of the last class."""
    rng = np.random.default_rng(0)
    vectors = np.linalg.qr(rng.normal(size=(C, width, components)))[0].transpose(0, 2, 1)
    return {
        "eigenvalues": np.tile(np.array([0.3, 0.2, 0.1], np.float32)[:components], (C, 1)),
        "eigenvectors": vectors.astype(np.float32),
        "prototypes": (5 + rng.normal(size=(PROTOTYPES, width))).astype(np.float32),
        "labels": np.full(PROTOTYPES, C - 1, np.int64),
    }


def client(knowledge: Arrays | None = None, projection: int = 0, lacking: int = 0, **params: Any) -> GGEURClient:
    given = {"samples": SAMPLES, "least_images": 2} | params
    scalars = {"statistics": 1} if lacking else {}
    return new_client(GGEURClient, given, knowledge, scalars=scalars, network=network(projection))


def frozen(made: GGEURClient) -> torch.Tensor:
    return made._frozen()[0]


def test_a_node_without_covariances_trains_as_fedavg_and_tells_its_statistics() -> None:
    made, plain = client(lacking=1), fedavg(network=network())
    assert same(fit(made)[0], fit(plain)[0]) and made.memory == {}
    told, y = made.contribution(), made.train_set.y
    for k, (values, vectors) in enumerate(zip(told["eigenvalues"], told["eigenvectors"], strict=True)):
        own = as64(frozen(made))[y == k]
        np.testing.assert_allclose(vectors.T * values @ vectors, np.cov(own.T, bias=True) if len(own) else 0, atol=1e-5)
    assert told["counts"].tolist() == np.bincount(y, minlength=C).tolist()
    check_accepted(made, GGEURStrategy)


def test_statistics_are_of_the_features_before_a_projection_and_cut_to_principal_components() -> None:
    made = client(lacking=1, projection=4, pca=2)
    fit(made)
    contributed = made.contribution()
    assert (contributed["means"].shape, contributed["eigenvectors"].shape) == ((C, D), (C, 2, D))


def test_whose_statistics_are_known_sends_nothing_but_its_numbers() -> None:
    made = client(sent())
    fit(made)
    contributed = made.contribution()
    assert {name: array.size for name, array in contributed.items()} == {
        "counts": C, "means": 0, "eigenvalues": 0, "eigenvectors": 0
    }  # fmt: skip
    check_accepted(made, GGEURStrategy)


@pytest.mark.parametrize("projection", [0, 4])
def test_rows_are_own_features_and_drawn_ones_of_each_class(projection: int) -> None:
    made = client(sent(), projection)
    made.take(shared(made))
    made.start_round(2)
    order = torch.Generator().manual_seed(0)
    batches = list(made.training_batches(made.train_set, 8, 1, (order, order, order)))
    assert all(isinstance(batch, Rows) for batch in batches)
    rows, y = torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])
    held = np.bincount(made.train_set.y, minlength=C)
    assert np.bincount(y, minlength=C).tolist() == [SAMPLES if held[k] or k == C - 1 else 0 for k in range(C)]
    for feature, label in zip(frozen(made), made.train_set.y, strict=True):
        assert ((rows == feature).all(dim=1) & (y == int(label))).any()
    # The last class, which the node does not hold, lies around the prototypes of others.
    apart = torch.cdist(rows[y == C - 1], torch.from_numpy(sent()["prototypes"])).min(dim=1).values
    assert apart.max() < 15


def test_the_loss_of_rows_is_the_cross_entropy_behind_projection_and_classifier() -> None:
    made, x, y = client(sent(), projection=4), drawn(0, 8, D), torch.arange(8) % C
    state = {name: as64(tensor) for name, tensor in made.model.state_dict().items()}
    z = as64(x) @ state["encoder.projection.0.weight"].T + state["encoder.projection.0.bias"]
    wanted = cross_entropy(np.maximum(z, 0) @ state["classifier.weight"].T + state["classifier.bias"], y)
    assert float(made.loss(Rows(x, y, 0))["ce"].detach()) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"eigenvectors": np.zeros((C, 3, D + 1), np.float32)}, {"eigenvalues": np.zeros((C, 2), np.float32)},
        {"labels": np.zeros(1, np.int64)}, {"eigenvalues": np.zeros(C, np.float32)},
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(wrong: Arrays) -> None:
    with refused(FedShiftError, C, D):
        client(sent() | wrong).start_round(2)

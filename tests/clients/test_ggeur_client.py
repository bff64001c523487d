"""GGEUR on a node: statistics once, rows in the place of images, an encoder that must be frozen."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from slow_terms import cross_entropy
from support import C, D, as64, check_accepted, drawn, fedavg, fit, labels, new_client, rng, same, shared

from fedshift_clients.methods import ggeur as terms
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


# --- equations ----------------------------------------------------------------------------------------------


N, F = 40, 6


def slow_covariance(f: Any) -> Any:
    return np.cov(f.T, bias=True)


@pytest.mark.parametrize("images", [1, 4, 40])
def test_covariance_against_numpy(images: int) -> None:
    f = drawn(1, images, F)
    mean, values, vectors = terms.covariance(f)
    np.testing.assert_allclose(mean, as64(f).mean(axis=0), atol=1e-12)
    np.testing.assert_allclose((vectors.T * values) @ vectors, slow_covariance(as64(f)), atol=1e-12)
    np.testing.assert_allclose(terms.covariance(f, 3)[1], values[:3], rtol=1e-9)
    assert len(values) == min(images - 1, F) and values.tolist() == sorted(values, reverse=True)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(values)), atol=1e-12)


def test_a_class_of_few_images_has_no_covariance_and_equal_images_have_none() -> None:
    f, y = drawn(3, N, F), labels(4, N, C - 1)
    y[:] = torch.where(y == 1, 0, y)
    y[5] = 1  # one image; class 3 has none
    least = int((y == 2).sum())
    means, values, vectors = (terms.statistics(f, y, C, least, 0)[k] for k in ("means", "eigenvalues", "eigenvectors"))
    assert vectors.shape == (C, F, F) and means.dtype == values.dtype == vectors.dtype == torch.float32
    for k in range(C):
        own, rebuilt = as64(f)[y == k], (vectors[k].T * values[k]) @ vectors[k]
        np.testing.assert_allclose(rebuilt, slow_covariance(own) if len(own) >= least else 0, atol=1e-5)
        np.testing.assert_allclose(means[k], own.mean(axis=0) if len(own) else 0, atol=1e-6)
    assert not terms.statistics(f, y, C, least + 100, 0)["eigenvalues"].numel()
    assert not terms.covariance(torch.ones(5, F))[1].numel()


def test_scaled_eigenvalues_by_hand() -> None:
    values = torch.tensor([8.0, 4.0, 2.0, 1.0])
    assert terms.scaled(values, 9, 3, 5.0, "largest").tolist() == [40, 12, 2, 1]
    # Of nine numbers five eigenvalues are 0: the six smallest have factors 5, 4.2, 3.4, 2.6, 1.8 and 1.
    assert terms.scaled(values, 9, 6, 5.0, "smallest").tolist() == values.tolist()
    np.testing.assert_allclose(terms.scaled(values, 4, 3, 5.0, "smallest"), [8, 4, 6, 5])
    for number, factor in ((0, 5.0), (10, 1.0)):
        assert torch.equal(terms.scaled(values, 4, number, factor, "largest"), values)
    assert terms.scaled(values[:0], 4, 10, 5.0, "smallest").tolist() == []


@pytest.mark.parametrize(("own", "prototypes"), [(7, 3), (0, 2), (50, 1)])
def test_every_source_has_as_many_rows(own: int, prototypes: int) -> None:
    needed = 23
    places = terms.anchors(own, prototypes, needed, rng())
    of_own, others = places[places < own], torch.bincount(places[places >= own] - own, minlength=prototypes)
    sizes = [*([len(of_own)] if own else []), *others.tolist()]
    assert sum(sizes) == len(places) == needed
    assert max(sizes) - min(sizes) <= 1
    each = torch.bincount(of_own, minlength=own).tolist()
    assert not each or max(each) - min(each) <= 1


def test_rows_around_their_anchors_have_the_covariance() -> None:
    """Own features come first, as they are; the others by (row - anchor), of which numpy takes the covariance."""
    f, own, prototypes, samples = drawn(5, N, F), drawn(6, 5, F), 10 + drawn(7, 2, F), 60_005
    _, values, vectors = (tensor.float() for tensor in terms.covariance(f))
    rows = terms.drawn_rows(own, prototypes, values, vectors, samples, rng(1))
    assert len(rows) == samples and torch.equal(rows[:5], own)
    noise = as64(rows[5:] - torch.cat([own, prototypes])[terms.anchors(5, 2, samples - 5, rng(1))])
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.03)
    np.testing.assert_allclose(noise.T @ noise / len(noise), slow_covariance(as64(f)), atol=0.05)


def test_more_images_than_rows_are_chosen_from_and_no_anchor_gives_no_row() -> None:
    own, more = torch.arange(9.0)[:, None].repeat(1, F), (torch.zeros(0, F), torch.ones(F), torch.eye(F), 4, rng())
    rows = terms.drawn_rows(own, *more)
    assert rows.shape == (4, F) and len({*rows[:, 0].tolist()} & {*range(9)}) == 4
    assert terms.drawn_rows(own[:0], *more).shape == (0, F)

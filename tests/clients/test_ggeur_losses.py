"""GGEUR's statistics and drawn rows against slow versions."""

from typing import Any

import numpy as np
import pytest
import torch
from support import as64, drawn, labels, rng

from fedshift_clients.methods import ggeur as terms

N, C, F = 40, 4, 6


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

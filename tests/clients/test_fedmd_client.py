"""FedMD on a node: transfer learning, digest and revisit, and what it contributes."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import (
    C,
    barred_images,
    batch,
    begun,
    check_accepted,
    fit,
    in_phase,
    new_client,
    normalised,
    terms_in,
)  # fmt: skip

from fedshift_clients.methods.fedmd import FedMDClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_strategies.methods.fedmd import FedMDStrategy

PUBLIC = barred_images(12, seed=7)
NEXT = {"start": 4, "stop": 10}
BRIEF = {"public_epochs": 2, "first_epochs": 1}


def client(params: dict[str, Any] | None = None, knowledge: Arrays | None = None, **options: Any) -> FedMDClient:
    result = options.pop("scalars", NEXT)
    options = {"epochs": 1, "images": ImageConfig(eval_batch=7), "public_set": lambda: PUBLIC} | options
    return new_client(FedMDClient, BRIEF | (params or {}), knowledge, scalars=result, **options)


def consensus(start: int = 2, stop: int = 8, seed: int = 3) -> Arrays:
    scores = np.random.default_rng(seed).normal(size=(stop - start, C)).astype(np.float32)
    return {"scores": scores, "window": np.array([start, stop])}


def later(params: dict[str, Any] | None = None, knowledge: Arrays | None = None, **options: Any) -> FedMDClient:
    """Return a node in its second round."""
    made = client(params, **options)
    fit(made)
    made.knowledge = consensus() if knowledge is None else knowledge
    made.server_round = 2
    made.take([])
    return made


def test_a_first_round_learns_the_public_set_and_then_its_own_images() -> None:
    made = client(knowledge=consensus())  # also where others have scores already
    made.start_round(1)
    first, second = made.phases(1)
    assert (first.images, first.epochs, first.loss) == (PUBLIC, 2, None)
    assert (second.images, second.epochs, second.fresh) == (None, 1, True)
    _, metrics = fit(made)
    assert terms_in(metrics) == ["ce"]
    assert made.steps == 2 * 2 + 3  # 12 public and 20 own images in batches of 8
    alone = begun(client({"public_epochs": 0, "first_epochs": None}), 1)
    assert [(phase.images, phase.epochs) for phase in alone.phases(1)] == [(None, 1)]


def test_later_rounds_digest_the_scores_of_their_window_then_revisit() -> None:
    made = later({"digest_batch": 4, "lambda_digest": 3.0, "digest_lr": 0.2})
    made.start_round(2)
    digest, revisit = made.phases(2)
    assert (digest.epochs, digest.lr, digest.views, digest.batch_size) == (1, 0.2, 0, 4)
    assert digest.images is not None and np.array_equal(digest.images.x, PUBLIC.x[2:8])
    assert digest.images.y.tolist() == list(range(6))
    assert (revisit.images, revisit.epochs, revisit.fresh) == (None, 1, True)

    made, given = in_phase(later({"lambda_digest": 3.0}), place=0), batch(5, y=[5, 0, 3, 3, 1])
    apart = (made.model(given.x)[1] - torch.from_numpy(consensus()["scores"])[given.y]).abs()
    torch.testing.assert_close(made.terms_of(given), {"digest": 3 * apart.mean()})
    assert terms_in(fit(later(), 2)[1]) == ["digest", "ce"]


def test_it_contributes_the_scores_of_the_next_window_in_evaluation_mode() -> None:
    made = client(model="cnn_bn")
    fit(made)
    made.model.eval()
    with torch.no_grad():
        wanted = made.model(normalised(PUBLIC, made.setup.images)[4:10])[1].numpy()
    assert list(made.contribution()) == ["scores"]
    np.testing.assert_allclose(made.contribution()["scores"], wanted, rtol=1e-5, atol=1e-6)
    check_accepted(made, FedMDStrategy)
    assert made.shared_names == []


@pytest.mark.parametrize("scalars", [{"start": 3, "stop": 3}, {"start": -1, "stop": 2}, {"start": 0, "stop": 13}])
def test_a_window_that_the_copy_does_not_have_is_refused(scalars: dict[str, int]) -> None:
    with refused(FedShiftError, 12):
        fit(client(scalars=scalars))


def test_scores_of_another_shape_are_refused() -> None:
    wrong = consensus() | {"scores": np.zeros((5, C), np.float32)}
    made = later(knowledge=wrong)
    made.start_round(2)
    with refused(FedShiftError, (5, 4), 6):
        made.phases(2)

"""FedICON's test-time adaptation: against plain descent, what it sees, what it leaves, over FedICON and over FedAvg."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import INDEX, ROUND, SEED, barred_images, changed, new_client, parts_of, scored_weights, weights
from torch import Tensor

from fedshift_clients.adapt.fedicon import ContrastAdaptation
from fedshift_clients.adapt.params import ContrastParams
from fedshift_clients.base import DomainClient
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.losses.contrast import instance_contrast
from fedshift_clients.methods.fedicon import FedICONClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.arrays import Arrays
from fedshift_core.seeding import torch_seed

BEFORE = "before-adaptation"
OWN_VIEWS: dict[str, Any] = {
    "crop_padding": 2, "resized_crop": (0.5, 1.0), "jitter": (0.4, 0.4, 0.4, 0.1), "grayscale": 0.2,
}  # fmt: skip
VIEWS = ImageConfig(**OWN_VIEWS, views=2, eval_batch=33)

Settings = dict[str, Any]


def client(
    adapt: Settings | None = None, params: Settings | None = None, kind: type[DomainClient] = FedICONClient,
    **options: Any,
) -> DomainClient:  # fmt: skip
    """A client that adapts; FedICON's makes its classifier personal first."""
    made = new_client(
        kind, params, train_set=barred_images(), test_set=lambda domain: barred_images(15, seed=1),
        adaptation=ContrastAdaptation(ContrastParams(**adapt or {})), **{"images": VIEWS} | options,
    )  # fmt: skip
    made.server_round = ROUND
    return made


def check_close(found: Arrays, expected: Arrays) -> None:
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-5, err_msg=name)


def slow_adaptation(made: DomainClient, images: NDArray[np.uint8], p: ContrastParams) -> Arrays:
    """Plain gradient descent on Eq. 5, the views drawn batch after batch as the node draws them."""
    encoder = copy.deepcopy(made.model.encoder)
    head = made.model.get_submodule("projection") if hasattr(made.model, "projection") else torch.nn.Identity()
    pipeline = Pipeline(VIEWS, torch.device("cpu"))
    velocity: list[Tensor] = []
    order, first, second = (
        torch.Generator().manual_seed(torch_seed(SEED, f"fedicon-tta-{name}", INDEX, ROUND))
        for name in ("order", "first", "second")
    )
    for _ in range(p.epochs):
        for index in torch.randperm(len(images), generator=order).split(p.batch_size):  # type: ignore[no-untyped-call]
            x = torch.from_numpy(images)[index]
            one, other = pipeline.train(x, first), pipeline.train(x, second)
            loss = instance_contrast(head(encoder(one)), head(encoder(other)), p.tau)
            tuned = list(encoder.parameters())
            pulls = [grad + p.weight_decay * w for w, grad in zip(tuned, torch.autograd.grad(loss, tuned), strict=True)]
            velocity = [p.momentum * v + pull for v, pull in zip(velocity, pulls, strict=True)] if velocity else pulls
            for weight, v in zip(tuned, velocity, strict=True):
                weight.data -= p.lr * v
    return {f"encoder.{name}": tensor.numpy() for name, tensor in encoder.state_dict().items()}


@pytest.mark.parametrize(
    ("n", "adapt", "kind", "params"),
    [
        (12, {"batch_size": 12}, FedICONClient, {}),
        (12, {"batch_size": 5, "epochs": 2}, FedICONClient, {"projection": "mlp"}),
        (5, {"batch_size": 32}, DomainClient, {}),
        (12, {"batch_size": 4, "momentum": 0.5, "weight_decay": 0.1}, FedICONClient, {}),
    ],
)
def test_adaptation_is_descent_on_the_contrast_of_the_test_images(
    n: int, adapt: Settings, kind: type[DomainClient], params: Settings
) -> None:
    made, test = client({"lr": 0.05, "tau": 0.2} | adapt, params, kind), barred_images(n, seed=1)
    before = weights(made)
    expected = slow_adaptation(made, test.x, ContrastParams(**{"lr": 0.05, "tau": 0.2} | adapt))
    scores, (unadapted, adapted) = scored_weights(made, test)
    assert parts_of(changed(unadapted, adapted)) == {"encoder"}  # the classifier is fixed
    assert parts_of(changed(before, unadapted)) == ({"classifier"} if kind is FedICONClient else set())  # personal
    check_close(adapted, expected)
    for state, found in ((adapted, (scores.correct, scores.loss_sum)), (unadapted, scores.others[BEFORE])):
        made.model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        assert found in (made.score(test), made.score(test)[0])


@pytest.mark.parametrize(
    ("mode", "params"), [("transductive", {}), ("online", {"lie": False}), ("online", {"classifier_training": "local"})]
)
def test_scoring_leaves_the_model_as_found_and_starts_again(mode: str, params: Settings) -> None:
    made, test = client({"lr": 0.05, "mode": mode}, params, model="cnn_bn"), barred_images(12, seed=1)
    before = weights(made)
    torch.manual_seed(3)
    rng = torch.get_rng_state()
    first = made.score_test(test)
    assert not changed(before, weights(made)) and made.memory == {}
    made.score_test(barred_images(7, seed=5))  # what was scored in between does not matter
    assert made.score_test(test) == first and torch.equal(torch.get_rng_state(), rng)

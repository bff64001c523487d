"""F2DC on a node: FedAvg's client with its modules, each switch against its term."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import C, batch, new_client
from support import image_set as images_of

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.base import DomainClient
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.batches import Batch
from fedshift_datasets.base import ImageSet

OFF: dict[str, Any] = {"use_dfd_loss": False, "use_dfc_loss": False}
TRAIN: dict[str, Any] = {"lr": 0.02, "index": 0}
Found = dict[str, tuple[float, NDArray[np.float32]]]


def image_set(y: Sequence[int] | None = None) -> ImageSet:
    return images_of(18) if y is None else ImageSet(images_of(len(y)).x, np.array(y))


def client(params: dict[str, Any] | None = None, **options: Any) -> DomainClient:
    modules = [F2DCModules(F2DCParams(**params or {}))]
    return new_client(DomainClient, modules=modules, **{"train_set": image_set()} | TRAIN | options)


def given() -> Batch:
    return batch(8, 3, classes=C)


def terms(params: dict[str, Any] | None = None) -> Found:
    """Each term of one batch, and its gradient with respect to the network's own weights."""
    made = client(params)
    made._prepare_round(1)
    made.model.train()
    weights = [*made.model.encoder.parameters(), *made.model.classifier.parameters()]
    content = {}
    for name, term in made.terms_of(given()).items():
        grads = torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
        content[name] = (float(term.detach()), torch.cat([grad.flatten() for grad in grads]).numpy())
    return content


# --- switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"use_dfd_loss": False}, {"dfd"}),
        ({"lambda1": 0.0}, {"dfd"}),
        ({"lambda2": 0.0}, {"dfc"}),
        # Without A_C the classifier sees f, and y^ comes from it.
        ({"use_dfc_loss": False}, {"ce", "dfd", "dfc"}),
        ({"eval_noise": True, "test_feature": "f_plus"}, set()),
        ({"local_modules": "local", "eval_modules": "client_mean"}, set()),
    ],
)
def test_switch_changes_exactly_the_terms_it_names(params: dict[str, Any], changed: set[str]) -> None:
    default, switched = terms(), terms(params)
    assert list(default) == ["ce", "dfd", "dfc"]
    off = {"use_dfd_loss": "dfd", "lambda1": "dfd", "use_dfc_loss": "dfc", "lambda2": "dfc"}
    gone = {off[key] for key, value in params.items() if key in off and not value}
    assert set(switched) == set(default) - gone
    for name, (value, grad) in switched.items():
        equal = value == default[name][0] and np.array_equal(grad, default[name][1])
        assert equal is (name not in changed), name


# --- a round ---------------------------------------------------------------------------------------


def test_local_modules_make_no_personal_model() -> None:
    made = client({"local_modules": "local", "eval_modules": "none"})
    assert made.shared_names == client(OFF).shared_names
    for scored, personal in (("none", False), ("client_mean", True)):
        config = resolve({"method": "f2dc", "set": f"method.local_modules=local method.eval_modules={scored}"})
        assert is_personal(config, initial_model(config)) is personal

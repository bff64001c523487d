"""F2DC on a node: FedAvg's client with its modules, each switch against its term."""

from typing import Any

import pytest
import torch
from support import C, batch, fedavg, gradients, new_client

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.base import DomainClient
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams


def client(params: dict[str, Any], **options: Any) -> DomainClient:
    return new_client(DomainClient, modules=[F2DCModules(F2DCParams(**params))], index=0, **options)


def terms(params: dict[str, Any]) -> dict[str, tuple[float, Any]]:
    """Each term of one batch, and its gradient with respect to the network's own weights."""
    made = client(params)
    made._prepare_round(1)
    made.model.train()
    own = ("encoder", "classifier")
    return {
        name: (value, torch.cat([grad.flatten() for weight, grad in grads.items() if weight.startswith(own)]))
        for name, (value, grads) in gradients(made, batch(8, 3, classes=C)).items()
    }


# --- switches --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "gone", "changed"),
    [
        ({"use_dfd_loss": False}, {"dfd"}, set()),
        ({"lambda1": 0.0}, {"dfd"}, set()),
        ({"lambda2": 0.0}, {"dfc"}, set()),
        # Without A_C the classifier sees f, and y^ comes from it.
        ({"use_dfc_loss": False}, {"dfc"}, {"ce", "dfd"}),
        ({"eval_noise": True, "test_feature": "f_plus"}, set(), set()),
        ({"local_modules": "local", "eval_modules": "client_mean"}, set(), set()),
    ],
)
def test_switch_changes_exactly_the_terms_it_names(params: dict[str, Any], gone: set[str], changed: set[str]) -> None:
    default, switched = terms({}), terms(params)
    assert list(default) == ["ce", "dfd", "dfc"] and default.keys() - switched.keys() == gone
    for name, (value, grad) in switched.items():
        equal = value == default[name][0] and torch.equal(grad, default[name][1])
        assert equal is (name not in changed), name


# --- a round ---------------------------------------------------------------------------------------


def test_local_modules_make_no_personal_model() -> None:
    made = client({"local_modules": "local", "eval_modules": "none"})
    assert made.shared_names == fedavg().shared_names
    for scored, personal in (("none", False), ("client_mean", True)):
        config = resolve({"method": "f2dc", "set": f"method.local_modules=local method.eval_modules={scored}"})
        assert is_personal(config, initial_model(config)) is personal

"""F2DC on a node: FedAvg's client with its modules, each switch against its term."""

from typing import Any

from support import fedavg, new_client

from fedshift_app.config.resolving import resolve
from fedshift_app.node.setup import initial_model, is_personal
from fedshift_clients.base import DomainClient
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams


def client(params: dict[str, Any], **options: Any) -> DomainClient:
    return new_client(DomainClient, modules=[F2DCModules(F2DCParams(**params))], index=0, **options)


# --- switches --------------------------------------------------------------------------------------


# --- a round ---------------------------------------------------------------------------------------


def test_local_modules_make_no_personal_model() -> None:
    made = client({"local_modules": "local", "eval_modules": "none"})
    assert made.shared_names == fedavg().shared_names
    for scored, personal in (("none", False), ("client_mean", True)):
        config = resolve({"method": "f2dc", "set": f"method.local_modules=local method.eval_modules={scored}"})
        assert is_personal(config, initial_model(config)) is personal

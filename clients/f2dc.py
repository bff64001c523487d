"""F2DC client [Wang et al., 2026].

Paper: "Domain-Skewed Federated Learning with Feature Decoupling and Calibration", Huan Wang, Jun Shen, Jun Yan,
Guansong Pang, CVPR 2026; https://arxiv.org/abs/2603.14238 (equations 3-9).
Reference code: mala-lab/F2DC, versions up to commit c59e322 and commit 6b0a8ed.

The node trains as FedAvg's does, with cross-entropy on the fused map (Eq. 8); modules and the other terms of
Eq. 9 are the plugin ``clients.modules.f2dc``, which other methods can carry too (Table 3).
"""

from clients.base import DomainClient
from clients.modules.base import Plugin
from clients.modules.f2dc import Decoupling, DecouplingParams
from fedshift_wire.errors import ConfigError
from fedshift_wire.params import Params


class F2DCClient(DomainClient):
    """FedAvg's client with a model that carries DFD and DFC."""

    params_model = DecouplingParams

    @classmethod
    def plugin(cls, modules: Plugin | None, params: Params) -> Plugin:
        """Return the modules by the method's own parameters.

        Raises:
            ConfigError: If the configuration asks for modules a second time.
        """
        if modules is not None:
            raise ConfigError("modules.name: the method f2dc carries its modules already; set method.KEY instead")
        return Decoupling(params)

"""All modules by name. No torch: the command line reads it."""

from dataclasses import dataclass
from typing import Any

from fedshift_core.extensions import Registry
from fedshift_core.params import Params


@dataclass(frozen=True)
class ModulesEntry:
    """Modules that a configuration can ask for.

    Attributes:
        name: The name by which a configuration asks for them.
        title: One line for lists.
        modules: Their class, a ``fedshift_clients.modules.base.Modules``, named as ``module:Class`` or given itself.
        terms: Names of their loss terms: the server takes no other from a node.
        needs_domains: Whether they need nodes that hold images of several domains, and know of which each is; or the
            setting, ``KEY=VALUE``, with which they do.
        params: The class of their parameters, in a module without torch; if empty, their own class tells.
    """

    name: str
    title: str
    modules: str | type[Any]
    terms: tuple[str, ...] = ()
    needs_domains: bool | str = False
    params: str | type[Params] = ""


MODULES: Registry[ModulesEntry] = Registry(
    "modules",
    "fedshift.modules",
    lambda: ModulesEntry,
    {
        "f2dc": ModulesEntry(
            "f2dc",
            "F2DC: feature decoupling and calibration",
            "fedshift_clients.modules.f2dc:F2DCModules",
            ("dfd", "dfc"),
            params="fedshift_clients.modules.params:F2DCParams",
        ),
        "within-domains": ModulesEntry(
            "within-domains",
            "CORAL, MMD, IRM and V-REx over the domains within a node",
            "fedshift_clients.modules.within:WithinDomainsModules",
            ("coral", "mmd", "irm", "rex"),
            needs_domains=True,
            params="fedshift_clients.modules.params:WithinDomainsParams",
        ),
        "mixstyle": ModulesEntry(
            "mixstyle",
            "MixStyle: styles of maps mixed between images of a batch",
            "fedshift_clients.modules.mixstyle:MixStyleModules",
            needs_domains="mix=crossdomain",
            params="fedshift_clients.modules.params:MixStyleParams",
        ),
        "fedfa": ModulesEntry(
            "fedfa",
            "FedFA: statistics of maps drawn as widely as nodes differ in them",
            "fedshift_clients.modules.fedfa:FedFAModules",
            params="fedshift_clients.modules.params:FedFAParams",
        ),
    },
)

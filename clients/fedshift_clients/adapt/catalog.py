"""All adaptations by name. No torch: the command line reads it."""

from dataclasses import dataclass
from typing import Any

from fedshift_core.extensions import Registry
from fedshift_core.params import Params


@dataclass(frozen=True)
class AdaptationEntry:
    """An adaptation that a configuration can ask for.

    Attributes:
        name: The name by which a configuration asks for it.
        title: One line for lists.
        adaptation: Its class, a ``fedshift_clients.adapt.base.Adaptation``, named as ``module:Class`` or given itself.
        params: The class of its parameters, in a module without torch; if empty, its own class tells.
    """

    name: str
    title: str
    adaptation: str | type[Any]
    params: str | type[Params] = ""


ADAPTATIONS: Registry[AdaptationEntry] = Registry(
    "adaptation",
    "fedshift.adaptations",
    lambda: AdaptationEntry,
    {
        entry.name: entry
        for entry in (
            AdaptationEntry(
                "finetune",
                "one more local training round before the test",
                "fedshift_clients.adapt.finetune:Finetune",
                "fedshift_clients.adapt.params:FinetuneParams",
            ),
            AdaptationEntry(
                "fedicon",
                "FedICON: contrast of two views of the test images",
                "fedshift_clients.adapt.fedicon:ContrastAdaptation",
                "fedshift_clients.adapt.params:ContrastParams",
            ),
            AdaptationEntry(
                "tent",
                "Tent: BatchNorm down the entropy of each batch",
                "fedshift_clients.adapt.tent:TentAdaptation",
                "fedshift_clients.adapt.params:TentParams",
            ),
            AdaptationEntry(
                "eata",
                "EATA: as Tent, by sure and new samples, without forgetting",
                "fedshift_clients.adapt.eata:EATAAdaptation",
                "fedshift_clients.adapt.params:EATAParams",
            ),
            AdaptationEntry(
                "t3a",
                "T3A: a classifier of the features of the test images",
                "fedshift_clients.adapt.t3a:T3AAdaptation",
                "fedshift_clients.adapt.params:T3AParams",
            ),
        )
    },
)

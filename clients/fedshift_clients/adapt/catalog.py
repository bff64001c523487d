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
        adaptation: Its class, a ``clients.adapt.base.Adaptation``, named as ``module:Class`` or given itself.
        params: The class of its parameters, in a module without torch; if empty, its own class tells.
    """

    name: str
    title: str
    adaptation: str | type[Any]
    params: str | type[Params] = ""


ADAPTATIONS: Registry[AdaptationEntry] = Registry(
    "adaptation", "fedshift.adaptations", lambda: AdaptationEntry,
    {
        entry.name: entry
        for entry in (
            AdaptationEntry(
                "finetune", "one more local training round before the test", "clients.adapt.finetune:Finetune",
                "clients.params.finetune:FinetuneParams",
            ),
            AdaptationEntry(
                "fedicon", "FedICON: contrast of two views of the test images",
                "clients.adapt.fedicon:ContrastAdaptation", "clients.params.fedicon:ContrastParams",
            ),
            AdaptationEntry(
                "tent", "Tent: BatchNorm down the entropy of each batch", "clients.adapt.tent:TentAdaptation",
                "clients.params.tent:TentParams",
            ),
            AdaptationEntry(
                "eata", "EATA: as Tent, by sure and new samples, without forgetting",
                "clients.adapt.eata:EATAAdaptation", "clients.params.eata:EATAParams",
            ),
            AdaptationEntry(
                "t3a", "T3A: a classifier of the features of the test images", "clients.adapt.t3a:T3AAdaptation",
                "clients.params.t3a:T3AParams",
            ),
        )
    },
)  # fmt: skip

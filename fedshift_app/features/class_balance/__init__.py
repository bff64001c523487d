"""Losses for classes of unequal numbers of images (``train.class_weights``)."""

from fedshift_core.features import Case, Feature, Key, Need, said
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found, some
from fedshift_core.registry import imported
from fedshift_core.spelling import meant
from fedshift_core.wire import names as wire

MOST_NAMED = 20  # classes that a message names


def _rules(case: Case) -> str:
    train = case.config.train
    if isinstance(train.class_weights, FrozenDict) and (why := _unknown(case, train.class_weights)):
        return why
    if train.class_weights != "none":
        return _module_of_its_own(case, said("train.class_weights", train.class_weights))
    return _module_of_its_own(case, "train.loss=focal") if train.loss == "focal" else ""


def _unknown(case: Case, weights: FrozenDict[str, float]) -> str:
    classes = case.config.dataset.known().classes
    if unknown := [name for name in weights if name not in classes]:
        return (
            f"train.class_weights: {as_found(unknown[0])} is no class of this run; there are "
            f"{some(classes, MOST_NAMED)}{meant(unknown[0], classes)}"
        )
    return ""


def _module_of_its_own(case: Case, setting: str) -> str:
    from fedshift_clients.modules.catalog import MODULES

    for name in (str(entry["name"]) for entry in case.config.modules):
        if not imported(MODULES[name].modules).can_weigh_classes():
            return f"{setting}: the modules {name!r} have losses of their own that do not weigh classes"
    return ""


_TOTALS = (Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),)
FEATURE = Feature(
    "class-balance",
    "Losses for classes of unequal numbers of images",
    "train.class_weights",
    "fedshift_app.features.class_balance.server:ClassBalance",
    "fedshift_app.features.class_balance.node:ClassBalanceOnNode",
    place=160,
    needs=(Need("weighs classes"), Need("weighs classes", ("focal",), "train.loss")),
    rules=_rules,
    train=_TOTALS,
    evaluate=_TOTALS,
)

"""Losses for classes of unequal numbers of images (``train.class_weights``)."""

from fedshift_core.features import CLASSES, Case, Feature, Key, Need
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import as_found, some
from fedshift_core.params import says_again
from fedshift_core.registry import imported
from fedshift_core.spelling import meant
from fedshift_core.wire import names as wire

MOST_NAMED = 20  # classes that a message names


def _rules(case: Case) -> str:
    train, default = case.config.train, type(case.config.train).model_fields
    found = as_found(train.class_weights)
    if isinstance(train.class_weights, FrozenDict) and (why := _unknown(case, train.class_weights)):
        return why
    if train.class_counts != "node" and not train.counts_classes:
        return f"train.class_counts={train.class_counts} needs train.class_weights=balanced or effective, found {found}"
    if train.class_beta != default["class_beta"].default and train.class_weights != "effective":
        return f"train.class_beta={train.class_beta:g} needs train.class_weights=effective, found {found}"
    if train.focal_gamma != default["focal_gamma"].default and train.loss != "focal":
        return f"train.focal_gamma={train.focal_gamma:g} needs train.loss=focal, found {train.loss}"
    if train.class_weights != "none" or train.loss == "focal":
        setting = "train.loss=focal" if train.class_weights == "none" else f"train.class_weights={found}"
        return _module_of_its_own(case, setting)
    return ""


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
        if not says_again(imported(MODULES[name].modules), "weighs_classes", ("terms",)):
            return f"{setting}: the modules {name!r} have losses of their own that do not weigh classes"
    return ""


FEATURE = Feature(
    "class-balance",
    "Losses for classes of unequal numbers of images",
    "train.class_weights",
    place=160,
    needs=(Need(CLASSES), Need(CLASSES, ("focal",), "train.loss")),
    rules=_rules,
    server="fedshift_app.features.class_balance.server:ClassBalance",
    node="fedshift_app.features.class_balance.node:ClassBalanceOnNode",
    train=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
    evaluate=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
)

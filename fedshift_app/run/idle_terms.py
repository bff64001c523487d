"""What a run computes to no effect: loss terms of features that never change, a second view that nothing reads."""

import torch

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.run.build import methods_of
from fedshift_clients.models.networks import SplitModel
from fedshift_core.extensions import OURS
from fedshift_core.params import Params

WIDTH = 256  # of the projection that the line proposes


def warning(config: RunConfig, model: SplitModel) -> str:
    """Return a line about the method's terms that have no gradient; an empty text if all have one.

    Args:
        config: The run.
        model: Its model, with what is frozen.
    """
    methods = methods_of(config)
    params = config.params()
    idle = [term for m in methods for term in m.of_features if _is_on(params, str(m.switches.get(term, "")))]
    # Modules have terms of their own, and may change the way to the features.
    if not idle or not model.frozen or config.modules or _trains_features(model, config.dataset.pixels):
        return ""
    several = len(idle) > 1
    line = (
        f"model.freeze={config.model.freeze} without model.projection: features never change, so the "
        f"term{'s' * several} {' and '.join(idle)} of {config.method['name']} "
        f"{'have' if several else 'has'} no gradient and change{'s' * (not several)} nothing"
    )
    if not any({*m.terms, *m.other_terms} - {*m.of_features} for m in methods):
        line += "; that leaves cross-entropy, FedAvg's only term"
    return f"{line}; model.projection={WIDTH} puts a trainable layer there"


def second_view(config: RunConfig) -> str:
    """Return a line about a second view of each image that nothing reads; an empty text if something may read it.

    A method of ours that reads it has ``images.views: 2`` in its file. Code of others may read it without that.
    """
    method = config.declared
    modules = [str(entry["name"]) for entry in config.modules]
    origins = [registry.METHODS.origin(method.name), *map(registry.MODULES.origin, modules)]
    reads = method.defaults.get("images", {}).get("views") == 2
    if config.images.views == 1 or reads or any(origin != OURS for origin in origins):
        return ""
    return (
        f"images.views=2: the method {method.name!r} reads one view of an image; the second takes time and changes "
        "nothing; images.views=1 leaves it out"
    )


def _is_on(params: Params, switches: str) -> bool:
    """Tell whether all parameters are on that a term needs."""
    for switch in switches.split():
        name, _, wanted = switch.partition("=")
        value = getattr(params, name)
        if str(value) != wanted if wanted else not value:
            return False
    return True


def _trains_features(model: SplitModel, size: int) -> bool:
    """Tell whether features depend on a weight that trains; two images are tried."""
    mode = model.training
    images = torch.zeros(2, 3, size, size, device=next(model.parameters()).device)
    with torch.enable_grad():
        features, _ = model.eval()(images)
    model.train(mode)
    return features.requires_grad

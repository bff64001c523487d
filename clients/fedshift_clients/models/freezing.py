"""``model.freeze``: parts of a network that never change."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import projection_of
from fedshift_clients.models.stages import feature_stages
from fedshift_core.errors import ConfigError

_NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d, nn.RMSNorm)


def freeze(model: SplitModel, what: str, name: str) -> None:
    """Freeze a part of a model: it takes no gradient, stays in evaluation mode and is named in ``model.frozen``.

    Args:
        model: With all that a method and modules put into it; that stays free.
        what: ``encoder`` (without its projection), ``norm`` or ``stages:N``.
        name: Of the network, for messages.

    Raises:
        ConfigError: If the network has no such part.
    """
    parts = _parts(model, what, name)
    inside = {id(module) for part in parts for module in part.modules()}
    tensors = {id(tensor) for part in parts for tensor in (*part.parameters(), *part.buffers())}
    if what == "encoder":  # where a projection stays free, what belongs to no part of the encoder
        own = (*model.encoder.parameters(recurse=False), *model.encoder.buffers(recurse=False))
        tensors |= {id(tensor) for tensor in own}
    state = model.state_dict(keep_vars=True)
    model.frozen = frozenset(key for key, tensor in state.items() if id(tensor) in tensors)
    still: list[str] = []
    for path, module in model.named_modules():  # parents first, which take their children along
        if id(module) in inside and not any(path.startswith(f"{above}.") for above in still):
            still.append(path)
    model.still = tuple(still)
    for key, parameter in model.named_parameters():
        if key in model.frozen:
            parameter.requires_grad_(False)
    model.hold_still()


def _parts(model: SplitModel, what: str, name: str) -> list[nn.Module]:
    """Return the modules that are to be frozen as a whole."""
    if what == "encoder":
        projection = projection_of(model.encoder)
        if projection is None:
            return [model.encoder]
        return [part for part in model.encoder.children() if part is not projection]
    if what == "norm":
        norms: list[nn.Module] = [module for module in model.encoder.modules() if isinstance(module, _NORMS)]
        if not norms:
            raise ConfigError(f"model.freeze=norm: the network {name} has no normalisation layers")
        return norms
    stages = feature_stages(model.encoder)
    cut = [block for block in stages.maps if isinstance(block, nn.Module)] if stages is not None else []
    if stages is None or len(cut) < len(stages.maps):
        raise ConfigError(
            f"model.freeze={what}: the network {name} has no separate stages; allowed is none, encoder or norm"
        )
    number = int(what.partition(":")[2])
    if number > len(cut):
        raise ConfigError(f"model.freeze={what}: the network {name} has the stages 1 to {len(cut)}")
    return cut[:number]

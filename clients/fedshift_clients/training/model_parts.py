"""Finds what was put in the place of a model's weights, layers and hooks.

Only what changes in place is trained, sent, and put back for the next client of the process.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

#: What of BatchNorm decides how it normalises, besides its arrays.
_SETTINGS = ("momentum", "eps", "track_running_stats")


class ModelParts:
    """The modules, weights, buffers and hooks that a model has when this is made."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: list[tuple[dict[Any, Any], dict[Any, Any], str]] = []  # what a module holds, as it was, whose
        self._entries: list[tuple[dict[str, Any], str, Any, str]] = []  # what holds it, key, thing, path
        self._memory: list[tuple[Tensor, int, Tensor, str]] = []
        self._norms: list[tuple[_BatchNorm, tuple[Any, ...], str]] = []
        for path, module in model.named_modules():
            start = f"{path}." if path else ""
            for held in (module._modules, module._parameters, module._forward_hooks, module._forward_pre_hooks):
                self._kept.append((held, dict(held), path))
            passing = module._non_persistent_buffers_set
            held_by_name: list[dict[str, Any]] = [module._modules, module._parameters, module._buffers]
            for held in held_by_name:
                self._entries += [(held, k, v, start + k) for k, v in held.items() if k not in passing]
            tensors = [*module._parameters.items(), *module._buffers.items()]
            self._memory += [
                (tensor, tensor.data_ptr(), tensor.detach(), start + key)
                for key, tensor in tensors
                if tensor is not None and key not in passing
            ]
            if isinstance(module, _BatchNorm):
                self._norms.append((module, tuple(getattr(module, name) for name in _SETTINGS), path))
        self._dicts = [held for held, _, _ in self._kept]
        self._number = sum(map(len, self._dicts))

    def restore(self) -> None:
        """Put everything back into its place; numbers stay as they are."""
        for held, things, _ in self._kept:
            held.clear()
            held.update(things)
        for owner, key, thing, _ in self._entries:
            owner[key] = thing
        for tensor, _, memory, _ in self._memory:
            tensor.data = memory
        for norm, settings, _ in self._norms:
            for name, value in zip(_SETTINGS, settings, strict=True):
                setattr(norm, name, value)

    def change(self) -> str:
        """Return what is not in its place, or an empty text: microseconds, as nothing walks through the modules."""
        for held, key, thing, path in self._entries:
            if held.get(key) is not thing:
                return f"{path} was replaced"
        for tensor, address, _, path in self._memory:
            if tensor.data_ptr() != address:
                return f"{path} was given other memory"
        for norm, settings, path in self._norms:
            if (norm.momentum, norm.eps, norm.track_running_stats) != settings:
                return f"{' or '.join(_SETTINGS)} of {path} was changed"
        return "" if sum(map(len, self._dicts)) == self._number else self._addition()

    def _addition(self) -> str:
        for held, things, path in self._kept:
            for key, thing in held.items():
                if key not in things:
                    where = f" of {path}" if path else ""
                    kind = "a hook" if not isinstance(key, str) else f"the layer or weight {key!r}"
                    return (
                        f"{kind}{where} was added{'' if isinstance(thing, nn.Module | Tensor) else ' and not removed'}"
                    )
            if len(held) != len(things):
                return f"a hook of {path or 'the model'} was removed"
        return ""

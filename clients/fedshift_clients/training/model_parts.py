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
        self._whole: list[tuple[dict[Any, Any], dict[Any, Any]]] = []  # what holds parts, all of these
        self._kept: list[tuple[dict[Any, Any], dict[Any, Any], str]] = []  # what holds parts, what stays, its path
        self._memory: list[tuple[Tensor, int, Tensor, str]] = []
        for path, module in model.named_modules():
            start, passing = f"{path}." if path else "", module._non_persistent_buffers_set
            holders: list[dict[Any, Any]] = [
                module._modules,
                module._parameters,
                module._forward_hooks,
                module._forward_pre_hooks,
            ]
            self._whole += [(held, dict(held)) for held in holders]
            for held in (*holders, module._buffers):
                self._kept.append((held, {key: part for key, part in held.items() if key not in passing}, start))
            if isinstance(module, _BatchNorm):
                self._kept.append((vars(module), {name: vars(module)[name] for name in _SETTINGS}, start))
            self._memory += [
                (tensor, tensor.data_ptr(), tensor.detach(), start + key)
                for key, tensor in (*module._parameters.items(), *module._buffers.items())
                if tensor is not None and key not in passing
            ]

    def restore(self) -> None:
        """Put everything back into its place; numbers stay as they are."""
        for held, parts in self._whole:
            held.clear()
            held.update(parts)
        for held, parts, _ in self._kept:
            held.update(parts)
        for tensor, _, memory, _ in self._memory:
            tensor.data = memory

    def change(self) -> str:
        """Return what is not in its place, or an empty text: microseconds, as nothing walks through the modules."""
        for held, parts, path in self._kept:
            for key, part in parts.items():
                if held.get(key) is not part:
                    return f"{path}{key} was replaced"
        for tensor, address, _, path in self._memory:
            if tensor.data_ptr() != address:
                return f"{path} was given other memory"
        added = any(len(held) != len(parts) for held, parts in self._whole)
        return "a layer, a weight or a hook was added, and not removed," if added else ""

"""torch's optimisers without its compiler, which they would import for nothing.

The first step of any optimiser of torch imports ``torch._dynamo``, so that a compiled step could be recognised: two
seconds and 160 MB in every process, measured with torch 2.15. These do the same steps, and leave it out. Where torch is
built in another way, they are torch's own.
"""

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

#: What torch keeps out of compiled code, as long as nobody has imported the compiler by a mark on the function itself.
_KEPT_OUT = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_MARK = "__dynamo_disable"


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a class that is ``kind`` but for the import."""
    step = inspect.unwrap(kind.step)
    if step is kind.step or list(inspect.signature(step).parameters) != ["self", "closure"]:
        return kind

    class Uncompiled(kind):  # type: ignore[misc, valid-type]
        def step(self, closure: Callable[[], float] | None = None) -> float | None:
            with torch.no_grad():
                loss: float | None = step(self, closure)
            return loss

    Uncompiled.__name__ = Uncompiled.__qualname__ = kind.__name__
    return Uncompiled


def _leave_compiler_out() -> None:
    if "torch._dynamo" in sys.modules:
        return
    for name in _KEPT_OUT:
        function: Any = inspect.unwrap(getattr(torch.optim.Optimizer, name))
        if not hasattr(function, _MARK):
            setattr(function, _MARK, function)


_leave_compiler_out()
_SGD, _Adam, _AdamW = (_uncompiled(kind) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))


def sgd(weights: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """Return ``torch.optim.SGD``; options are its own."""
    return _SGD(weights, **options)


def adam(weights: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """Return ``torch.optim.Adam``; options are its own."""
    return _Adam(weights, **options)


def adamw(weights: Iterable[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    """Return ``torch.optim.AdamW``; options are its own."""
    return _AdamW(weights, **options)

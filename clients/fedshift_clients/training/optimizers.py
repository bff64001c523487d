"""torch's optimisers without its compiler, which they would import for nothing.

The first step of any optimiser of torch imports ``torch._dynamo``, so that a compiled step could be recognised: two
seconds and 160 MB in every process, measured with torch 2.15. These do the same steps, and leave it out. Where torch is
built in another way, they are torch's own.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

#: What torch keeps out of compiled code, as long as nobody has imported the compiler by a mark on the function itself.
_KEPT_OUT = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
_MARK = "__dynamo_disable"


def _uncompiled(kind: Any) -> Callable[..., torch.optim.Optimizer]:
    """Return a class that is ``kind`` but for the import."""
    step = inspect.unwrap(kind.step)
    if step is kind.step or list(inspect.signature(step).parameters) != ["self", "closure"]:
        plain: Callable[..., torch.optim.Optimizer] = kind
        return plain

    class Uncompiled(kind):  # type: ignore[misc]
        def step(self, closure: Callable[[], float] | None = None) -> float | None:
            with torch.no_grad():
                loss: float | None = step(self, closure)
            return loss

    Uncompiled.__name__ = Uncompiled.__qualname__ = kind.__name__
    return Uncompiled


if "torch._dynamo" not in sys.modules:
    for _name in _KEPT_OUT:
        _function: Any = inspect.unwrap(getattr(torch.optim.Optimizer, _name))
        if not hasattr(_function, _MARK):
            setattr(_function, _MARK, _function)

#: torch's own, with its options.
sgd, adam, adamw = (_uncompiled(kind) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))

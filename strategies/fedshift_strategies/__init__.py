"""The server side: how weights and knowledge of many nodes become one. NumPy only, no torch.

``from fedshift_strategies import FedProto`` gives a strategy for one's own Flower app (``fedshift_strategies.plain``).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Make Flower's strategy of a method when it is first asked for."""
    if name == "__all__" or name[:1].isupper():
        from fedshift_strategies import fitting

        if name == "__all__":
            return list(fitting.names())
        if name in fitting.strategies():
            return fitting.named(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the strategies."""
    from fedshift_strategies import fitting

    return sorted({*globals(), *fitting.names()})

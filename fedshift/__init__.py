"""FedShift: federated learning under domain shift, as one Flower app, from Python and from the command line.

    import fedshift as fs
    run = fs.run("handwritten", method="i2pfl", rounds=10, engine="inline")
    fs.compare("runs/*").frame()

``fedshift.api`` has the functions, `make docs` lists them in its reference. The names below are imported when they are
first used, so that the command starts at once.

A wheel puts the app's packages next to this one, and into the folder ``app`` of this one what ``flwr run`` takes. In a
checkout the app is the checkout, whose packages importing this one puts on the path.
"""

import ast
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pydantic import Field

    from fedshift.api import (
        Tuned,
        compare,
        evaluate,
        load,
        load_model,
        method,
        methods,
        predict,
        register,
        run,
        sweep,
        testing,
        tune,
    )
    from fedshift.api.methods import MethodInfo
    from fedshift.api.model import Model
    from fedshift.api.runs import Results, Run
    from fedshift.lab.grid.evaluate.table import Evaluation
    from fedshift.lab.tables.compare import Comparison
    from fedshift_clients import losses
    from fedshift_clients.base import DomainClient as Client
    from fedshift_clients.base import Scores
    from fedshift_clients.training.batches import Batch
    from fedshift_clients.training.phases import Phase
    from fedshift_core import __version__
    from fedshift_core.arrays import Arrays
    from fedshift_core.errors import ConfigError, DataError, FederationError, FedShiftError
    from fedshift_core.params import Params
    from fedshift_core.registry import Method
    from fedshift_core.wire.records import encode
    from fedshift_strategies.base import DomainStrategy as Strategy
    from fedshift_strategies.federation.nodes import Node
    from fedshift_strategies.federation.updates import Update, average, decode

__all__ = [
    "Arrays",
    "Batch",
    "Client",
    "Comparison",
    "ConfigError",
    "DataError",
    "Evaluation",
    "FedShiftError",
    "FederationError",
    "Field",
    "Method",
    "MethodInfo",
    "Model",
    "Node",
    "Params",
    "Phase",
    "Results",
    "Run",
    "Scores",
    "Strategy",
    "Tuned",
    "Update",
    "__version__",
    "average",
    "compare",
    "decode",
    "encode",
    "evaluate",
    "load",
    "load_model",
    "losses",
    "method",
    "methods",
    "predict",
    "register",
    "run",
    "sweep",
    "testing",
    "tune",
]
#: The names of the interface are those that a reader of types finds above, each with its module and its name there.
_BLOCK = next(part for part in ast.parse(Path(__file__).read_bytes()).body if isinstance(part, ast.If))
_FROM = {
    name.asname or name.name: (str(line.module), name.name)
    for line in _BLOCK.body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is first used."""
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    where, other = _FROM[name]
    within = import_module(where)
    globals()[name] = value = getattr(within, other) if hasattr(within, other) else import_module(f"{where}.{other}")
    return value


def __dir__() -> list[str]:
    """Return the names of the interface."""
    return sorted({*_FROM, "app_dir", "main", "put_on_path"})


class _Package(ModuleType):
    """The package, whose functions keep their names when a room of the same name is imported (``fedshift.run``)."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and _FROM.get(name, " ")[0] == "fedshift.api"):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Let what refers to the package be carried to another process, which imports it there."""
        return import_module, (self.__name__,)


def app_dir() -> Path:
    """Return the folder of the Flower app, which holds its pyproject.toml and which ``flwr run`` takes."""
    here = Path(__file__).resolve().parent
    inside = here / "app"
    return inside if (inside / "pyproject.toml").is_file() else here.parent


def put_on_path() -> None:
    """Let this process, and what it starts, import a checkout's packages before others of their names."""
    app = app_dir()
    if app.name == "app" and app.parent == Path(__file__).resolve().parent:
        return
    ours = [str(app / folder) for folder in ("", "strategies", "clients", "datasets")]
    sys.path[:] = [*ours, *(place for place in sys.path if place not in ours)]
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, *(place for place in given if place not in ours)])


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    """End the command while it is still imported, without a traceback."""
    raise SystemExit(128 + signum)


def main() -> None:
    """Entry point of the ``fedshift`` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)  # until `cli.main` ends what the command has started
    put_on_path()
    import fedshift_app  # noqa: F401 (first: it says where another package hides ours)
    from fedshift import cli

    cli.main()


put_on_path()
if __name__ in sys.modules:  # else a loader runs this file by itself
    sys.modules[__name__].__class__ = _Package

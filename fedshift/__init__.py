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
    from pydantic import Field as Field

    from fedshift.api import Tuned as Tuned
    from fedshift.api import compare as compare
    from fedshift.api import evaluate as evaluate
    from fedshift.api import load as load
    from fedshift.api import load_model as load_model
    from fedshift.api import method as method
    from fedshift.api import methods as methods
    from fedshift.api import predict as predict
    from fedshift.api import register as register
    from fedshift.api import run as run
    from fedshift.api import sweep as sweep
    from fedshift.api import testing as testing
    from fedshift.api import tune as tune
    from fedshift.api.methods import MethodInfo as MethodInfo
    from fedshift.api.model import Model as Model
    from fedshift.api.runs import Results as Results
    from fedshift.api.runs import Run as Run
    from fedshift.lab.grid.evaluate.table import Evaluation as Evaluation
    from fedshift.lab.tables.compare import Comparison as Comparison
    from fedshift_clients import losses as losses
    from fedshift_clients.base import DomainClient
    from fedshift_clients.base import Scores as Scores
    from fedshift_clients.training.batches import Batch as Batch
    from fedshift_clients.training.phases import Phase as Phase
    from fedshift_core import __version__ as __version__
    from fedshift_core.arrays import Arrays as Arrays
    from fedshift_core.errors import ConfigError as ConfigError
    from fedshift_core.errors import DataError as DataError
    from fedshift_core.errors import FederationError as FederationError
    from fedshift_core.errors import FedShiftError as FedShiftError
    from fedshift_core.params import Params as Params
    from fedshift_core.registry import Method as Method
    from fedshift_core.wire.records import encode as encode
    from fedshift_strategies.base import DomainStrategy
    from fedshift_strategies.federation.nodes import Node as Node
    from fedshift_strategies.federation.updates import Update as Update
    from fedshift_strategies.federation.updates import average as average
    from fedshift_strategies.federation.updates import decode as decode

    Client = DomainClient
    Strategy = DomainStrategy

#: The names of the interface are those that a reader of types finds above, each with its module and its name there.
_BLOCK = next(part for part in ast.parse(Path(__file__).read_bytes()).body if isinstance(part, ast.If))
_FROM = {
    name.asname or name.name: (str(line.module), name.name)
    for line in _BLOCK.body
    if isinstance(line, ast.ImportFrom)
    for name in line.names
}
for _line in _BLOCK.body:
    if isinstance(_line, ast.Assign):
        _FROM[ast.unparse(_line.targets[0])] = _FROM.pop(ast.unparse(_line.value))


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

"""Methods that fit into one's own Flower app, found in what their hooks read, and the strategy of each by its name."""

import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import fields
from functools import cache, cached_property
from importlib import import_module
from types import CodeType, FunctionType
from typing import Any, cast

from pydantic import create_model

from fedshift_core.errors import ConfigError
from fedshift_core.wire.names import KNOWLEDGE
from fedshift_strategies import methods
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import declared, dtype_of
from fedshift_strategies.federation.context import RunContext
from fedshift_strategies.federation.roster import Node, Roster
from fedshift_strategies.plain import OF_FLOWER, OF_RUN, PlainNode, PlainRoster, PlainRun, PlainStrategy

ENDING = "Strategy"  # of the name of a method's class, before which the paper's name stands
#: Hooks that serve FedShift's own run alone: its disk, secure sums, checks of single nodes, resuming, withdrawal.
_UNUSED = ("sums", "needs_single", "uses_rounds", "averages", "comparable", "take_out", "_take_sum")


@cache
def strategies() -> dict[str, type[DomainStrategy[Any]]]:
    """Return the strategy of each method that has one of its own, by the paper's name for it."""
    found = {}
    for module in pkgutil.iter_modules(methods.__path__):
        for name, kind in vars(import_module(f"{methods.__name__}.{module.name}")).items():
            if name.lower() == module.name + ENDING.lower() and kind.__module__.endswith(f".{module.name}"):
                found[name.removesuffix(ENDING)] = kind
    return found


def _functions(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of a method: those of its classes that this module calls, and those next to them."""
    for each in kind.__mro__[: kind.__mro__.index(DomainStrategy)]:
        beside = {
            name: value
            for name, value in vars(import_module(each.__module__)).items()
            if getattr(value, "__module__", "") == each.__module__
        }
        for name, value in (*vars(each).items(), *beside.items()):
            if isinstance(value, property | cached_property):
                value = value.fget if isinstance(value, property) else value.func
            value = getattr(value, "__func__", value)
            if isinstance(value, FunctionType) and name not in _UNUSED:
                yield name, value


def _names(code: CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _public(kind: type) -> set[str]:
    return {name for name in (*vars(kind), *(getattr(kind, "__dataclass_fields__", ()))) if not name.startswith("_")}


_OF_NODES = {each.name for each in fields(Node)} - {each.name for each in fields(PlainNode)}


def reads(kind: type[DomainStrategy[Any]]) -> dict[str, set[str]]:
    """Return what the hooks of a method read of the run, of the roster and of nodes.

    What ``tell`` reads of nodes is left out: it may do so with other arguments only, and is tried with them.
    """
    found: dict[str, set[str]] = {"federation": set(), "roster": set(), "node": set()}
    for name, function in _functions(kind):
        names = _names(function.__code__)
        if name == "__init__":
            found["federation"].add(name)
        if "federation" in names:
            found["federation"] |= names & _public(RunContext)
        if name != "tell":
            found["node"] |= names & _OF_NODES
            found["roster"] |= names & _public(Roster) if "roster" in names else set()
    return found


def _parameters(kind: type[DomainStrategy[Any]]) -> list[str]:
    """Return the names of the method's parameters that its server half reads, itself or by what they come to."""
    read = set().union(*(_names(function.__code__) for _, function in _functions(kind)))
    for each in kind.params_model.__mro__:
        for name, value in vars(each).items():
            if isinstance(value, property) and name in read:
                read |= _names(cast(FunctionType, value.fget).__code__)
    return sorted(read & {*kind.params_model.model_fields})


@cache
def missing(kind: type[DomainStrategy[Any]]) -> str:
    """Return what a method reads that a Flower app does not have; nothing of one that fits."""
    found = reads(kind)
    lacks = {f"federation.{name}" for name in found["federation"] - _public(PlainRun)}
    lacks |= {f"roster.{name}" for name in found["roster"] - _public(PlainRoster)}
    lacks |= {f"node.{name}" for name in found["node"]}
    if not lacks:
        made, any_run = _made(kind), {"num_classes": 2, "feature_dim": 2, "buffers": ()}
        try:
            made(**{name: value for name, value in any_run.items() if name in made.arguments.model_fields})
        except ConfigError as error:
            return str(error)
    return ", ".join(sorted(lacks))


@cache
def _made(kind: type[DomainStrategy[Any]]) -> type[PlainStrategy]:
    """Return Flower's strategy of a method, which has its signature and says what travels."""
    name, read = kind.__name__.removesuffix(ENDING), reads(kind)["federation"]
    wanted = {"buffers" if each == "trained" else each for each in read}
    rest = {each: OF_RUN[each] for each in OF_RUN if each in wanted}
    arguments = create_model(f"{name}Arguments", __base__=kind.params_model, **OF_FLOWER | rest)
    accepted = (*_parameters(kind), *OF_FLOWER, *rest)
    signature = inspect.Signature(
        [
            inspect.Parameter(
                each,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=info.annotation,
                default=inspect.Parameter.empty if info.is_required() else info.default,
            )
            for each, info in ((each, arguments.model_fields[each]) for each in accepted)
        ]
    )
    own_parts = {
        "method": kind,
        "arguments": arguments,
        "accepted": accepted,
        "__signature__": signature,
        "__doc__": _documented(kind),
        "__module__": __package__,
    }
    return cast(type[PlainStrategy], type(name, (PlainStrategy, kind), own_parts))


def travels(kind: type[DomainStrategy[Any]]) -> tuple[str, str]:
    """Return what a node of a method gets besides ``arrays`` and ``config``, and sends besides its weights."""
    sent, scalars = declared(kind, "sends"), declared(kind, "tells")
    down = [f"record `{KNOWLEDGE}`: {', '.join(sent)}"] if sent else []
    down += [f"in `config`: {', '.join(scalars)}"] if scalars else []
    up = [
        f"{name} {_shape(shape)} {dtype_of(name, shape)}"
        + (f" (with {kind.optional[name].removeprefix('method.')})" if name in kind.optional else "")
        for name, shape in kind.contributes.items()
    ]
    return "; ".join(down), f"record `{KNOWLEDGE}`: {', '.join(up)}" if up else ""


def _documented(kind: type[DomainStrategy[Any]]) -> str:
    first = (inspect.getdoc(kind) or "").partition("\n")[0]
    gets, sends = travels(kind)
    of_nodes = f"A node gets besides weights: {gets or 'nothing'}.\nIt sends besides weights: {sends or 'nothing'}."
    own = [f"    {name}: {kind.params_model.model_fields[name].description}" for name in _parameters(kind)]
    return "\n".join([first, "", of_nodes, *(["", "Args:", *own] if own else [])])


def _shape(shape: tuple[str | int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def named(name: str) -> type[PlainStrategy]:
    """Return Flower's strategy of a method by the paper's name for it.

    Raises:
        ImportError: If the method needs what a Flower app does not have.
    """
    kind = strategies()[name]
    if lacks := missing(kind):
        raise ImportError(f"{name} runs with FedShift alone: it reads {lacks}")
    return _made(kind)


@cache
def names() -> tuple[str, ...]:
    """Return the names of all methods that fit."""
    return tuple(sorted(name for name, kind in strategies().items() if not missing(kind)))

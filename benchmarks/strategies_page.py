"""Of the strategies for one's own Flower app: the page docs/reference/strategies.md, and the stub that types them."""

import inspect
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin

from fedshift_strategies import fitting, plain

HEAD = """\
# Strategies for your own Flower app

{made} [Your own Flower app](../guide/own-flower-app.md) shows how they are used.

`from fedshift_strategies import FedProto` gives a subclass of Flower's `FedAvg`. All arguments are keywords: those of
FedAvg, the [method's](methods.md), and those named here. A node gets and sends `arrays`, `config` and `metrics` as
FedAvg has them, and what stands here; C classes, D feature width, other letters a node's own.
A method that has no strategy of its own, such as MOON, is `FedAvg` on the server."""

STUB = '''\
"""Made by `python benchmarks/reference_pages.py`: types of what the package makes when it is asked."""

from collections.abc import Callable
from typing import Literal, TypedDict, Unpack

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

class _Flower(TypedDict, total=False):
{flower}
'''


def page(made: str) -> str:
    """Return the page: methods that fit with what travels, and the others with what they need."""
    fits = [(name, *_cells(fitting.named(name))) for name in fitting.names()]
    lacks = {name: why for name, kind in sorted(fitting.strategies().items()) if (why := fitting.missing(kind))}
    parts = [HEAD.format(made=made)]
    parts.append(_table(("strategy", "further arguments", "a node gets", "a node sends"), fits))
    parts.append("These read what Flower's nodes do not say of themselves, so they run with FedShift alone:")
    parts.append(_table(("method", "reads"), [(name, f"`{why}`") for name, why in lacks.items()]))
    return "\n\n".join(parts) + "\n"


def _cells(made: type[plain.PlainStrategy]) -> tuple[str, str, str]:
    further = [name for name in plain.OF_RUN if name in made.arguments.model_fields]
    gets, sends = fitting.travels(made.method)
    named = ", ".join(f"`{name}`" for name in further)
    return named or "-", *(text.replace("*", r"\*") or "-" for text in (gets, sends))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def stub() -> str:
    """Return the stub."""
    flower = "\n".join(
        f"    {name}: {_shown(each.annotation)}"
        for name, each in inspect.signature(plain.FedAvg).parameters.items()
    )  # fmt: skip
    classes = ["\n".join(_class(name)) for name in fitting.names()]
    return "\n".join([STUB.format(flower=flower), *classes])


def _class(name: str) -> Iterator[str]:
    made = fitting.named(name)
    flower = inspect.signature(plain.FedAvg).parameters
    own = [each for each in inspect.signature(made).parameters.values() if each.name not in flower]
    yield from (f"class {name}(FedAvg):", f'    """{(made.__doc__ or "").splitlines()[0]}"""', "", "    def __init__(")
    yield "        self,"
    yield from ["        *,"] if own else []
    yield from (f"        {each.name}: {_shown(each.annotation)}{_default(each)}," for each in own)
    yield from ("        **flower: Unpack[_Flower],", "    ) -> None: ...", "")


def _shown(annotation: Any) -> str:
    if get_origin(annotation) is Union:  # of a type and a Literal
        return " | ".join(map(_shown, get_args(annotation)))
    text = inspect.formatannotation(annotation).replace("'", '"').replace("collections.abc.", "")
    for record in ("recorddict", "metricrecord"):
        text = text.replace(f"flwr.app.message.{record}.", "")
    return text


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    shown = f'"{parameter.default}"' if isinstance(parameter.default, str) else repr(parameter.default)
    return f" = {shown}"

"""The page docs/reference/python.md, from the signatures and docstrings of ``import fedshift``."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import fedshift as fs
from fedshift.export.predicting import Metrics, Predicted

HEAD = """\
# Python

{made} [From Python](../guide/python.md) shows how the parts go together.

    import fedshift as fs

Every function does what the command of the same name does. Errors are exceptions with the text that the command prints:
`fs.ConfigError` (a key or a value), `fs.DataError` (images), `fs.FederationError` (a run that cannot go on), all of
them `fs.FedShiftError`. `fs.__version__` is the version."""

FUNCTIONS = (
    "run", "load", "load_model", "compare", "sweep", "tune", "evaluate", "predict", "methods", "method", "register",
    "testing.check_method",
)  # fmt: skip
#: Classes, each with what is shown of it besides its attributes.
CLASSES: dict[str, Any] = {
    "Run": fs.Run, "Results": fs.Results, "Model": fs.Model, "Comparison": fs.Comparison, "Predicted": Predicted,
    "Metrics": Metrics, "Evaluation": fs.Evaluation, "Tuned": fs.Tuned, "MethodInfo": fs.MethodInfo,
}  # fmt: skip
ROOF = """\
## For a method of your own

| name | is | for |
| --- | --- | --- |
| `fs.Client` | `fedshift_clients.base.DomainClient` | the node's side ([hooks](../guide/own-method.md#hooks)) |
| `fs.Strategy` | `fedshift_strategies.base.DomainStrategy` | the server's side |
| `fs.Params`, `fs.Field` | `fedshift_core.params.Params`, pydantic's `Field` | parameters with default and range |
| `fs.Method` | `fedshift_core.registry.Method` | all that is said of a method |
| `fs.Batch`, `fs.Phase`, `fs.Scores` | of `clients` | what `loss` gets, what `phases` and `score_test` return |
| `fs.losses` | `fedshift_clients.losses` | `cross_entropy` and other terms |
| `fs.Update`, `fs.Node` | of `fedshift_strategies.federation` | a node's reply, and who it is |
| `fs.Arrays` | `fedshift_core.arrays.Arrays` | arrays by name |
| `fs.decode`, `fs.encode`, `fs.average` | of the same | from a record of weights to arrays and back, their average |"""


def page(made: str) -> str:
    """Return the page."""
    parts = [HEAD.format(made=made)]
    for name in FUNCTIONS:
        parts.append("\n".join(_function(f"fs.{name}", _found(name))))
    for name, kind in CLASSES.items():
        parts.append("\n".join(_class(name, kind)))
    return "\n\n".join([*parts, ROOF]) + "\n"


def _found(name: str) -> Any:
    value: Any = fs
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _function(shown: str, function: Callable[..., Any]) -> Iterator[str]:
    yield from (f"## {shown.removeprefix('fs.')}", "", f"`{shown}{_signature(function)}`")
    yield from _text(inspect.getdoc(function) or "")


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"## {name}"
    yield from _text(inspect.getdoc(kind) or "")
    rows = []
    for member, value in vars(kind).items():
        if member.startswith("_") or member == "forward":
            continue
        value = getattr(value, "func", value)  # of a cached property
        if isinstance(value, property):
            rows.append((f"`.{member}`", _first(value.fget)))
        elif inspect.isfunction(value):
            shown = f".{member}{_signature(value, bound=True)}"
            rows.append((f"`{shown if value.__qualname__.endswith(f'.{member}') else member}`", _first(value)))
    if rows:
        yield from ("", "| member | is |", "| --- | --- |")
        yield from (f"| {member} | {text} |" for member, text in rows)


def _signature(function: Callable[..., Any], *, bound: bool = False) -> str:
    """Return names and defaults; types are in the code."""
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain))


def _first(function: Any) -> str:
    text = (inspect.getdoc(function) or "").partition("\n\n")[0]
    return _inline(" ".join(text.split())).replace("|", "\\|")


def _text(doc: str) -> Iterator[str]:
    """Yield a Google docstring as Markdown: paragraphs, examples, and a list for each section."""
    body, *sections = re.split(r"^(Args|Returns|Raises|Attributes|Yields):\n", doc, flags=re.M)
    for paragraph in body.strip().split("\n\n"):
        if paragraph.lstrip().startswith(">>>"):
            yield from ("", "```python", *inspect.cleandoc(paragraph).splitlines(), "```")
        else:
            yield from ("", _inline(" ".join(paragraph.split())))
    for title, content in zip(sections[::2], sections[1::2], strict=True):
        yield from ("", f"**{title}**", "")
        if title == "Returns":
            yield _inline(" ".join(content.split()))
            continue
        for entry in re.split(r"\n(?=    \S)", content.rstrip()):
            name, _, meaning = " ".join(entry.split()).partition(": ")
            yield f"- `{name.partition(' (')[0]}`: {_inline(meaning)}"


def _inline(text: str) -> str:
    """Return a docstring's words with Markdown's code."""
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")

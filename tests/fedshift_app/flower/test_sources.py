"""All that we take of Flower beyond what it exports is in one table, and its source is what was read."""

import ast
import inspect
from functools import cache
from importlib import import_module
from pkgutil import resolve_name

import pytest
from support import ROOT

from fedshift_app.flower import sources

#: Modules that Flower exports (its reference names them).
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.common", "flwr.client", "flwr.serverapp.strategy")
PACKAGES = ("fedshift", "fedshift_app", "strategies", "clients", "datasets", "fedshift_core")


@cache
def imported() -> set[str]:
    """Return the names that our packages import of Flower though it does not export them."""
    found = set()
    texts = (path.read_text() for part in PACKAGES for path in (ROOT / part).rglob("*.py"))
    for text in (text for text in texts if "flwr" in text):
        for place in ast.walk(ast.parse(text)):
            names = [name.name for name in place.names] if isinstance(place, ast.Import) else []
            assert not any(name.split(".")[0] == "flwr" for name in names)
            if isinstance(place, ast.ImportFrom) and (place.module or "").split(".")[0] == "flwr":
                exported = import_module(str(place.module)).__all__ if place.module in PUBLIC else ()
                found |= {f"{place.module}:{one.name}" for one in place.names if one.name not in exported}
    return found


def test_they_are_few_and_each_says_what_breaks_without_it() -> None:
    assert len(sources.NAMES) <= 25
    assert all(sources.NAMES.values())
    modules = {name.replace(":", ".") for name in imported()} & {name.split(":")[0] for name in sources.NAMES}
    others = {name for name in imported() if name.replace(":", ".") not in modules}
    assert others <= sources.NAMES.keys()


@pytest.mark.parametrize("name", sources.NAMES)
def test_they_are_there(name: str) -> None:
    resolve_name(name)


def test_flower_is_what_was_read() -> None:
    import_module(sources.ENGINE)
    for name in sources.READ:
        if inspect.getmodule(resolve_name(name)).__name__.startswith("flwr."):  # type: ignore[union-attr]
            assert sources.other_source(name) == ""


@pytest.mark.parametrize("mark", ["", "0000"])
def test_another_source_is_told(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{sources.NODE}:_push_messages"
    monkeypatch.setitem(sources.READ, name, mark)
    assert sources.other_source("flwr.supernode.").startswith(f"{name} of Flower 1.")
    monkeypatch.setitem(sources.READ, "flwr.gone:it", "1")
    assert sources.other_source("flwr.gone").startswith("flwr.gone:it of Flower 1.")


def test_flowers_commands_are_found() -> None:
    for name in ("flwr", "flwr-simulation", "flwr-clientapp", "flower-superlink", "flower-supernode"):
        assert callable(sources.program(name))

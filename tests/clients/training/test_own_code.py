"""Facts that the code of a method's class shows: the names that it looks up on itself are those of its source."""

import ast
import inspect
import textwrap
from types import FunctionType

import pytest
from refusals import refused

from fedshift_app.config import registry
from fedshift_clients.base import DomainClient
from fedshift_clients.training import own_code
from fedshift_core.errors import ConfigError


@pytest.mark.parametrize("method", list(registry.METHODS))
def test_names_on_self_are_found_in_the_code_of_this_python(method: str) -> None:
    for function in vars(registry.get(method).client_class()).values():
        if not isinstance(function, FunctionType):
            continue
        source = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
        wanted = {
            part.attr
            for part in source
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self"
            if isinstance(part.ctx, ast.Load)
        }
        found = {name for on_self, name in own_code._looked_up(function.__code__, function.__globals__) if on_self}
        assert wanted <= found, function.__qualname__


@pytest.mark.parametrize("name", ["fit", "evaluate", "train", "scores"])
def test_what_features_stand_around_is_no_hook(name: str) -> None:
    """A class that overrode it would be got around, or get around noise and masks."""
    with refused(ConfigError, f"Mine.{name}"):
        type("Mine", (DomainClient,), {name: lambda self, *given: None})

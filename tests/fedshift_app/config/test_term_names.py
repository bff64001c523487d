"""Keys of different sections against each other, where a user's own file brings what they name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import refusal_of

from fedshift_app.config.resolving import resolve
from fedshift_core import extensions
from fedshift_core.errors import ConfigError

OWN = """
from clients.modules.base import Modules
from clients.modules.catalog import ModulesEntry
from fedshift_core.registry import Method

METHOD = Method(name="short", title="Short features", terms=["length"])
FIRST = ModulesEntry("first", "One", Modules, ("length",))
SECOND = ModulesEntry("second", "Two", Modules, ("ce",))
THIRD = ModulesEntry("third", "Three", Modules, ("coral", "width"))
FOURTH = ModulesEntry("fourth", "Four", Modules, ("width",))
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path) -> Iterator[None]:
    extensions.forget()
    file = tmp_path / "own.py"
    file.write_text(OWN)
    extensions.load_file(file)
    yield
    extensions.forget()


@pytest.mark.parametrize(
    ("method", "modules", "found"),
    [
        ("short", "first", "first has a loss term 'length', which is one of the method 'short'"),
        ("fedavg", "second", "second has a loss term 'ce', which is one of the method 'fedavg'"),
        ("fedavg", "third,fourth", "fourth has a loss term 'width', which is one of modules third"),
    ],
)
def test_modules_with_a_loss_term_that_another_has_are_refused(method: str, modules: str, found: str) -> None:
    assert found in refusal_of(ConfigError, resolve, {"method": method, "set": f"modules=[{modules}]"})


def test_other_loss_terms_and_those_of_a_recipe_go_together() -> None:
    resolve({"method": "fedavg", "set": "modules=[first,fourth]"})
    assert [entry["name"] for entry in resolve({"method": "f2dc"}).modules] == ["f2dc"]

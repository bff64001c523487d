"""Names of loss terms, parameters and features that would hide each other, in a user's own file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import refusal_of

from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_core import extensions
from fedshift_core.errors import ConfigError

OWN = """
from fedshift_clients.base import DomainClient
from fedshift_clients.modules.base import Modules
from fedshift_clients.modules.catalog import ModulesEntry
from fedshift_core.features import Feature, Key
from fedshift_core.params import Params
from fedshift_core.registry import Method
from fedshift_strategies.base import DomainStrategy

METHOD = Method(name="short", title="Short features", terms=["length"])


class ServerParams(Params):
    beta: float = 0.5


class NodeParams(Params):
    beta: float = 0.1


class Server(DomainStrategy[ServerParams]):
    pass


class Node(DomainClient[NodeParams]):
    pass


class Own(Params):
    gamma: float = 0.2


class Owner(DomainClient[Own]):
    pass


TWO_CLASSES = Method(name="two-classes", title="A class a side", strategy=Server, client=Owner)
UNEQUAL = Method(name="unequal", title="Two classes of parameters", strategy=Server, client=Node)
FIRST = ModulesEntry("first", "One", Modules, ("length",))
SECOND = ModulesEntry("second", "Two", Modules, ("ce",))
THIRD = ModulesEntry("third", "Three", Modules, ("coral", "width"))
LOSS = Feature("own-loss", "Loss", "features", train_reply=(Key("loss", "float", "x"),))
TERM = Feature("own-term", "Term", "features", train_reply=(Key("loss/ce", "float", "x"),))
ROUND = Feature("own-round", "Round", "features", evaluate=(Key("domains", "list of text", "x"),))
ONE = Feature("one", "One", "features", train_reply=(Key("gift", "float", "x"),))
TWO = Feature("two", "Two", "features", train_reply=(Key("gift", "float", "x"),))
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


@pytest.mark.parametrize(
    ("features", "found"),
    [
        ("own-loss", "own-loss declares 'loss', which is a name of every run's own messages"),
        ("own-term", "own-term declares 'loss/ce', which is a name of every run's own messages"),
        ("own-round", "own-round declares 'domains', which is a name of every run's own messages"),
        ("one,two", "one and two both declare 'gift'; a run takes one of them"),
    ],
)
def test_features_that_declare_a_name_in_use_are_refused(features: str, found: str) -> None:
    assert found in refusal_of(ConfigError, resolve, {"set": f"features=[{features}]"})
    assert [entry["name"] for entry in resolve({"set": "features=[two]"}).features] == ["two"]


def test_both_sides_of_a_method_have_one_class_of_parameters() -> None:
    """A package of before may have one for each side."""
    config = resolve({"method": "two-classes", "set": "method.beta=0.3"})
    assert config.method == {"name": "two-classes", "beta": 0.3, "gamma": 0.2}
    sides = (registry.get("two-classes").strategy_class(), registry.get("two-classes").client_class())
    assert all(isinstance(config.params(), side.params_model) for side in sides)
    message = refusal_of(ConfigError, resolve, {"method": "unequal"})
    assert message == (
        "method 'unequal': ServerParams of its strategy and NodeParams of its client both declare beta; a parameter of "
        "both sides is of one class, the method's params: module:Class"
    )

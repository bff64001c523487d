"""Names of loss terms, parameters and features that would hide each other, in a user's own file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import refused
from words import config as config_of

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
    ("flat", "named"),
    [
        ({"method": "short", "set": "modules=[first]"}, "first 'length' 'short'"),
        ({"set": "modules=[second]"}, "second 'ce' 'fedavg'"),
        ({"set": "modules=[third,fourth]"}, "fourth 'width' third"),
        ({"set": "features=[own-loss]"}, "own-loss 'loss'"),
        ({"set": "features=[own-term]"}, "own-term 'loss/ce'"),
        ({"set": "features=[own-round]"}, "own-round 'domains'"),
        ({"set": "features=[one,two]"}, "one two 'gift'"),
        ({"method": "unequal"}, "'unequal' ServerParams NodeParams beta"),
    ],
)
def test_a_name_that_another_part_has_is_refused(flat: dict[str, str], named: str) -> None:
    with refused(ConfigError, *named.split()):
        resolve(flat)


def test_other_names_go_together() -> None:
    config = config_of("method=fedavg modules=[first,fourth] features=[two]")
    assert [entry["name"] for entry in (*config.modules, *config.features)] == ["first", "fourth", "two"]


def test_both_sides_of_a_method_have_one_class_of_parameters() -> None:
    """A package of before may have one for each side."""
    config = config_of("method=two-classes method.beta=0.3")
    assert config.method == {"name": "two-classes", "beta": 0.3, "gamma": 0.2}
    sides = (registry.get("two-classes").strategy_class(), registry.get("two-classes").client_class())
    assert all(isinstance(config.params(), side.params_model) for side in sides)

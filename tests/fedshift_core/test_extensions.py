"""Things of other packages and of a user's own files: found by name; what is wrong with one is a line that names it."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import refused, worded

from fedshift_app.config import registry
from fedshift_core import extensions
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import load_file, problems
from fedshift_datasets import catalog

GOOD = """
from fedshift_core.registry import Method
METHOD = Method(name="mine", title="A method of my own", defaults={})
"""


Install = Callable[..., None]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    extensions.forget()
    yield
    for name in ("my_methods", "your_methods", "my_data"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    extensions.forget()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts a package, as pip would, into a folder of the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(
        name: str, code: str, offers: str = "mine = {module}:METHOD", group: str = "methods", requires: str = ""
    ) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        requested = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requested}")
        (info / "entry_points.txt").write_text(f"[fedshift.{group}]\n{offers.format(module=module)}\n")
        extensions.forget()

    return put


def test_a_package_brings_a_method_and_a_data_set(install: Install) -> None:
    install("my-methods", GOOD, requires="fedshift<1")
    made = 'Dataset("own", "Own", ("a",), ("x", "y"), 32, lambda *_: None)'
    code = f"from fedshift_datasets.base import Dataset\nDATA = {made}\n"
    install("my-data", code, offers="own = {module}:DATA", group="datasets")
    assert registry.get("mine").title == "A method of my own" and list(registry.METHODS)[-1] == "mine"
    assert (registry.METHODS.origin("mine"), registry.METHODS.origin("fedavg")) == ("my-methods 1.0", "fedshift")
    assert catalog.get("own").classes == ("x", "y")
    assert problems() == []


@pytest.mark.parametrize(
    ("code", "more", "named"),
    [
        ("import nothing_of_that_name", {}, "Module"),
        ("1 / 0", {}, "ZeroDivisionError: division by zero"),
        ("METHOD = 3", {}, "int"),
        (GOOD, {"offers": "other = {module}:METHOD"}, "'mine'"),
        (GOOD, {"offers": "mine = {module}:NOTHING"}, "AttributeError"),
    ],
)
def test_what_is_wrong_with_a_package_is_one_line_and_all_else_works(
    install: Install, code: str, more: Any, named: str
) -> None:
    install("my-methods", code, **more)
    name = more.get("offers", "mine").split(" ")[0]
    (problem,) = problems()
    worded(problem, "package my-methods 1.0")
    with refused(ConfigError, "my-methods 1.0", named):
        registry.get(name)
    assert name not in list(registry.METHODS) and registry.get("i2pfl").name == "i2pfl"


def test_two_packages_that_claim_one_name_are_both_left_out(install: Install) -> None:
    install("my-methods", GOOD)
    install("your-methods", GOOD)
    worded(*problems(), "my-methods 1.0", "your-methods 1.0", "'mine'")
    with refused(ConfigError, "'mine'"):
        registry.get("mine")


def test_nobody_takes_a_name_of_ours_and_the_same_package_twice_on_the_path_counts_once(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("my-methods", GOOD.replace("mine", "fedavg"), offers="fedavg = {module}:METHOD")
    shutil.copytree(tmp_path / "my_methods-1.0.dist-info", tmp_path / "again" / "my_methods-1.0.dist-info")
    monkeypatch.syspath_prepend(str(tmp_path / "again"))
    extensions.forget()
    worded(*problems(), "my-methods 1.0", "'fedavg'")
    assert registry.get("fedavg").title == "Federated averaging"


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("x = 1", "own.py"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("from strategies.base import DomainStrategy", "fedshift_strategies"),
        ("from datasets import catalog", "fedshift_datasets"),
        (GOOD.replace("mine", "fedavg"), "'fedavg'"),
        (GOOD + GOOD.replace("METHOD =", "OTHER ="), "'mine'"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, code: str, named: str) -> None:
    (tmp_path / "own.py").write_text(code)
    with pytest.raises(ConfigError, match=named):  # which names a file of this machine
        load_file(tmp_path / "own.py")
    for absent in ("none.py", "none.txt"):
        with refused(ConfigError, absent):
            load_file(tmp_path / absent)

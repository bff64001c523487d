"""Things of other packages and of a user's own files: found by name; what is wrong with one is a line that names it."""

import functools
import hashlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedshift_app.config import registry
from fedshift_core import extensions
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import load_file, problems
from fedshift_datasets import catalog

GOOD = """
from fedshift_core.registry import Method
METHOD = Method(name="mine", title="A method of my own", defaults={})
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    extensions.forget()
    yield
    for name in ("my_methods", "your_methods", "my_data"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    extensions.forget()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Install":
    return Install(tmp_path, monkeypatch)


class Install:
    """Puts packages, as pip would, into a folder of the path."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.syspath_prepend(str(folder))

    def __call__(
        self,
        name: str,
        code: str,
        *,
        offers: str = "mine = {module}:METHOD",
        group: str = "methods",
        requires: str = "",
    ) -> None:
        module = name.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir()
        requested = f"Requires-Dist: {requires}\n" if requires else ""
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requested}")
        (info / "entry_points.txt").write_text(f"[fedshift.{group}]\n{offers.format(module=module)}\n")
        extensions.forget()


def test_a_package_brings_a_method(install: Install) -> None:
    install("my-methods", GOOD, requires="fedshift<1")
    assert registry.get("mine").title == "A method of my own"
    assert registry.METHODS.origin("mine") == "my-methods 1.0"
    assert registry.METHODS.origin("fedavg") == "fedshift"
    assert list(registry.METHODS)[-1] == "mine"
    assert problems() == []


@pytest.mark.parametrize(
    ("code", "more", "reason"),
    [
        ("import nothing_of_that_name", {}, "my-methods 1.0, which has the method 'mine', cannot be imported: Module"),
        ("1 / 0", {}, "cannot be imported: ZeroDivisionError: division by zero"),
        (GOOD, {"requires": "fedshift>=2"}, r"is for fedshift>=2; this is fedshift 0\.1\.0"),
        ("METHOD = 3", {}, "must be a Method of that name, found a int"),
        (GOOD, {"offers": "other = {module}:METHOD"}, "must be a Method of that name, found a Method 'mine'"),
        (GOOD, {"offers": "mine = {module}:NOTHING"}, "cannot be imported: AttributeError"),
    ],
)
def test_what_is_wrong_with_a_package_is_one_line_and_all_else_works(
    install: Install, code: str, more: dict[str, str], reason: str
) -> None:
    install("my-methods", code, **more)
    name = more.get("offers", "mine").split(" ")[0]
    (problem,) = problems()
    assert "package my-methods 1.0" in problem
    assert "\n" not in problem
    with pytest.raises(ConfigError, match=reason):
        registry.get(name)
    assert name not in list(registry.METHODS)
    assert registry.get("i2pfl").name == "i2pfl"
    with pytest.raises(ConfigError, match="unknown method 'nothing'; there are fedavg, "):
        registry.get("nothing")


def test_two_packages_that_claim_one_name_are_both_left_out(install: Install) -> None:
    install("my-methods", GOOD)
    install("your-methods", GOOD)
    (problem,) = problems()
    assert problem == "packages my-methods 1.0 and your-methods 1.0 both claim the method 'mine': neither is used"
    with pytest.raises(ConfigError, match="both claim the method 'mine'"):
        registry.get("mine")


def test_nobody_takes_a_name_of_ours(install: Install) -> None:
    install("my-methods", GOOD.replace("mine", "fedavg"), offers="fedavg = {module}:METHOD")
    assert problems() == ["package my-methods 1.0 claims the method 'fedavg', which FedShift itself has: ignored"]
    assert registry.get("fedavg").title == "Federated averaging"


def test_the_same_package_twice_on_the_path_counts_once(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("my-methods", GOOD)
    again = install.folder / "again"
    again.mkdir()
    for path in list(install.folder.glob("my_methods-1.0.dist-info")):
        (again / path.name).mkdir()
        for file in path.iterdir():
            (again / path.name / file.name).write_text(file.read_text())
    monkeypatch.syspath_prepend(str(again))
    extensions.forget()
    assert registry.get("mine").name == "mine"
    assert problems() == []


def test_a_package_brings_a_data_set(install: Install) -> None:
    made = 'Dataset("own", "Own", ("a",), ("x", "y"), 32, lambda *_: None)'
    code = f"from fedshift_datasets.base import Dataset\nDATA = {made}\n"
    install("my-data", code, offers="own = {module}:DATA", group="datasets")
    assert catalog.get("own").classes == ("x", "y")


def test_a_file_brings_what_it_defines(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(GOOD)
    load_file(file)
    load_file(file)
    assert registry.METHODS.origin("mine") == str(file)


def test_a_changed_file_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    cleared: list[bool] = []

    @extensions.cleared_on_change
    @functools.cache
    def made() -> None:
        cleared.append(True)

    for title, name in (("One", "mine"), ("Two", "mine"), ("Two", "that")):  # in one second, and of one length
        file.write_text(f"{GOOD.replace('mine', name).replace('A method of my own', title)}SAME = METHOD\n")
        load_file(file)
        load_file(file)
        made()
        assert [method for method in registry.METHODS if method in ("mine", "that")] == [name]
        assert registry.get(name).title == title
        ran = extensions.file_digest(file)
        assert ran == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    assert len(cleared) == 3
    file.write_text("x = 1")
    assert extensions.file_digest(file) == ran  # of what this process has run


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1", "defines nothing that FedShift knows; it looks for objects of"),
        ("import nothing_of_that_name", "cannot be run: ModuleNotFoundError"),
        ("from strategies.base import DomainStrategy", "package strategies is now called fedshift_strategies"),
        ("from datasets import catalog", "package datasets is now called fedshift_datasets"),
        (GOOD.replace("mine", "fedavg"), "claims the method 'fedavg', which fedshift has"),
        (GOOD + GOOD.replace("METHOD =", "OTHER ="), "defines two of the method 'mine'; give one another name"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, code: str, reason: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(code)
    with pytest.raises(ConfigError, match=reason):
        load_file(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_file(tmp_path / "none.py")
    with pytest.raises(ConfigError, match="is not a Python file"):
        load_file(tmp_path / "none.txt")

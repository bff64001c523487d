"""A method of FedShift's own is its four files: put into a tree without them, it holds the contract of all methods."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

NAME = "fednova"
FILES = (
    f"strategies/fedshift_strategies/methods/{NAME}.py", f"clients/fedshift_clients/methods/{NAME}.py",
    f"conf/methods/{NAME}.yaml", f"tests/strategies/test_{NAME}.py",
)  # fmt: skip
PARTS = ("fedshift", "fedshift_app", "fedshift_core", "strategies", "clients", "datasets", "conf", "tests")
PACKAGES = ("", "strategies", "clients", "datasets", "tests")
#: What is held of a new method: the contract, its own test, its paper, what it declares.
TESTS = (
    "tests/fedshift_app/test_contract.py", FILES[-1], "tests/fedshift/run/catalog/test_citations.py",
    "tests/strategies/test_declared_names.py",
)  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the code, the configuration and the tests."""
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "CITATION.cff"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "docs").mkdir()  # of a checkout; with no page of the method
    return tmp_path


def ran(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages of a tree."""
    env = {"PYTHONPATH": os.pathsep.join(str(tree / part) for part in PACKAGES), "FEDSHIFT_CONTRACT": f"method={NAME}"}
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=tree, env=os.environ | env, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_method_is_added_by_its_files_alone(tree: Path) -> None:
    for file in FILES:
        (tree / file).unlink()
    naming = [path for path in tree.rglob("*") if path.suffix in (".py", ".yaml", ".txt", ".toml") and path.is_file()
              and NAME in path.read_text(encoding="utf-8", errors="replace").lower()]  # fmt: skip
    assert [str(path.relative_to(tree)) for path in naming] == ["tests/fedshift_app/test_four_files.py"]
    before = ran(tree, "-m", "fedshift", "methods", NAME)
    assert before.returncode == 1 and f"unknown method '{NAME}'" in before.stderr
    for file in FILES:
        shutil.copy(ROOT / file, tree / file)
    shown = ran(tree, "-m", "fedshift", "methods", NAME)
    assert shown.returncode == 0 and str(tree / FILES[0]) in shown.stdout, shown.stdout + shown.stderr
    alone = ("-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long", "-k", "not the_command")  # which reads runs
    held = ran(tree, "-m", "pytest", "-q", *alone, *TESTS)
    assert held.returncode == 0, held.stdout[-5000:]
    assert int(held.stdout.partition(" passed")[0].split()[-1]) > 30

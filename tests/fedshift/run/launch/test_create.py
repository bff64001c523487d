"""``fedshift new-method`` and ``new-plugin``: what they write runs as it is, and passes its own test."""

import inspect
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from safetensors.numpy import load_file
from support import ROOT, Run, own_experiment

from fedshift.run.create import writing
from fedshift.run.launch import runner
from fedshift_core import extensions
from fedshift_core.errors import ConfigError


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def run_its_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Return what runs the tests of what was written, with folders on the path; it returns how many there are."""

    def run(folder: Path, *paths: Path) -> int:
        for path in paths:
            monkeypatch.syspath_prepend(str(path))
        monkeypatch.chdir(folder)
        extensions.forget()
        (file,) = folder.rglob("test_*.py")
        tests = [test for name, test in runpy.run_path(str(file)).items() if name.startswith("test_")]
        for test in tests:
            test(*[folder.parent / test.__name__] * len(inspect.signature(test).parameters))  # tmp_path, where it is
        return len(tests)

    monkeypatch.setenv("FEDSHIFT_PLUGINS", "")  # which a test of a file sets
    before = {*sys.modules}
    yield run
    extensions.forget()
    for name in {*sys.modules} - before:
        if name.split(".")[0] in ("long_names", "mine2"):
            del sys.modules[name]


@pytest.mark.long
def test_a_package_is_written_and_passes_its_test(here: Path, run_its_tests: Callable[..., int]) -> None:
    said = writing.write("method", "long-names", None)
    folder = here / "long-names"
    ours = ["long_names/client.py", "long_names/long-names.yaml", "long_names/server.py", "test_long_names.py"]
    assert files(folder) == sorted([*ours, "long_names/__init__.py", "pyproject.toml"])
    assert "pip install -e long-names" in said and all(f"  {file}\n" in said for file in files(folder))
    assert not any(re.search(r"@\w+@", (folder / file).read_text()) for file in files(folder))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    # What pip would write of it: an installed package is a folder on the path with these two files.
    info = here / "installed" / "long_names-0.1.dist-info"
    info.mkdir(parents=True)
    required = project["dependencies"][0]
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: long-names\nVersion: 0.1\nRequires-Dist: {required}\n"
    )
    points = "\n".join(f"{name} = {value}" for name, value in project["entry-points"]["fedshift.methods"].items())
    (info / "entry_points.txt").write_text(f"[fedshift.methods]\n{points}\n")
    assert run_its_tests(folder, folder, info.parent) == 1


@pytest.mark.parametrize(
    "name", ["Mine", "../x", "a--b", "a" * 41, "fedavg", "json", "class", "naïve", "a b", "", "a\n", "strategies"]
)
def test_names_that_cannot_be_used_and_folders_that_are_there(name: str, here: Path) -> None:
    with refused(ConfigError, repr(name)):
        writing.write("method", name, None)
    with refused(ConfigError, "exists already"):
        writing.write("method", "mine", here)
    assert not list(here.iterdir())


def test_the_worked_method_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "guide" / "own-method.md").read_text()
    (code,) = re.findall(r"```python\n(\"\"\"Momentum.*?)```", page, re.DOTALL)
    experiment = (
        "plugins: [worked.py]\ndataset: {name: handwritten, domains: [scan, sketch]}\nmodel: {name: cnn}\n"
        "train: {epochs: 1, batch_size: 32, lr: 0.01, precision: float32}\nallocation: {share: 0.05}\n"
        "method: {name: near-step}\nrounds: 2\n"
    )
    with own_experiment(tmp_path, monkeypatch, "worked.py", code, experiment) as file:
        monkeypatch.setenv("FEDSHIFT_PLUGINS", str(tmp_path / "worked.py"))
        losses, weights = [], []
        for beta in (0, 0.9):
            flat = {"experiment": str(file), "set": f"method.beta={beta}", "output-dir": str(tmp_path / str(beta))}
            made = Run(runner.run_inline(flat, 2))
            assert [line["left_out"] for line in made.rounds] == [[], []]
            losses.append([line["losses"] for line in made.rounds])
            weights.append(load_file(next(made.folder.rglob("weights-00002.safetensors"))))
        assert losses[0] == losses[1], "the first step has no momentum yet"
        assert "loss/near" not in losses[0][0] and losses[0][1]["loss/near"] > 0
        assert any(not np.array_equal(array, weights[1][name]) for name, array in weights[0].items())

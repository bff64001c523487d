"""FedShift as a wheel: what it holds, that no other package is hidden by it or hides it, and the same app as here."""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
from flwr.cli.build import build_fab_from_disk
from support import ROOT, InlineRun, Run, ran

import fedshift
from fedshift_app.node import own_code

PARTS = ("fedshift_app", "strategies", "clients", "datasets", "fedshift_core", "conf")
#: Kinds of files of the app, with what type checkers read.
KEPT = (".py", ".yaml", ".bib", ".pyi", ".typed")
#: What an environment imports besides ``fedshift``, by its folder in a checkout.
PACKAGES = {f"{name}/fedshift_{name}": f"fedshift_{name}" for name in ("strategies", "clients", "datasets")} | {
    name: name for name in ("fedshift_app", "fedshift_core")
}
PLUGIN = ROOT / "tests" / "example_plugin"
#: A run of a second or two.
TINY = ("dataset.domains=[scan,sketch]", "train.epochs=1", "rounds=1")
#: Stands for Hugging Face's library, which is installed with ours in an environment.
THEIRS = "THEIRS = True\n"


def build(kind: str, source: Path, folder: Path) -> Path:
    ran("-m", "hatchling", "build", "-t", kind, "-d", folder, cwd=source, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages as an environment has it: the wheel, and another package called ``datasets``."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
    (folder / "datasets").mkdir()
    (folder / "datasets" / "__init__.py").write_text(THEIRS)
    return folder


def test_a_wheel_holds_the_packages_and_in_one_the_whole_app_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
        (scripts,) = [name for name in content.namelist() if name.endswith("entry_points.txt")]
        commands = ConfigParser()
        commands.read_string(content.read(scripts).decode())
    here = [path for part in PARTS for path in (ROOT / part).rglob("*") if path.suffix in KEPT]
    app = {"pyproject.toml", "README.md", "LICENSE", *(str(path.relative_to(ROOT)) for path in here)}
    assert "conf/experiments/handwritten.yaml" in app and "datasets/fedshift_datasets/__init__.py" in app
    command = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "fedshift").rglob("*")
        if path.suffix in (".py", ".j2", ".css", ".js", ".mplstyle", ".typed", ".txt")  # code, and templates
    }
    assert "fedshift/run/html/templates/base.html.j2" in command
    imported = {
        str(package / path.relative_to(ROOT / folder))
        for folder, package in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in KEPT
    }
    assert names == {f"fedshift/app/{name}" for name in app} | imported | command
    assert dict(commands["console_scripts"]) == {"fedshift": "fedshift:main"}


def test_flower_makes_the_same_bundle_of_it(packages: Path, tmp_path: Path) -> None:
    bundle = build_fab_from_disk(packages / "fedshift" / "app")
    assert bundle == build_fab_from_disk(ROOT)
    code = own_code.of_bundle(bundle)
    assert (code.name, code.version, code.sha256) == (own_code.NAME, fedshift.__version__, own_code.installed())
    for words, wanted in ((["version", "--bundle"], code.sha256), (["app-dir"], packages / "fedshift" / "app")):
        result = ran("-m", "fedshift", *words, cwd=tmp_path, env={"PYTHONPATH": str(packages)})
        assert (result.stdout, result.stderr) == (f"{wanted}\n", "")


@pytest.mark.parametrize("others", [[], ["/mine", "/yours"]])
def test_packages_of_a_checkout_come_first_here_and_in_what_is_started(
    others: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = [str(ROOT / folder) for folder in ("", "strategies", "clients", "datasets")]
    monkeypatch.setattr(sys, "path", before := ["", "/site-packages"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(others))
    for _ in range(2):  # a command that FedShift starts does it again
        fedshift.put_on_path()
        assert sys.path == [*ours, "", "/site-packages"]
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [*ours, *others]
    assert sys.path is before


@pytest.mark.parametrize("order", ["import datasets, fedshift", "import fedshift, datasets"])
def test_another_datasets_stays_what_it_is_in_either_order(order: str, packages: Path, tmp_path: Path) -> None:
    """Also in what is started, and where the working folder is the app's own."""
    ask = "import sys, datasets, fedshift_datasets; print(datasets.THEIRS, fedshift_datasets.__file__, sys.argv[-1])"
    ours = packages / "fedshift_datasets" / "__init__.py"
    code = f"""
import subprocess, sys
{order}
import fedshift_datasets, fedshift_clients, fedshift_strategies
print(datasets.THEIRS, fedshift_datasets.__file__, fedshift.method("fpl").name, flush=True)
subprocess.run([sys.executable, "-c", {ask!r}, "child"], check=True)
"""
    for folder in (tmp_path, packages / "fedshift" / "app"):
        result = ran("-c", code, cwd=folder, env={"PYTHONPATH": str(packages)})
        assert result.stdout.splitlines() == [f"True {ours} fpl", f"True {ours} child"], result.stderr


def fresh_environment(folder: Path) -> tuple[Path, Path]:
    """Return an environment with the libraries of this one, without FedShift, and where its packages are."""
    venv.create(folder / "venv", with_pip=False)
    (inner,) = (folder / "venv").glob("lib/python*/site-packages")
    (inner / "outer.pth").write_text("\n".join(place for place in sys.path if place.endswith("site-packages")))
    return folder / "venv", inner


@pytest.mark.long
def test_type_checkers_find_its_packages_without_help(packages: Path, tmp_path: Path) -> None:
    """In an environment with the wheel."""
    environment, inner = fresh_environment(tmp_path)
    for name in ("fedshift", *PACKAGES.values()):
        shutil.copytree(packages / name, inner / name)
    own = tmp_path / "own.py"
    own.write_text(
        "from fedshift_core.errors import ConfigError\nfrom fedshift_clients.base import DomainClient\n"
        "from fedshift_datasets.base import ImageSet\nfrom fedshift_strategies import FedProto\n"
        'reveal_type(ImageSet)\nFedProto(prototype_mean="plain", fraction_train=0.5)\nFedProto(prototype_mean="best")\n'
    )
    paths = dict.fromkeys(("PYTHONPATH", "MYPYPATH"), "")
    python = environment / "bin" / "python"
    checked = ran("-m", "mypy", "--strict", "--python-executable", python, own, cwd=tmp_path, env=paths)
    lines = checked.stdout.splitlines()
    assert "own.py:5: note: Revealed type is" in lines[0] and "fedshift_datasets.listing.ImageSet" in lines[0], lines
    assert lines[1].startswith('own.py:7: error: Argument "prototype_mean" to "FedProto" has incompatible type'), lines
    assert len(lines) == 3, lines


@pytest.mark.long
def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path / "archive")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert build("wheel", source, tmp_path / "again").read_bytes() == wheel.read_bytes()


@pytest.mark.slow
@pytest.mark.long
def test_installed_it_runs_in_any_folder_with_the_same_numbers(
    wheel: Path, run_inline: InlineRun, tmp_path: Path
) -> None:
    """With another ``datasets``, with a package from outside, by both engines; nothing is written where it lies."""
    environment, inner = fresh_environment(tmp_path)
    plugin = shutil.copytree(PLUGIN, tmp_path / "plugin")  # building leaves files behind
    options = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    ran("-m", "pip", "--python", environment / "bin" / "python", *options, wheel, plugin, check=True)
    (inner / "datasets").mkdir()
    (inner / "datasets" / "__init__.py").write_text(THEIRS)
    for command in Path(sys.executable).parent.glob("fl*"):  # Flower's are next to ours, as pip puts them
        text = command.read_text().replace(sys.executable, str(environment / "bin" / "python"))
        (environment / "bin" / command.name).write_text(text)
        (environment / "bin" / command.name).chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}

    def call(*arguments: str) -> str:
        ended = subprocess.run(
            [str(environment / "bin" / "fedshift"), *arguments], cwd=elsewhere, env=env, capture_output=True,
            text=True, timeout=240, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "[fedshift-example 1.0]" in call("methods")
    there = {path for path in (inner / "fedshift").rglob("*") if "__pycache__" not in path.parts}
    call("run", str(PLUGIN / "experiment.yaml"), "engine=inline", "nodes=2", "rounds=1", "report=false")
    for engine in ("inline", "simulation"):
        call("run", "handwritten", *TINY, "nodes=4", "report=false", f"engine={engine}", f"output-dir={engine}")
    assert {path for path in (inner / "fedshift").rglob("*") if "__pycache__" not in path.parts} == there
    here = run_inline(rounds=1, set=" ".join(TINY[:2])).results["weights_sha256"]
    for engine in ("inline", "simulation"):
        (folder,) = (elsewhere / engine).iterdir()
        assert Run(folder).results["weights_sha256"] == here, engine

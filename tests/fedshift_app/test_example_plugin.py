"""A package outside our folders, installed into an environment of its own: one method, one data set, one network."""

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from support import ROOT

PACKAGE = ROOT / "tests" / "example_plugin"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the package, on top of this one's packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=False)
    (inner,) = (folder / "venv").glob("lib/python*/site-packages")
    (inner / "outer.pth").write_text("\n".join(site.getsitepackages()))
    source = shutil.copytree(PACKAGE, folder / "source")  # building leaves files behind
    made = folder / "venv" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", "--no-deps", "--no-index",
         "--no-build-isolation", "--disable-pip-version-check", str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def ask(python: Path, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run([str(python), *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("methods", "equal-domains"),
        pytest.param("datasets", "stripes", marks=pytest.mark.long),
        pytest.param("models", "tiny", marks=pytest.mark.long),
    ],
)
def test_lists_name_the_package(kind: str, name: str, python: Path) -> None:
    told = ask(python, "-m", "fedshift.cli", kind)
    assert told.returncode == 0, told.stderr
    (line,) = [line for line in told.stdout.splitlines() if line.split()[:1] == [name]]
    assert line.endswith("[fedshift-example 1.0]")
    assert told.stderr == ""
    own = ask(Path(sys.executable), "-m", "fedshift.cli", kind).stdout.splitlines()
    assert not any(line.endswith("]") for line in own)


@pytest.mark.long
def test_all_three_in_one_run_pass_the_contract(python: Path) -> None:
    """The contract of all methods holds for the package's method, on its data set and its network."""
    command = [
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/fedshift_app/test_contract.py",
        "-k", "equal-domains",
    ]  # fmt: skip
    env = {"FEDSHIFT_CONTRACT": "dataset=stripes model.name=tiny"}
    ran = subprocess.run(
        [str(python), *command], cwd=ROOT, env=os.environ | env | {"OMP_NUM_THREADS": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-5000:]
    last = ran.stdout.strip().splitlines()[-1]
    assert " passed" in last
    assert int(last.split(" passed")[0].split()[-1]) >= 9, last


def test_it_runs_from_an_experiment_file(python: Path, tmp_path: Path) -> None:
    ran = ask(
        python, "-m", "fedshift.cli", "run", str(PACKAGE / "experiment.yaml"), "engine=inline", "nodes=2",
        "rounds=2", "report=false", f"output-dir={tmp_path}",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "equal-domains on stripes, tiny" in ran.stdout
    (config,) = tmp_path.glob("*/config.yaml")
    assert "fedshift-example: '1.0'" in config.read_text()


def test_without_the_package_its_names_are_unknown(tmp_path: Path) -> None:
    ran = ask(Path(sys.executable), "-m", "fedshift.cli", "run", str(PACKAGE / "experiment.yaml"), cwd=ROOT)
    assert ran.returncode == 1
    assert ran.stderr.startswith("error: unknown method 'equal-domains'; there are fedavg")
    assert "Traceback" not in ran.stderr

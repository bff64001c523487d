"""docs/adding-a-method.md does what it says: its files, put into a copy of the packages, are a method that runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from support import ROOT

PAGE = ROOT / "docs" / "adding-a-method.md"
REGISTRY = "fedshift_app/config/registry.py"
PACKAGES = ("fedshift_app", "strategies", "clients", "datasets", "fedshift_wire", "conf")


def blocks() -> dict[str, str]:
    """Return the page's files by path: each block names its own in its first line."""
    found = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return dict(found)


def test_the_page_counts_right() -> None:
    files = blocks()
    lines = sum(1 for text in files.values() for line in text.splitlines() if line.strip())
    new = [path for path in files if not (ROOT / path).exists()]
    assert set(files) - set(new) == {REGISTRY}
    stated = re.search(r"\*\*(\d+) new files and (\d+) entry, (\d+) lines", PAGE.read_text())
    assert stated is not None
    assert [int(number) for number in stated.groups()] == [len(new), len(files) - len(new), lines]


def test_the_method_of_the_page_runs(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in blocks().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path == REGISTRY:
            old = target.read_text()
            place = "METHODS: dict[str, Method] = {\n    m.name: m\n    for m in (\n"
            assert old.count(place) == 1
            target.write_text(old.replace(place, place + text))
        else:
            target.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "fedshift_app.cli", "run", "handwritten", "method=toy", "engine=inline", "nodes=4",
         "rounds=2", "train.epochs=1", "method.mu=0.1", "report=false", f"output-dir={tmp_path / 'runs'}"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    last = (tmp_path / "runs").glob("*/metrics.jsonl").__next__().read_text().splitlines()[-1]
    assert set(json.loads(last)["losses"]) == {"loss", "loss/ce", "loss/length"}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clients/test_toy.py"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr

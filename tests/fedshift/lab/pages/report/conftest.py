"""Reports of runs: a reader that checks what holds for all of them, and one page that is drawn for all workers."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import InlineRun, Run

from fedshift.lab.pages.report import command
from fedshift_core.yaml_files import as_yaml, read_yaml

QUICK = "dataset.domains=[scan,street] train.epochs=1 allocation.share=0.05"
SECTIONS = {
    "accuracy", "training", "by-class", "sites", "confusion", "features", "federation", "configuration",
}  # fmt: skip
#: Names that a run may have, and that look like what a page is made of.
HOSTILE = {
    "experiment": '<script>alert(1)<script>&"x" $a_b$ {{ 7 * 7 }}', "command": "fedshift run </pre><img src=x>",
    "loss": "<u>$x$&",
}  # fmt: skip


def check(page: Any) -> None:
    """Check that a page refers to nothing outside itself, runs nothing, and has a text for each figure."""
    tags, names = {tag for tag, _, _ in page.elements}, [a["id"] for _, a, _ in page.elements if "id" in a]
    assert page.source.startswith("<!DOCTYPE html>") and len(names) == len(set(names))
    assert not {"script", "link", "iframe", "object", "base", "form"} & tags
    targets = [*page.source.split("url(")[1:]]
    for _, attributes, _ in page.elements:
        referring = {"href", "src", "xlink:href", "srcset", "data", "poster", "action"} & attributes.keys()
        targets += [f"{attributes[key]})" for key in referring]
        assert not [key for key in attributes if key.startswith("on")]
    for target in targets:
        here = target.startswith("#") and target[1 : target.index(")")] in names
        assert here or target.startswith("data:image/png;base64,"), target[:80]
    assert not any(text in page.source for text in ("@import", "http://", "https://"))
    assert all(len(image["alt"]) > 10 for image in page.all("img"))
    assert all(len(figure["aria-label"]) > 20 and figure["role"] == "img" for figure in page.all("svg"))
    assert page.source.count("<title>") == 1 + len(page.all("svg"))
    folded = SECTIONS - set(names)
    assert folded <= {"by-class", "confusion", "features", "sites"} and bool(folded) == ("not-shown" in names)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.yaml"
    path.write_text(as_yaml(read_yaml(path) | changes))


def change_rounds(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lines = Run(folder).rounds
    for line in lines:
        change(line)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="session")
def read_report(read_page: Callable[[str], Any]) -> Callable[[Path], Any]:
    """Return a function that reads and checks the report of a run."""

    def read(folder: Path) -> Any:
        page = read_page((folder / "report.html").read_text(encoding="utf-8"))
        page.numbers = json.loads((folder / "report.json").read_text())
        check(page)
        return page

    return read


@pytest.fixture(scope="session")
def report(read_report: Callable[[Path], Any]) -> Callable[..., Any]:
    """Return a function that makes the report of a run, and returns it read and checked."""

    def make(folder: Path, *arguments: str) -> Any:
        made = command.run(folder, list(arguments))
        page = read_report(folder)
        assert (made.page, list(made.lacks)) == (folder / "report.html", page.numbers["not_drawn"])
        return page

    return make


@pytest.fixture(scope="session")
def finished(shared_run: InlineRun) -> Run:
    """Return a run of I2PFL of two rounds, which no test may change."""
    return shared_run(method="i2pfl", nodes=4, rounds=2, set=QUICK)


@pytest.fixture
def copied(finished: Run, tmp_path: Path) -> Run:
    """Return the same run, to be changed."""
    return Run(shutil.copytree(finished.folder, tmp_path / "copy"))


@pytest.fixture(scope="session")
def drawn(finished: Run, report: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run with hostile names, in a folder that is not UTF-8, and its report: drawn once for all workers."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "drawn-report"
    home.mkdir(exist_ok=True)
    folder = home / os.fsdecode(b"run\xff")
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "drawn").exists():
            shutil.copytree(finished.folder, folder)
            resolved = read_yaml(folder / "config.yaml")["resolved"] | {"experiment": HOSTILE["experiment"]}
            change_config(folder, command=HOSTILE["command"], resolved=resolved, versions={"<b>": "&amp;"})
            change_rounds(folder, lambda line: line["losses"].update({f"loss/{HOSTILE['loss']}": 1.0}))
            report(folder, "images=all")
            (home / "drawn").touch()
    return folder


@pytest.fixture
def drawn_page(drawn: Path, read_report: Callable[[Path], Any]) -> Any:
    return read_report(drawn)


@pytest.fixture(scope="session")
def hostile() -> dict[str, str]:
    return HOSTILE


@pytest.fixture(scope="session")
def change() -> SimpleNamespace:
    """Return the functions that change a run's configuration and its rounds."""
    return SimpleNamespace(config=change_config, rounds=change_rounds)

"""docs/guide/ci.md: its files for CI are YAML of the right form, and every command in them is one that is taken."""

import json
import re
import shlex
import tomllib
from typing import Any

import pytest
import yaml
from doc_commands import options, runs_of
from support import ROOT

from fedshift.run.launch import json_line

PAGE = (ROOT / "docs" / "guide" / "ci.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = {
    text.splitlines()[0].removeprefix("# "): yaml.safe_load(text)
    for text in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
}
GITHUB, GITLAB = ".github/workflows/fedshift.yml", ".gitlab-ci.yml"


def lines(name: str) -> list[str]:
    """Return the lines of shell that a file runs."""
    if name == GITLAB:
        return [str(line) for line in BLOCKS[name]["fedshift"]["script"]]
    (job,) = BLOCKS[name]["jobs"].values()
    return [line for step in job["steps"] for line in step.get("run", "").splitlines()]


def test_the_files_have_the_form_that_their_servers_read() -> None:
    assert list(BLOCKS) == [GITHUB, GITLAB]
    github: dict[Any, Any] = BLOCKS[GITHUB]
    assert github[True] == ["push", "pull_request"]  # YAML 1.1 reads the key `on` so, and GitHub does not mind
    (job,) = github["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest" and all(("uses" in step) != ("run" in step) for step in job["steps"])
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
    (gitlab,) = BLOCKS[GITLAB].values()
    assert gitlab["image"].startswith("python:3.") and gitlab["artifacts"]["when"] == "always"


@pytest.mark.parametrize("name", [GITHUB, GITLAB])
def test_each_command_of_a_file_is_taken(name: str) -> None:
    ours = [line.partition(" > ")[0].removeprefix("fedshift ") for line in lines(name) if line.startswith("fedshift ")]
    assert {shlex.split(command)[0] for command in ours} >= {"run", "sweep", "compare"}
    for command in ours:
        assert options(command) is not None
        runs_of(command)
    installs = [line for line in lines(name) if ".venv" in line and "GITHUB_PATH" not in line]
    assert installs[:2] == ["python3 -m venv .venv", '.venv/bin/pip install -e ".[dev]"']
    assert all(line.removeprefix(". .venv") in README or line in README for line in installs)


@pytest.mark.parametrize("name", [GITHUB, GITLAB])
def test_the_check_of_scores_reads_what_the_command_prints(name: str, here: Any, monkeypatch: Any) -> None:
    """The line of Python is run on an outcome that is good enough, and on one that is not."""
    (check,) = [shlex.split(line)[2] for line in lines(name) if line.startswith("python -c ")]
    for average, enough in ((90.0, True), (10.0, False)):
        content = json_line.Outcome().content(0, None) | {"scores": {"average": average}}
        (here / "outcome.json").write_text(json.dumps(content))
        if enough:
            exec(check, {})
        else:
            with pytest.raises(AssertionError):
                exec(check, {})


# --- workflows, forms and licence ---------------------------------------------------------------------

TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()}
MAKE = re.compile(r"\bmake ([a-z-]+)")


def test_each_workflow_is_yaml_whose_make_targets_exist() -> None:
    assert WORKFLOWS.keys() == {"tests", "nightly", "docs", "release"}
    for name, text in WORKFLOWS.items():
        content: dict[Any, Any] = yaml.safe_load(text)
        assert True in content and "permissions" in content, name  # YAML 1.1 reads the key `on` so
        steps = [step for job in content["jobs"].values() for step in job["steps"]]
        assert all(("uses" in step) != ("run" in step) for step in steps), name
        made = {target for step in steps for target in MAKE.findall(step.get("run", ""))}
        assert made and made <= TARGETS, name
    for script in (ROOT / ".ci").iterdir():
        assert set(MAKE.findall(script.read_text())) & TARGETS, script.name


def test_tests_run_on_the_pythons_that_are_supported() -> None:
    tested = yaml.safe_load(WORKFLOWS["tests"])["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={tested[0]}" and tested == ["3.11", "3.12", "3.13"]
    wheels = re.findall(
        r"pip install torch torchvision --index-url \S+", (ROOT / "docs/start/installing.md").read_text()
    )
    assert all(wheels[0] in text for text in WORKFLOWS.values())

"""Workflows, forms, licence and pages of a public project name what is there."""

import re
import tomllib
from typing import Any

import yaml
from support import ROOT

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

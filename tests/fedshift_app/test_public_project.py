"""Workflows, forms, licence and pages of a public project name what is there."""

import json
import re
import tomllib
from typing import Any

import yaml
from support import ROOT

TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()}
MAKE = re.compile(r"\bmake ([a-z-]+)")
GUIDES = {"CONTRIBUTING.md": 500, "AGENTS.md": 500, "SECURITY.md": 250}  # with their most words


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


def test_each_form_asks_under_names_of_its_own() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir():
        form = yaml.safe_load(path.read_text())
        asked = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert form["name"] and form["description"] and asked and len(set(asked)) == len(asked), path.name


def test_licence_and_title_are_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    zenodo = json.loads((ROOT / ".zenodo.json").read_text())
    (reuse,) = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    assert zenodo["title"] == citation["title"] and reuse["path"] == "**"
    assert {zenodo["license"], citation["license"], reuse["SPDX-License-Identifier"]} == {"Apache-2.0"}
    assert (ROOT / "LICENSES" / "Apache-2.0.txt").read_text() == (ROOT / "LICENSE").read_text()


def test_a_guide_is_short_and_its_make_targets_and_files_are_there() -> None:
    for name, most in GUIDES.items():
        text = (ROOT / name).read_text()
        assert len(re.sub(r"^    .*$", "", text, flags=re.MULTILINE).split()) <= most, name
        assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= TARGETS, name
        paths = re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?)`", text)
        assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == [], name

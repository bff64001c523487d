"""Files for CI: our own workflows are YAML whose targets of make exist."""

import re
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

"""Files for CI: the line of Python in those of docs/guide/ci.md, and the targets of our own workflows."""

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from support import ROOT

from fedshift.run.launch import json_line

PAGE = (ROOT / "docs" / "guide" / "ci.md").read_text(encoding="utf-8")
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

"""``fedshift run --json``: what the last line says of a run that ends well, fails, or is stopped."""

import json
from pathlib import Path
from typing import Any

import pytest
from run_folders import RESULTS, STATUS

from fedshift.run.launch import json_line
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError

KEYS = ["folder", "state", "exit_code", "rounds", "seconds", "scores", "error"]


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the object; standard output has nothing else."""
    (line,) = capsys.readouterr().out.splitlines()
    content: dict[str, Any] = json.loads(line)
    assert list(content) == KEYS
    return content


def write(folder: Path, state: str, **more: Any) -> Path:
    """Write what of a run folder is read."""
    folder.mkdir()
    status = STATUS | {"state": state, "round": 2, "rounds": 2, "full_rounds": 2}
    (folder / "status.json").write_text(json.dumps(status | more))
    return folder


def results(folder: Path, **more: Any) -> dict[str, Any]:
    """Write results of two domains, of which one sent no counts."""
    figures = {"domains": {"a": {"balanced_accuracy": 30.0, "macro_f1": 20.0}, "b": None}}
    content = RESULTS | {
        "domains": {"a": 40.0, "b": 42.0}, "avg": 41.0, "averaged_rounds": 2, "final": {"a": 41.0, "b": 43.0},
        "figures": figures,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(content | more))
    return content


def test_a_run_that_ends_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", "completed")
    written = results(folder)
    with json_line.printed(on=True) as outcome:
        print("round 1")  # goes to standard error
        outcome.begun(folder)
    scores = {
        "domains": written["domains"], "average": 41.0, "averaged_rounds": 2, "final": written["final"],
        "balanced_accuracy": None, "macro_f1": None,
    }  # fmt: skip
    content = last(capsys)
    assert content.pop("seconds") >= 0 and [*content.values()] == [str(folder), "completed", 0, 2, scores, None]
    with json_line.printed(on=False):
        print("round 1")
    assert capsys.readouterr().out == "round 1\n" and json_line.scores(tmp_path) is None


@pytest.mark.parametrize(
    ("error", "code", "state", "message"),
    [
        (ConfigError("rounds: found x"), 1, "failed", "rounds: found x"),
        (OSError("disk"), 1, "failed", "OSError: disk"),
        (SystemExit(exit_codes.CTRL_C), 130, "interrupted", "stopped by Ctrl-C"),
        (SystemExit(exit_codes.TERMINATED), 143, "interrupted", "stopped by SIGTERM"),
        (KeyboardInterrupt(), 1, "failed", "KeyboardInterrupt: "),
    ],
)
def test_a_run_that_is_refused_or_stopped_before_it_has_a_folder(
    error: BaseException, code: int, state: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)), json_line.printed(on=True):
        raise error
    content = last(capsys)
    assert content.pop("seconds") >= 0 and [*content.values()] == [None, state, code, 0, None, message]


def test_a_degraded_run_says_which_nodes_it_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "run", "degraded", error="nodes were left out")
    results(folder, lost={"1": [2]})

    def end() -> None:
        with json_line.printed(on=True) as outcome:
            outcome.begun(folder)
            raise SystemExit(exit_codes.DEGRADED)

    with pytest.raises(SystemExit):
        end()
    content = last(capsys)
    assert (content["exit_code"], content["state"], content["error"]) == (4, "degraded", "nodes were left out")

"""A model scored through a SuperLink, on SuperNodes of which one never trained. Real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from real_federation import opened
from support import InlineRun, refusal_of

from fedshift.lab.grid.evaluate import command
from fedshift.run.launch import local_superlink, log_filter, runner, site_status
from fedshift_app.run import exit_codes
from fedshift_core.errors import ConfigError, FederationError

TINY = "train.epochs=1 allocation.share=0.2 train.precision=float32 train.lr=0.05"
ALL = "dataset.domains=[scan,sketch,street]"
LIMIT = 240


@pytest.mark.slow
@pytest.mark.long
def test_a_site_that_joins_late_is_scored_as_in_a_simulation(run_inline: InlineRun, tmp_path: Path) -> None:
    run = run_inline(nodes=2, rounds=2, set=f"{TINY} dataset.domains=[scan,sketch]")
    here = [str(run.folder), ALL, "nodes=3", f"output-dir={tmp_path / 'here'}", "engine=inline"]
    command.evaluate(here, "", as_json=False)
    (file,) = tmp_path.glob("here/*/evaluate.json")
    wanted = json.loads(file.read_text())["models"][0]
    there = ["--site", runner.CONNECTION, "--json", ALL, "federation.min_nodes=3", f"output-dir={tmp_path / 'there'}"]
    with opened(tmp_path / "site", 3, f"{TINY} {ALL}") as site:
        ended = subprocess.run(
            [sys.executable, "-m", "fedshift", "evaluate", str(run.folder), *there],
            cwd=site.flower.folder, env=site.flower.env, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr + ended.stdout
    model = json.loads(ended.stdout)["models"][0]
    assert (model["engine"], model["nodes"], model["domains"]) == ("deployment", 3, wanted["domains"])
    assert [domain["trained_on"] for domain in model["domains"].values()] == [True, True, False]
    assert model["domains"]["street"]["images"] == 90


@pytest.mark.parametrize("state", ["completed", "degraded", "failed", ""])
def test_how_the_run_on_a_site_ended_is_the_end_of_the_command(
    state: str, finished_run: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A run in this process, or none, in the place of the one that ``flwr`` submits."""
    run = finished_run(method="fedavg", rounds=1, set=TINY)

    def submitted(flat: dict[str, str], *_: object) -> None:
        if not state:
            return
        results = (folder := runner.run_inline(flat, 4)) / "results.json"
        if state == "degraded":
            results.write_text(json.dumps(json.loads(results.read_text()) | {"lost": {"0": [3]}}))
        elif state == "failed":
            results.unlink()
            status = json.loads((folder / "status.json").read_text())
            (folder / "status.json").write_text(json.dumps(status | {"state": state, "error": "a node is lost"}))

    monkeypatch.setattr(site_status, "read", lambda site: {})
    monkeypatch.setattr(local_superlink, "run_command", lambda home, site, flat: flat)
    monkeypatch.setattr(log_filter, "call", submitted)
    given = [str(run.folder), f"output-dir={tmp_path / 'out'}"]
    if state in ("completed", "degraded"):
        code = command.evaluate(given, "hospital", as_json=False)
        (file,) = tmp_path.glob("out/*/evaluate.json")
        (model,) = json.loads(file.read_text())["models"]
        assert {name: domain["accuracy"] for name, domain in model["domains"].items()} == run.results["final"]
        lost = state == "degraded"
        assert (code, f"degraded: {run.folder.name}: " in capsys.readouterr().err) == (exit_codes.DEGRADED * lost, lost)
    else:
        said = refusal_of(FederationError, command.evaluate, given, "hospital", as_json=False)
        assert said.startswith("--site hospital: " + ("a node is lost" if state else "the run left no folder in "))


def test_a_superlink_that_is_not_there_is_said_before_any_work(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", rounds=1, set=TINY)

    def on_site(*arguments: str) -> None:
        command.evaluate([str(run.folder), f"output-dir={tmp_path / 'out'}", *arguments], "nowhere", as_json=False)

    assert "nowhere" in refusal_of(FederationError, on_site)
    assert "engine: --site asks the real nodes" in refusal_of(ConfigError, on_site, "engine=inline")
    assert not (tmp_path / "out").exists()

"""A model scored through a SuperLink, on SuperNodes of which one never trained. Real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from real_federation import opened
from support import InlineRun, refusal_of

from fedshift.lab.grid.evaluate import command
from fedshift.run.launch import runner
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


def test_a_superlink_that_is_not_there_is_said_before_any_work(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", rounds=1, set=TINY)

    def on_site(*arguments: str) -> None:
        command.evaluate([str(run.folder), f"output-dir={tmp_path / 'out'}", *arguments], "nowhere", as_json=False)

    assert "nowhere" in refusal_of(FederationError, on_site)
    assert "engine: --site asks the real nodes" in refusal_of(ConfigError, on_site, "engine=inline")
    assert not (tmp_path / "out").exists()

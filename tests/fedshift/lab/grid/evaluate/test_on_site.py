"""A model scored through a SuperLink, on SuperNodes of which one never trained. Real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, InlineRun, refusal_of

from fedshift.lab.grid.evaluate import command
from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_core.errors import ConfigError, FederationError
from fedshift_datasets.io import cache

TINY = "train.epochs=1 allocation.share=0.2 train.precision=float32 train.lr=0.05"
ALL = "dataset.domains=[scan,sketch,street]"
LIMIT = 240


@pytest.mark.slow
@pytest.mark.long
def test_a_site_that_joins_late_is_scored_as_in_a_simulation(run_inline: InlineRun, tmp_path: Path) -> None:
    run = run_inline(nodes=2, rounds=2, set=f"{TINY} dataset.domains=[scan,sketch]")
    command.evaluate(
        [str(run.folder), ALL, "nodes=3", f"output-dir={tmp_path / 'here'}", "engine=inline"], "", as_json=False
    )
    (file,) = tmp_path.glob("here/*/evaluate.json")
    wanted = json.loads(file.read_text())["models"][0]
    home = tmp_path / "site"
    home.mkdir()
    folders = exporting.export(
        configuration.resolve({"experiment": "handwritten", "set": f"{TINY} {ALL}"}), 3, home / "nodes"
    )
    own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state"), "PYTHONPATH": str(ROOT)}
    with processes.group(local_superlink.empty_folder(home), local_superlink.environment(home) | own) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(home))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(home, link)
        for folder in folders:
            deploy_demo.start_supernode(flower, link, folder, deploy_demo.make_node_key(flower, home, folder))
        ended = subprocess.run(
            [
                sys.executable, "-m", "fedshift", "evaluate", str(run.folder), "--site", runner.CONNECTION,
                "--json", ALL, "federation.min_nodes=3", f"output-dir={tmp_path / 'there'}",
            ],
            cwd=flower.folder, env=flower.env, capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr + ended.stdout
    model = json.loads(ended.stdout)["models"][0]
    assert (model["engine"], model["nodes"]) == ("deployment", 3)
    assert model["domains"] == wanted["domains"]
    assert [domain["trained_on"] for domain in model["domains"].values()] == [True, True, False]
    assert model["domains"]["street"]["images"] == 90


def test_a_superlink_that_is_not_there_is_said_before_any_work(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(method="fedavg", rounds=1, set=TINY)

    def on_site(*arguments: str) -> None:
        command.evaluate([str(run.folder), f"output-dir={tmp_path / 'out'}", *arguments], "nowhere", as_json=False)

    assert "nowhere" in refusal_of(FederationError, on_site)
    assert "engine: --site asks the real nodes" in refusal_of(ConfigError, on_site, "engine=inline")
    assert not (tmp_path / "out").exists()

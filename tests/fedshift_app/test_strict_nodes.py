"""Real nodes under the strict policy in a run with secure sums: what they log is what such a run may show of them."""

import json
from pathlib import Path
from typing import Any

import own_sites
import pytest
from support import InlineRun, ListeningGrid

from fedshift_app import server_app
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup, state_folder

SITES = ("north", "south", "west")
SUMS = (
    "dataset.classes=[bar,cross,disc] dataset.size=32 dataset.domains=[north,south,west] model.name=cnn train.epochs=1 "
    "train.precision=float32 method.share_weights=true federation.min_nodes=3 federation.secure_sums=on"
)


def test_strict_nodes_send_masked_sums_and_no_counts(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    own_sites.write(images, SITES, 60)

    def nodes(*args: Any) -> Any:
        grid = ListeningGrid(*args)
        for i, site in enumerate(SITES):
            given = {"domain": site, "data-dir": str(images / site), "partition-id": i}
            grid._contexts[1000 + i] = make_context(1000 + i, given, {})
        return grid

    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
    run = run_inline(
        method="fedproto", dataset="folders", data_dir=str(images), nodes=3, rounds=2, set=SUMS, grid=nodes
    )
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert set(run.rounds[-1]["accuracy"]) == set(SITES)
    logs = sorted((tmp_path / "state").glob("*/out.jsonl"))
    assert len(logs) == 3
    for log in logs:
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        trained = {line["name"] for line in lines if line["message"] == "train" and line["kind"] == "array"}
        assert trained == {"arrays/masked"}  # no weights, no prototypes, no counts
        assert not any("loss" in line["name"] for line in lines if line["message"] == "train" and "name" in line)
        assert not any(line.get("name", "").startswith("counts/") for line in lines)  # the policy keeps them

"""Folders of finished runs that no run has written, whose numbers a test knows."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_core.yaml_files import as_yaml

#: Content of the least ``status.json`` and ``results.json`` that count.
STATUS: dict[str, Any] = {
    "state": "completed", "engine": "inline", "experiment": "handwritten", "method": "fedavg", "pid": 1, "host": "x",
    "round": 1, "rounds": 1, "since": "now", "updated": "now", "full_rounds": 1, "asked": 4, "answered": 4,
    "left_out": [], "last_scored": None, "seconds": 1.0, "seconds_left": None, "nodes": [], "error": None,
}  # fmt: skip
RESULTS: dict[str, Any] = {
    "rounds": 1, "averaged_rounds": 1, "domains": {"scan": 1.0}, "final": {"scan": 1.0}, "seconds": 1.0,
}  # fmt: skip


def write_run(
    folder: Path, config: RunConfig, domains: Mapping[str, float | None], recorded: Mapping[str, Any] = {}, *,
    personal: bool = False, **results: Any,
) -> Path:  # fmt: skip
    """Write a run's configuration and results into a new folder, and return it.

    Args:
        folder: The folder; its name is the hash of the weights.
        config: The configuration.
        domains: Accuracy by domain, in all rounds.
        recorded: What else the configuration's file records.
        personal: Whether each node's own model was scored.
        results: Further results, or others.
    """
    folder.mkdir(parents=True)
    said = {"resolved": config.model_dump(mode="json"), "engine": "inline", "versions": {"torch": "1"}, **recorded}
    (folder / "config.yaml").write_text(as_yaml(said))
    summary = {
        "method": config.method["name"], "dataset": config.dataset.name, "seed": config.seed,
        "evaluated": "personal models" if personal else "global model", "averaged_rounds": 5,
        "domains": domains, "final": domains, "best_test": {"round": 3, "domains": domains},
        "nodes": [{"domain": domain, "class_counts": [1, 2]} for domain in domains], "weights_sha256": folder.name,
        **results,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(summary))
    return folder

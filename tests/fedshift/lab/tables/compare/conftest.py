"""Finished runs that no run has written."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from fedshift_app.config.resolving import resolve

PERSONAL = ("fedbn", "local", "fedproto")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the folder of a finished run, of two domains unless others are given."""

    def make(
        method: str, seed: int = 0, scan: float | None = 50.0, street: float | None = 40.0, *, given: str = "",
        domains: Mapping[str, float | None] | None = None, experiment: str = "handwritten", name: str = "",
        under: str = "runs", recorded: Mapping[str, Any] = {}, **results: Any,
    ) -> Path:  # fmt: skip
        two = experiment == "handwritten" and domains is None
        settings = f"{'dataset.domains=[scan,street]' * two} {given}"
        config = resolve({"experiment": experiment, "method": method, "seed": seed, "set": settings})
        if domains is None:
            domains = {"scan": scan, "street": street} if two else dict.fromkeys(config.dataset.domains, scan)
        if not two:
            number = config.allocation.num_nodes() or len(domains)
            results = {"nodes": [{"domain": next(iter(domains)), "class_counts": [1]}] * number} | results
        place = tmp_path / under
        folder = place / (name or f"{method}-{seed}-{len(list(place.glob('*')))}")
        return write_run(folder, config, domains, recorded, personal=method in PERSONAL, **results)

    return make


@pytest.fixture
def three_seeds(run: Callable[..., Path]) -> list[Path]:
    """Runs whose AVG is, of fedavg: 50, 52, 54; of i2pfl: 51, 55, 56."""
    fedavg = [run("fedavg", s, 60 + 2 * s, 40 + 2 * s) for s in range(3)]
    return fedavg + [run("i2pfl", s, avg + 9, avg - 9) for s, avg in enumerate((51, 55, 56))]


@pytest.fixture(scope="session")
def figures_of() -> Callable[..., dict[str, Any]]:
    """Return a function that gives the figures of a run with these scores by any measure."""

    def make(scan: float, street: float, n: int = 90) -> dict[str, Any]:
        def of(value: float) -> dict[str, Any]:
            short = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece"), value)
            by_class = {"recall": [value], "precision": [None], "n": [n]}
            return {"n": n, **short, "per_class": by_class, "confusion": [[n]]}

        return {"round": 5, "classes": ["x"], "domains": {"scan": of(scan), "street": of(street)}, "overall": of(scan)}

    return make


@pytest.fixture
def of_mine(run: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes a run of an experiment of one's own, of which nothing but the run is known."""

    def make(*given: Any, **named: Any) -> Path:
        file = run(*given, **named) / "config.yaml"
        file.write_text(file.read_text().replace("experiment: handwritten", "experiment: mine"))
        return file.parent

    return make

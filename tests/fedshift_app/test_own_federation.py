"""From folders of images to a model in use, by commands alone: three sites, three classes, one broken file."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_sites import CLASSES, make
from support import ROOT, Run

from fedshift_datasets.io import cache

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: What keeps a run small: the two-layer network, at its size.
SMALL = ["model.name=cnn", "dataset.size=32", "rounds=8", "train.epochs=3", "train.lr=0.02", "report=false"]
#: Without a validation part, which a real node draws for itself.
WHOLE = [*SMALL[:2], "allocation.validation_fraction=0", "keep=last"]
LIMIT = 600


def fedshift(*arguments: str, cwd: Path, code: int = 0) -> str:
    """Run a command as a user does; return what it printed, of one that fails its errors too."""
    ended = subprocess.run(
        [sys.executable, "-m", "fedshift", *arguments], cwd=cwd, text=True, capture_output=True,
        timeout=LIMIT, check=False, env=os.environ | {"PYTHONPATH": str(ROOT), cache.CACHE_DIR: str(cwd / "cache")},
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + (ended.stderr if code else "")


def run_of(said: str) -> Run:
    return Run(Path(said.rpartition("run folder: ")[2].strip()))


def test_the_whole_way(tmp_path: Path) -> None:
    images = make(tmp_path / "images")
    said = fedshift("init", "shapes", "data-dir=images", cwd=tmp_path)
    file = tmp_path / "shapes" / "shapes.yaml"
    assert "fedshift sweep shapes/shapes.yaml method=" in said

    checked = json.loads(fedshift("prepare", str(file), "dataset.skip_broken=true", "--json", cwd=tmp_path))
    assert [Path(one["file"]).name for one in checked["broken"]] == ["broken.png"]
    assert checked["nearly_same"]["across_domains"] == 1
    said = fedshift("prepare", str(file), cwd=tmp_path, code=1)
    assert "broken.png" in said
    said = fedshift("run", str(file), *SMALL, "engine=inline", cwd=tmp_path, code=1)
    assert "broken.png" in said
    assert not (tmp_path / "runs").exists()

    # What one does of what it said: leave out what is broken, and remove the copy.
    (images / "south" / "disc" / "copy.jpg").unlink()
    file.write_text(file.read_text().replace("skip_broken: false", "skip_broken: true "))

    methods = "method=fedavg,fedprox,fedproto"
    fedshift("sweep", str(file), methods, *SMALL, "engine=inline", "jobs=2", cwd=tmp_path)
    (folder,) = (tmp_path / "runs").glob("sweep-*")
    compared = json.loads(fedshift("compare", str(folder), "--json", cwd=tmp_path))
    assert {row["method"].split()[0] for row in compared["rows"]} == {"fedavg", "fedprox", "fedproto"}
    for run in map(Run, sorted(path.parent for path in folder.glob("*/results.json"))):
        assert min(run.results["domains"].values()) > 45, run.results["domains"]  # chance is 33
        assert [one["file"].rpartition("/")[2] for one in json.loads((run.folder / "skipped.json").read_text())] == [
            "broken.png"
        ]

    # Four SuperNodes over TLS, two of them at one site, on what they hold of the same folders.
    shares = ["allocation.counts={north: 2, south: 1, west: 1}", *WHOLE, "rounds=2"]
    inline = run_of(fedshift("run", str(file), *shares, "engine=inline", "report=false", cwd=tmp_path))
    deployed = run_of(fedshift("deploy-demo", str(file), *shares, cwd=tmp_path))
    assert deployed.results["engine"] == "deployment"
    assert len(deployed.results["nodes"]) == 4
    assert deployed.results["weights_sha256"] == inline.results["weights_sha256"]
    counted = [run.results["figures"]["domains"] for run in (deployed, inline)]
    for site, result in counted[0].items():  # sums of probabilities depend on who scored which part
        assert (result["n"], result["confusion"]) == (counted[1][site]["n"], counted[1][site]["confusion"])

    fedavg = next(path.parent for path in folder.glob("*fedavg*/results.json"))
    fedshift("save", str(fedavg), "--output", "model", cwd=tmp_path)
    said = fedshift("predict", "model", str(images / "west" / "test"), "--csv", "rows.csv", cwd=tmp_path)
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    right = sum(Path(row["file"]).parent.name == row["class"] for row in rows)
    assert {row["class"] for row in rows} <= set(CLASSES)
    assert len(rows) == len(list((images / "west" / "test").rglob("*.bmp")))
    chosen = Run(fedavg).results["chosen_round"]["domains"]["west"]  # keep=best-validation: not the last round's
    assert 100 * right / len(rows) == pytest.approx(chosen)
    assert f"{chosen:.1f}" in said

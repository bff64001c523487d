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

from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving
from fedshift_app.node import state_folder
from fedshift_datasets.io import cache

pytestmark = [pytest.mark.slow, pytest.mark.long]

#: What keeps a run small: the two-layer network, at its size.
SMALL = ["model.name=cnn", "dataset.size=32", "rounds=8", "train.epochs=3", "train.lr=0.05", "report=false"]
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


def test_real_nodes_read_the_same_folders_in_place(tmp_path: Path) -> None:
    """Three SuperNodes whose data-dir is that of the simulation have its numbers; nothing is exported."""
    images = make(tmp_path / "images", number=45)
    (images / "north" / "disc" / "broken.png").unlink()
    fedshift("init", "shapes", "data-dir=images", cwd=tmp_path)
    file = tmp_path / "shapes" / "shapes.yaml"
    requests = [*WHOLE, "rounds=2"]
    inline = run_of(fedshift("run", str(file), *requests, "engine=inline", "report=false", cwd=tmp_path))
    # The server has no images: it knows the classes and the sites from the file.
    content = file.read_text()
    file.write_text(content.replace(f'data_dir: "{images}"', 'data_dir: ""'))
    config = resolving.resolve({"experiment": str(file)})
    assert config.dataset.data_dir == ""
    own = {cache.CACHE_DIR: str(tmp_path / "cache"), state_folder.STATE_DIR: str(tmp_path / "state")}
    environment = local_superlink.environment(tmp_path) | own | {"PYTHONPATH": str(ROOT)}
    with processes.group(local_superlink.empty_folder(tmp_path), environment) as flower:
        link = local_superlink.SuperLink(processes.free_port(), deploy_demo.make_credentials(tmp_path))
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(tmp_path, link)
        for index, site in enumerate(config.dataset.domains):
            place = exporting.NodeFolder(images, site, index)
            key = deploy_demo.make_node_key(flower, tmp_path / site, exporting.NodeFolder(tmp_path / site, site, index))
            deploy_demo.start_supernode(flower, link, place, key)
        flat = {"experiment": str(file), "rounds": 2, "output-dir": str(tmp_path / "runs")}
        wanted = " ".join([*WHOLE, "federation.min_nodes=3"])
        run = Run(runner.submit(flower, tmp_path, flat | {"set": wanted}, []))
    assert run.results["engine"] == "deployment"
    assert run.results["weights_sha256"] == inline.results["weights_sha256"]
    assert run.results["domains"] == inline.results["domains"]

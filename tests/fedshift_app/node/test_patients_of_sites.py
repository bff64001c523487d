"""Patients of a user's own images by init, prepare, a run and a real node: the same lines, and no name anywhere."""

import logging
from pathlib import Path

import digit_files
import numpy as np
import pytest
from dicom_files import NAME, made, written
from PIL import Image
from support import InlineRun

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import setup
from fedshift_app.run import resuming
from fedshift_core import said_once

MARK = "zqvwxy"  # in the name of each patient
LINES = (
    "north: 24 DICOM files without a PatientID that tells patients apart",
    "patients: 2 of 8 of east are on several sides (train and test)",
    "patients: 2 of 24 images of east are of unknown ones",
    "patients: known at other sites, but not at north",
    "patients: 8 of one name at several sites",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return three sites of DICOM and PNG files: north without patients, east with a stated split, south."""
    data = tmp_path / "data"
    for number in range(24):
        pixels, kind = digit_files.noise(16, 16, seed=number), "ab"[number % 2]
        patient = f"{MARK}{number // 2 % 8}"
        split = ("train", "test")[number // 2 % 8 > 4 or number == 0 or number == 3]
        for site, name in (("north", "ANON"), ("south", patient), ("east", "")):
            folder = data / site / (split if site == "east" else "") / kind
            folder.mkdir(parents=True, exist_ok=True)
            if site == "east":
                Image.fromarray(pixels).save(folder / f"{number}.png")
                with (data / "east" / "patients.csv").open("a") as table:
                    table.write("" if number else "file,patient\n")
                    table.write(f"{split}/{kind}/{number}.png,{'NA' if number > 21 else patient.upper()}\n")
            else:
                content = written(made(pixels.astype(np.uint16), PatientID=name))
                (folder / f"{number}.dcm").write_bytes(content)
    return data


def check(text: str, lines: tuple[str, ...] = LINES) -> None:
    assert all(line in text for line in lines), text
    assert MARK not in text.lower() and NAME not in text


def test_every_door_says_the_same_and_no_name(
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    run_inline: InlineRun,
) -> None:
    init_files.init(str(tmp_path / "own"), [f"data-dir={root}"])
    check(capsys.readouterr().out, (*LINES, "patients: 8 of south (PatientID)", "of east (east/patients.csv)"))
    prepare.prepare(str(tmp_path / "own" / "own.yaml"), [], as_json=False)
    output = capsys.readouterr().out
    check(output[output.index("own: ") : output.index("train + test")])
    check(output, ("8 patients (PatientID)", "8 patients (east/patients.csv)"))
    words = "dataset.size=32 train.epochs=1 model.name=cnn allocation.validation_fraction=0.2"
    said_once._said.clear()
    run = run_inline(dataset="folders", data_dir=str(root), nodes=3, rounds=1, set=words)
    check((run.folder / "log.jsonl").read_text(), LINES[1:])
    check("\n".join([caplog.text, (run.folder / "log.jsonl").read_text()]))
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert files and not any(MARK.encode() in path.read_bytes().lower() for path in files)
    sites = {site["site"]: site["patients"] for site in run.results["site_figures"]["sites"]}
    assert sites["north"] is None and sites["south"] == 1 and sites["east"] == 5


def test_a_run_does_not_go_on_with_other_patients(root: Path) -> None:
    """Though all images and the stated split are the same, its validation part may not be."""
    words = "dataset.size=16 allocation.validation_fraction=0.2 model.name=resnet10"
    config = resolve({"dataset": "folders", "data-dir": str(root), "set": words})
    before = node_data.fingerprints(config)
    table = root / "east" / "patients.csv"
    table.write_text(table.read_text().replace(f"{MARK.upper()}1", f"{MARK}2"))
    node_data.forget()
    assert resuming.changed_images(before, node_data.fingerprints(config)) == ["east train", "east test"]


def test_a_real_node_says_it_in_its_own_log(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = (
        "dataset.size=16 allocation.validation_fraction=0.2 dataset.domains=[east,north,south] dataset.classes=[a,b]"
    )
    config = resolve({"dataset": "folders", "set": f"{words} model.name=resnet10"})
    said_once._said.clear()
    for domain in ("east", "north"):
        node = make_context(1, {"domain": domain, "data-dir": str(root / domain), "partition-id": 0}, {})
        with caplog.at_level(logging.WARNING, logger="fedshift"):
            setup.make_client(config, setup.place(config, node, setup.DEPLOYMENT), 0)
    check(caplog.text, LINES[:3])

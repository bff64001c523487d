"""A damaged data file is refused by name, whatever it is: it neither ends the process nor takes its memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

#: Kinds of `tests/damage.py`.
MAT = ("mat", "mat-compressed", "mat-packed")
OTHERS = (
    "png", "png-palette", "jpeg", "jpeg-progressive", "bmp", "webp", "webp-lossless", "npz", "npz-packed", "npy",
    "pickle", "tar", "idx", "idx-packed", "png-deep", "tiff", "tiff-deep", "tiff-palette", "tiff-tiff_lzw",
    "tiff-tiff_adobe_deflate", "tiff-packbits", "tiff-jpeg", "tiff-tiled", "dicom", "dicom-enhanced",
    "dicom-colour", "dicom-rle", "dicom-jpeg", "dicom-j2k",
)  # fmt: skip


def check(folder: Path, **counts: int) -> None:
    """Read so many damaged files of each kind in a process of its own."""
    requested = [f"{kind}={count}" for kind, count in counts.items()]
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "damage.py"), str(folder), *requested],
        env=os.environ | paths, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout[-100:], ended.stderr[-3000:])
    output = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [(each["kind"], each["read"] + each["refused"]) for each in output] == list(counts.items())
    for each in output:
        assert each["refused"] > 0 and each["more_mib"] < 100, each
    assert sum(each["read"] for each in output) > 0  # some damage is none that a reader can see


def test_damaged_mat_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **{"mat": 500, "mat-compressed": 200, "mat-packed": 50})


def test_other_damaged_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **dict.fromkeys(OTHERS, 60))


@pytest.mark.slow
@pytest.mark.long
def test_many_damaged_files_do_not_end_the_process(tmp_path: Path) -> None:
    check(tmp_path, **dict.fromkeys((*MAT, *OTHERS, "usps"), 1000))

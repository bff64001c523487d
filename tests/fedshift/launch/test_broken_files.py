"""A run on a folder with a broken file names the command that finds all of them, and the key that goes on without."""

from pathlib import Path

import pytest
from image_trees import noise_sites

from fedshift.data import checking
from fedshift.data import init as init_files
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import DataError


def test_a_broken_file_names_prepare_and_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    noise_sites(tmp_path / "images", 12)
    init_files.init("mine", ["data-dir=images"])
    broken = tmp_path / "images" / "a" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError) as caught:
        checking.check_data(resolve({"experiment": "mine/mine.yaml"}), 2)
    said, remedy = str(caught.value).split("\n")
    assert said.startswith(f"{broken}: cannot be read")
    assert "fedshift prepare" in remedy and remedy.endswith("dataset.skip_broken=true")
    checking.check_data(resolve({"experiment": "mine/mine.yaml", "set": "dataset.skip_broken=true"}), 2)

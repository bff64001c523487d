"""What is written for Flower's command: addresses and the configuration of a run."""

import stat
import tempfile
import tomllib
from pathlib import Path

import pytest
from support import refusal_of

from fedshift.run.launch import forks, local_superlink
from fedshift.run.launch.credentials import Credentials
from fedshift_app.run import flwr_run
from fedshift_core.errors import ConfigError


@pytest.mark.parametrize("folder", ["runs", "😀 runs", "läufe", "a\x7fb"])
def test_flower_reads_each_name_as_it_is(folder: str, tmp_path: Path) -> None:
    given = {"output-dir": f"/home/{folder}", "rounds": 3, "wait": 0.5, "json": True}
    file = local_superlink.run_command(tmp_path, "fedshift", given)[-1]
    assert tomllib.loads(Path(file).read_text(encoding="utf-8")) == given
    link = local_superlink.SuperLink(1, Credentials(tmp_path / folder))
    local_superlink.connect(tmp_path, link)
    read = tomllib.loads((tmp_path / "config.toml").read_text(encoding="utf-8"))
    assert read["superlink"]["fedshift"]["root-certificates"] == str(tmp_path / folder / "ca.crt")
    assert tomllib.loads(flwr_run.run_config_text({"name": folder})) == {"name": folder}


def test_a_name_that_is_no_text_is_refused_with_its_key(tmp_path: Path) -> None:
    text = refusal_of(ConfigError, local_superlink.run_command, tmp_path, "fedshift", {"output-dir": "/home/\udcff"})
    assert text == "output-dir: /home/\\xff holds bytes that are not UTF-8, which Flower cannot pass on"


# --- a long TMPDIR, as batch systems set it -----------------------------------------------------------------------


@pytest.fixture
def long_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_rays_folder_is_short_private_and_removed(long_tmpdir: Path) -> None:
    """In a longer one Ray cannot start, or leaves its own folder in TMPDIR for good."""
    with local_superlink.temporary_folder(for_ray=True) as home:
        assert len(str(home)) <= local_superlink.LONGEST_HOME
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert local_superlink.environment(home)["RAY_TMPDIR"] == str(home)
        assert list(long_tmpdir.iterdir()) == []
    assert not home.exists()
    with local_superlink.temporary_folder() as other:
        assert other.parent == long_tmpdir


def test_a_long_tmpdir_without_another_place_is_named(long_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_superlink, "SHORT_PARENT", str(long_tmpdir / "none"))

    def enter() -> None:
        with local_superlink.temporary_folder(for_ray=True):
            pass

    line = refusal_of(ConfigError, enter)
    assert line.startswith("TMPDIR: ") and "(at most 35)" in line and "engine=inline" in line
    line = refusal_of(ConfigError, forks.begin, [])
    assert "(at most 75): " in line and line.endswith("\nset TMPDIR to a shorter folder, or run with workers=1")

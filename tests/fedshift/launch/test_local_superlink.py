"""What is written for Flower's command: addresses and the configuration of a run."""

import tomllib
from pathlib import Path

import pytest
from support import refusal_of

from fedshift.launch import local_superlink
from fedshift.launch.credentials import Credentials
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

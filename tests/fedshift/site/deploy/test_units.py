"""``fedshift superlink --systemd`` and ``supernode --systemd``: units, as systemd's own analysis reads them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from refusals import refused
from support import invoked

from fedshift.site.deploy import units
from fedshift_core.errors import ConfigError

NODE = 'domain="sc%an" data-dir="/data/s $can" partition-id=3'
COMMANDS = {
    "superlink": ["--credentials", "federation", "--database", "superlink.db"],
    "supernode": ["--policy", "open", "--superlink", "h:8000", "--node-config", NODE],
}
MOST_EXPOSED = "20"  # tenths of what `systemd-analyze security` measures: 92 without hardening


def analyze(*words: object) -> None:
    ended = subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout + ended.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", COMMANDS)
def test_systemd_takes_the_unit_and_finds_it_hardened(name: str, tmp_path: Path) -> None:
    ended = invoked(name, "--systemd", *COMMANDS[name])
    file = tmp_path / f"fedshift-{name}.service"
    file.write_text(ended.output)
    analyze("verify", file)
    analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", file)


def test_a_unit_runs_the_command_that_was_typed_and_heeds_the_switch(here: Path) -> None:
    """In a unit, ``%`` begins a specifier and ``$`` a variable; files are found from another folder too."""
    Path("ca.crt").touch()
    text = invoked("supernode", "--systemd", "--cold", "--root-certificates", "ca.crt", *COMMANDS["supernode"]).output
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
    program, words = lines["ExecStart"].split(" ", 1)
    assert Path(program).name == "fedshift"
    assert words == (
        f"supernode --cold --policy open --root-certificates {here}/ca.crt --superlink h:8000 --node-config "
        '"domain=\\"sc%%an\\" data-dir=\\"/data/s $$can\\" partition-id=3"'
    )
    assert lines["ReadOnlyPaths"] == '"/data/s $can"'
    assert lines["ConditionPathExists"] == "!/var/lib/fedshift/.local/state/fedshift/node-3/off.json"
    with refused(ConfigError, "data-dir", "images"):
        units.of_supernode(["--node-config", 'domain="scan" data-dir="images"'])
    with refused(ConfigError, "--systemd"):
        units.rendered("superlink", ["--database", "a\nExecStartPre=/bin/sh"])

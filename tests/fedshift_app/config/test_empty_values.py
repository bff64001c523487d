"""A key with an empty value, as a shell's unset variable leaves it, is refused: the default would be taken silently."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift.launch import watching
from fedshift.rescore import command as rescoring
from fedshift.sweep import grid
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import FLAT_KEYS
from fedshift_core.errors import ConfigError

LAUNCH = ("engine", "nodes", "workers", "actors", "cpus-per-client", "gpus-per-client", "report")


@pytest.mark.parametrize("key", [*FLAT_KEYS, *LAUNCH])
@pytest.mark.parametrize("value", ["", " "])
def test_of_a_run(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        parse_arguments(["handwritten", f"{key}={value}"])


def test_an_empty_experiment() -> None:
    with pytest.raises(ConfigError, match=r"^experiment: expected a value, found ''; leave the key out"):
        parse_arguments([""])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: grid.points(grid.read(["handwritten", "data-dir="]), lambda *_: None), "data-dir: "),
        (lambda: grid.points(grid.read(["handwritten", "method="]), lambda *_: None), "method: a value is missing"),
        (lambda: prepare.prepare("pacs", ["data-dir="], as_json=False), "data-dir: expected a value"),
        (lambda: init_files.init("mine", ["data-dir="]), "data-dir: expected a value"),
        (lambda: rescoring.rescore(["output-dir=", "runs"]), "output-dir: expected a value"),
        (lambda: watching.show(["output-dir="], as_json=False, watch=False, site=""), "output-dir: expected a value"),
    ],
)
def test_of_other_commands(
    call: Callable[[], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        call()
    assert reason in str(caught.value)
    assert not list(tmp_path.iterdir())

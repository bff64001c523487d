"""Finished runs whose plugin, package or network is not here: results need no code; what is unreadable is named."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedshift import cli
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.results.archive import keep
from fedshift.run.launch import runner
from fedshift_app.config import plugins
from fedshift_core import extensions
from fedshift_core.errors import ConfigError

FILE = """
from fedshift_clients.base import DomainClient
from fedshift_core.registry import Method
from fedshift_strategies.base import DomainStrategy

METHOD = Method(name="mine", title="Mine", strategy=DomainStrategy, client=DomainClient)
"""
EXPERIMENT = """
plugins: [my_method.py]
dataset: {name: handwritten, domains: [scan, street]}
model: {name: cnn}
train: {epochs: 1, batch_size: 12, lr: 0.02}
allocation: {counts: any, share: 0.06}
method: {name: mine}
rounds: 2
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a run of a method of one's own and one of FedAvg, in a place with a long name."""
    home = tmp_path_factory.mktemp("home") / ("a folder with a name that is long, " * 6).strip()
    home.mkdir()
    (home / "my_method.py").write_text(FILE)
    (home / "own.yaml").write_text(EXPERIMENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(plugins.ALLOWED, "")
        extensions.forget()
        for method in ("mine", "fedavg"):
            given = {"experiment": str(home / "own.yaml"), "method": method, "output-dir": str(home / "runs")}
            runner.run_inline(given, 2)
        patch.setenv(plugins.ALLOWED, "")
        extensions.forget()
        yield home / "runs"
    extensions.forget()


@pytest.fixture
def elsewhere(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs, to be changed, where nothing allows their file."""
    monkeypatch.delenv(plugins.ALLOWED, raising=False)
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def change(folder: Path, **sections: Any) -> None:
    path = folder / "config.yaml"
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(content | {"resolved": content["resolved"] | sections}, sort_keys=False))


def test_a_run_of_a_file_of_ones_own_is_compared_without_it(elsewhere: Path, tmp_path: Path) -> None:
    numbers = compare([elsewhere]).numbers
    assert [row.label for row in numbers.rows] == ["fedavg", "mine"] and numbers.rows[1].difference is not None
    assert numbers.unreadable == () and not any("cannot be read" in warning for warning in numbers.warnings)
    kept = compare(keep([elsewhere], tmp_path / "kept"))
    assert [row.values for row in kept.numbers.rows] == [row.values for row in numbers.rows]
    for score in ("final", "balanced_accuracy"):
        assert "mine" in compare([elsewhere], score=score).html(tmp_path / "page.html")


def test_a_folder_that_cannot_be_read_is_named_and_skipped(elsewhere: Path) -> None:
    (mine,), broken = elsewhere.glob("*mine*"), elsewhere / "broken"
    change(Path(shutil.copytree(mine, elsewhere / "odd")), rounds=-4)
    shutil.copytree(mine, broken)
    (broken / "results.json").write_text("{")
    numbers = compare([elsewhere]).numbers
    first, second = numbers.unreadable
    assert len(numbers.rows) == 2 and "broken: " in first and "rounds" in second
    result = CliRunner().invoke(cli.app, ["compare", str(elsewhere)])
    assert result.exit_code == 1 and "broken" in result.stdout and "fedavg" in result.stdout
    with pytest.raises(ConfigError, match="broken"):  # it was named itself
        compare([broken])
    for folder in elsewhere.glob("own-*"):
        shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="broken"):  # there is nothing else
        compare([elsewhere])

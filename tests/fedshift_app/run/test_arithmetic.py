"""What ``train.precision=auto`` stands for: what most nodes tell, kept by the run as it goes on or is repeated."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.app import Message
from support import InlineRun, Run, listening

from fedshift.lab.tables.compare import compare
from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_app.node import precision as of_nodes
from fedshift_app.run import precision as run_precision
from fedshift_app.run import resuming
from fedshift_app.run.files import RESULTS_FILE
from fedshift_clients.training import autotune
from fedshift_clients.training.autotune import Found
from fedshift_core.errors import ConfigError
from fedshift_core.params import ARITHMETICS
from fedshift_datasets.io import cache

LAST, NCHW, BF16, _ = ARITHMETICS
SHORT = "train.epochs=1 allocation.share=0.05 dataset.domains=[scan,sketch]"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes this a machine on which an arithmetic is fastest; its cache is empty."""
    monkeypatch.delenv(of_nodes.ASKED)

    def be(choice: Any) -> None:
        monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / f"cache-{choice.replace('/', '-')}"))
        monkeypatch.setattr(autotune, "measure", lambda *_: Found(choice, {choice: 1.0, LAST: 2.0}, 16))
        of_nodes._known.cache_clear()

    return be


def log_of(folder: Path) -> str:
    return (folder / "log.jsonl").read_text()


def config_of(folder: Path) -> Any:
    return yaml.safe_load((folder / "config.yaml").read_text())


def test_what_most_nodes_report_is_taken_and_logged() -> None:
    config = resolve({})
    fields = dict(enumerate([NCHW, BF16, NCHW]))
    settled, line = run_precision.settle(config, fields, None)
    assert settled == config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": NCHW})})
    assert "float32/nchw" in line and "2 of 3 nodes" in line
    assert run_precision.agreed({1: BF16, 2: NCHW}) == (NCHW, 1)  # as many: what stands first
    assert run_precision.settle(config, {}, None)[0].train.arithmetic == "hardware"
    by_name = resolve({"set": "train.precision=bf16"})
    assert run_precision.settle(by_name, {}, None) == (by_name, "")


def test_a_run_is_measured_resumed_and_repeated_with_its_choice(
    machine: Any, run_inline: InlineRun, tmp_path: Path
) -> None:
    machine(NCHW)
    said = set()

    def note(message: Message, reply: Message) -> Message:
        train = json.loads(str(message.content.config_records["config"]["run"]))["train"]
        said.add((message.metadata.message_type, train["precision"], train["arithmetic"]))
        return reply

    run = run_inline(f"nodes=2 rounds=2 {SHORT}", grid=listening(note))
    train = config_of(run.folder)["resolved"]["train"]
    assert (config_of(run.folder)["arithmetic"], train["precision"], train["arithmetic"]) == (NCHW, "auto", "")
    assert said == {("query", "auto", ""), ("train", "auto", NCHW), ("evaluate", "auto", NCHW)}
    assert "2 of 2 nodes" in log_of(run.folder)

    machine(BF16)  # the folder goes to another one
    again = run_inline(str(run.folder / "config.yaml"), nodes=2)
    (run.folder / RESULTS_FILE).unlink()
    resumed = Run(runner.run_inline({"resume": str(run.folder), "round": 1, "output-dir": str(tmp_path)}, 2))
    assert resumed.results["weights_sha256"] == again.results["weights_sha256"]
    assert config_of(again.folder)["arithmetic"] == NCHW
    for one in (again, resumed):
        assert log_of(one.folder).count("nothing is measured") == 1

    other = run_inline(f"nodes=2 rounds=2 seed=1 {SHORT}")
    assert config_of(other.folder)["arithmetic"] == BF16
    assert "not the same arithmetic" in compare([run.folder, again.folder, other.folder]).text()


def test_what_is_asked_next_to_a_kept_run(machine: Any, run_inline: InlineRun) -> None:
    machine(NCHW)
    folder = run_inline(f"nodes=2 rounds=1 {SHORT}").folder
    file = folder / "config.yaml"
    for asked, arithmetic in (("", NCHW), ("train.precision=float32", ""), ("train.arithmetic=bf16/nchw", "bf16/nchw")):
        assert resolve({"experiment": str(file), "set": asked}).train.arithmetic == arithmetic
    (folder / RESULTS_FILE).unlink()
    requested = {"resume": str(folder), "experiment": "handwritten", "set": SHORT, "rounds": 1}
    config, _ = resuming.resolve(requested, hold=False)
    assert config.train.arithmetic == NCHW
    with pytest.raises(ConfigError, match=r"train\.arithmetic is 'float32/nchw' there, requested is 'bf16/nchw'"):
        resuming.resolve(requested | {"set": f"{SHORT} train.arithmetic=bf16/nchw"}, hold=False)
    file.write_text(yaml.safe_dump(config_of(folder) | {"arithmetic": "fp8"}))
    with pytest.raises(ConfigError, match=r"config.yaml: arithmetic: .*'fp8'"):
        resuming.resolve({"resume": str(folder)}, hold=False)

"""What ``train.precision=auto`` stands for: what most nodes tell, kept by the run as it goes on or is repeated."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.app import Message
from support import InlineRun, ListeningGrid, Run

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


class Grid(ListeningGrid):
    """Notes in which precision the nodes compute, and how those of this process do."""

    said: set[str]

    def pass_on(self, message: Message, reply: Message) -> Message:
        content = json.loads(str(message.content.config_records["config"]["run"]))["train"]
        type(self).said.add(f"{message.metadata.message_type} {content['precision']} {content['arithmetic']}")
        return reply


def test_what_most_nodes_report_is_taken_and_logged() -> None:
    config = resolve({})
    fields = dict(enumerate([NCHW, BF16, NCHW]))
    settled, line = run_precision.settle(config, fields, None, here=False)
    assert settled == config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": NCHW})})
    assert "float32/nchw" in line and "2 of 3 nodes" in line
    assert run_precision.agreed({1: BF16, 2: NCHW}) == (NCHW, 1)  # as many: what stands first
    assert run_precision.settle(config, {}, None, here=False)[0].train.arithmetic == "hardware"
    by_name = resolve({"set": "train.precision=bf16"})
    assert run_precision.settle(by_name, {}, None, here=True) == (by_name, "")


def test_a_run_is_measured_resumed_and_repeated_with_its_choice(
    machine: Any, run_inline: InlineRun, tmp_path: Path
) -> None:
    machine(NCHW)
    Grid.said = set()
    run = run_inline(nodes=2, rounds=2, set=SHORT, grid=Grid)
    result = config_of(run.folder)
    assert result["arithmetic"] == NCHW
    assert (result["resolved"]["train"]["precision"], result["resolved"]["train"]["arithmetic"]) == ("auto", "")
    assert Grid.said == {"query auto ", f"train auto {NCHW}", f"evaluate auto {NCHW}"}
    assert "2 of 2 nodes" in log_of(run.folder)

    machine(BF16)  # the folder goes to another one
    again = run_inline(str(run.folder / "config.yaml"), nodes=2)
    assert again.results["weights_sha256"] == run.results["weights_sha256"]
    assert config_of(again.folder)["arithmetic"] == NCHW
    assert "nothing is measured" in log_of(again.folder)

    (run.folder / RESULTS_FILE).unlink()
    resumed = Run(runner.run_inline({"resume": str(run.folder), "round": 1, "output-dir": str(tmp_path)}, 2))
    assert resumed.results["weights_sha256"] == again.results["weights_sha256"]
    assert log_of(resumed.folder).count("nothing is measured") == 1

    other = run_inline(nodes=2, rounds=2, seed=1, set=SHORT)
    assert config_of(other.folder)["arithmetic"] == BF16
    assert "not the same arithmetic" in compare([run.folder, again.folder, other.folder]).text()


def test_what_is_asked_next_to_a_kept_run(machine: Any, run_inline: InlineRun, tmp_path: Path) -> None:
    machine(NCHW)
    run = run_inline(nodes=2, rounds=1, set=SHORT)
    file = str(run.folder / "config.yaml")
    assert resolve({"experiment": file}).train.arithmetic == NCHW
    assert resolve({"experiment": file, "set": "train.precision=float32"}).train.arithmetic == ""
    assert resolve({"experiment": file, "set": "train.arithmetic=bf16/nchw"}).train.arithmetic == "bf16/nchw"
    (run.folder / RESULTS_FILE).unlink()
    requested = {"resume": str(run.folder), "experiment": "handwritten", "set": SHORT, "rounds": 1}
    config, _ = resuming.resolve(requested, hold=False)
    assert config.train.arithmetic == NCHW
    with pytest.raises(ConfigError, match=r"train\.arithmetic is 'float32/nchw' there, requested is 'bf16/nchw'"):
        resuming.resolve(requested | {"set": f"{SHORT} train.arithmetic=bf16/nchw"}, hold=False)
    result = config_of(run.folder)
    (run.folder / "config.yaml").write_text(yaml.safe_dump(result | {"arithmetic": "fp8"}))
    with pytest.raises(ConfigError, match=r"config.yaml: arithmetic: .*'fp8'"):
        resuming.resolve({"resume": str(run.folder)}, hold=False)

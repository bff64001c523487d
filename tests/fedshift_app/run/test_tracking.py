"""TensorBoard's event files hold what ``metrics.jsonl`` holds, each round once, and never cost a run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from killing import KillAt
from refusals import refused
from support import InlineRun, Run

from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_app.run import trackers
from fedshift_core.errors import ConfigError
from fedshift_strategies.federation.context import RoundResult

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
TAGS = {"avg": "accuracy/avg", "bytes_up": "bytes/up", "bytes_down": "bytes/down"}
GROUPS = {"accuracy": "accuracy", "test_loss": "test_loss", "losses": "loss"}


def drawn(run_folder: Path) -> dict[int, dict[str, float]]:
    """Return what TensorBoard shows of each round."""
    events = EventAccumulator(str(run_folder / trackers.FOLDER), size_guidance={"scalars": 0}).Reload()
    content: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        steps = [event.step for event in events.Scalars(tag)]
        assert len(steps) == len(set(steps)), tag
        for event in events.Scalars(tag):
            content.setdefault(event.step, {})[tag] = event.value
    return content


def written(run: Run) -> dict[int, dict[str, Any]]:
    """Return the same of ``metrics.jsonl``, as float32."""
    content = {}
    for line in run.rounds:
        values = {tag: line[key] for key, tag in TAGS.items()}
        for key, group in GROUPS.items():
            values |= {f"{group}/{name}": value for name, value in line[key].items()}
        content[line["round"]] = {tag: pytest.approx(value, rel=1e-6) for tag, value in values.items()}
    return content


def without_seconds(shown: dict[int, dict[str, float]]) -> dict[int, dict[str, float]]:
    return {step: {tag: value for tag, value in values.items() if tag != "seconds"} for step, values in shown.items()}


def test_the_event_file_says_what_metrics_jsonl_says_and_with_which_hyperparameters(run_inline: InlineRun) -> None:
    run = run_inline(nodes=2, rounds=2, method="i2pfl", tracking="tensorboard", set=f"{SHORT} train.lr=0.02")
    shown = drawn(run.folder)
    assert without_seconds(shown) == written(run)
    assert {"accuracy/scan", "test_loss/sketch", "loss/loss", "bytes/up"} <= shown[2].keys()
    for line in run.rounds:
        assert shown[line["round"]]["seconds"] == pytest.approx(line["seconds"], abs=2e-3)
    assert len(list((run.folder / trackers.FOLDER).iterdir())) == 1
    events = EventAccumulator(str(run.folder / trackers.FOLDER)).Reload()
    content = events.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    result = metadata.parse_session_start_info_plugin_data(content).hparams
    assert (result["train.lr"].number_value, result["method.name"].string_value) == (0.02, "i2pfl")


@pytest.mark.parametrize("before", ["tensorboard", "none"])
def test_a_resumed_run_shows_each_round_once(before: str, tmp_path: Path, kill_at: KillAt) -> None:
    """Killed after a round was drawn and before it counted; also where only the resumed run is to be drawn."""
    flat = {"experiment": "handwritten", "rounds": 3, "output-dir": str(tmp_path), "set": SHORT, "tracking": before}
    with kill_at("round-00002.json", "before"):
        runner.run_inline(flat, 2)
    (folder,) = tmp_path.iterdir()
    if before == "tensorboard":
        # As if round 2 had been drawn with numbers of a round that then did not count.
        drawn_before = [RoundResult(1, {}), RoundResult(2, {"scan": 1.0})]
        trackers.Trackers(("tensorboard",), folder, "", {}, drawn_before).send(None)
    run = Run(runner.run_inline({"resume": str(folder), "tracking": "tensorboard"}, 2))
    assert without_seconds(drawn(folder)) == written(run)
    assert list(drawn(folder)) == [1, 2, 3]


def test_what_is_not_installed_or_unknown_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for given, named in (
        ("tensorboard", 'pip install "fedshift[tracking]"'),
        ("mlflow,tensorboard", '[mlflow]"'),
        ("wandb,tensorboard", '[wandb]"'),
        ("otlp", '[otlp]"'),
        ("tensorboard,comet", "'c"),
    ):
        with refused(ConfigError, "tracking", named):
            resolve({"tracking": given})
    # A node is sent the configuration, and needs no TensorBoard.
    config = resolve({"tracking": "none"}).model_copy(update={"tracking": ("tensorboard",)})
    assert from_json(config.model_dump_json()).tracking == ("tensorboard",)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("none", ()),
        ("", ()),
        (None, ()),
        (["none"], ()),
        ("[wandb, mlflow]", ("wandb", "mlflow")),
        ("mlflow,mlflow", ("mlflow",)),
    ],
)
def test_trackers_are_a_list_and_may_be_one_word_as_runs_of_before_have_it(given: Any, names: tuple[str, ...]) -> None:
    config = resolve({}).model_dump(mode="json") | {"tracking": given}
    assert from_json(json.dumps(config)).tracking == names

"""The run folder: its files, the last checkpoints, and a summary that can be checked by hand."""

import json
import math
import os
import subprocess
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support import node

from fedshift_app import server_app
from fedshift_app.config.resolving import resolve
from fedshift_app.run import versions
from fedshift_app.run.files import CONFIG_FILE, METRICS_FILE, RESULTS_FILE
from fedshift_app.run.folder import RunFolder, weights_hash
from fedshift_app.run.summary import finite, summary
from fedshift_app.run.versions import commit
from fedshift_core.accuracies import mean
from fedshift_core.arrays import Arrays
from fedshift_core.env import COMMAND, COMMIT
from fedshift_core.errors import ConfigError
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.shown import History
from fedshift_core.yaml_files import as_yaml, read_yaml
from fedshift_strategies.federation.context import RoundResult

CONFIG = resolve({"seed": 3, "rounds": 4})


def history(*rounds: Mapping[str, float | None]) -> list[RoundResult]:
    return [RoundResult(i, dict(accuracy), bytes_up=10 * i, bytes_down=i) for i, accuracy in enumerate(rounds, start=1)]


def weights(value: float = 0.0) -> Arrays:
    return {
        "layer.weight": np.full((2, 3), value, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }


def record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def opened(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, CONFIG, engine="inline", personal=False, about={"command": "fedshift run"})


# --- summary ----------------------------------------------------------------------------------------------


def summarised(rounds: list[RoundResult]) -> dict[str, Any]:
    return summary(History(CONFIG, rounds))


def test_summary_by_hand() -> None:
    """Seven rounds; the last five are 3 to 7.

    a: (30 + 40 + 50 + 60 + 70) / 5 = 50; b: (32 + 34 + 36 + 38 + 30) / 5 = 34; c: 90, 90, 90, 90, 65 -> 85.
    avg = (50 + 34 + 85) / 3 = 56.33; deviations -6.33, -22.33, 28.67: std = sqrt(1360.67 / 2) = 26.08.
    Round averages: ..., 6: (60 + 38 + 90) / 3 = 62.67, 7: (70 + 30 + 65) / 3 = 55; the best is 6.
    """
    rounds: list[dict[str, float | None]] = [
        {"a": 10.0, "b": 11.0, "c": 12.0},
        {"a": 20.0, "b": 22.0, "c": 24.0},
        {"a": 30.0, "b": 32.0, "c": 90.0},
        {"a": 40.0, "b": 34.0, "c": 90.0},
        {"a": 50.0, "b": 36.0, "c": 90.0},
        {"a": 60.0, "b": 38.0, "c": 90.0},
        {"a": 70.0, "b": 30.0, "c": 65.0},
    ]
    result = summarised(history(*rounds))
    assert result["rounds"] == 7
    assert result["averaged_rounds"] == LAST_ROUNDS == 5
    assert result["domains"] == pytest.approx({"a": 50.0, "b": 34.0, "c": 85.0})
    assert result["avg"] == pytest.approx(56.3333, abs=1e-3)
    assert result["std"] == pytest.approx(26.0832, abs=1e-3)
    assert result["std"] == pytest.approx(np.std([50.0, 34.0, 85.0], ddof=1))
    assert (result["worst_domain"], result["worst"]) == ("b", pytest.approx(34.0))
    assert result["final"] == rounds[-1]
    assert result["best_test"]["round"] == 6
    assert result["best_test"]["domains"] == rounds[5]
    assert result["best_test"]["avg"] == pytest.approx(188 / 3)
    assert "test" in result["best_test"]["chosen_on"]
    assert result["missing"] == []
    assert result["bytes_up"] == 10 * (1 + 2 + 3 + 4 + 5 + 6 + 7)
    assert result["bytes_down"] == 1 + 2 + 3 + 4 + 5 + 6 + 7


accuracies = st.lists(st.lists(st.floats(0, 100), min_size=3, max_size=3), min_size=1, max_size=9)


@given(rounds=accuracies)
def test_summary_agrees_with_numpy(rounds: list[list[float]]) -> None:
    result = summarised(history(*[dict(zip("abc", values, strict=True)) for values in rounds]))
    table = np.array(rounds)[-5:]  # T x 3
    assert list(result["domains"].values()) == pytest.approx(list(table.mean(0)))
    assert result["avg"] == pytest.approx(table.mean(0).mean())
    assert result["std"] == pytest.approx(table.mean(0).std(ddof=1), abs=1e-9)
    assert result["worst"] == pytest.approx(table.mean(0).min())
    assert result["best_test"]["avg"] == pytest.approx(np.array(rounds).mean(1).max())
    assert result["averaged_rounds"] == len(table)


def test_one_domain_has_no_spread() -> None:
    result = summarised(history({"a": 40.0}, {"a": 60.0}))
    assert (result["avg"], result["std"], result["worst"]) == (50.0, 0.0, 50.0)


def test_missing_domain_is_not_zero() -> None:
    result = summarised(history({"a": 80.0, "b": None, "c": 60.0}, {"a": 90.0, "b": None, "c": None}))
    assert result["domains"] == {"a": 85.0, "b": None, "c": 60.0}  # c: the one round in which it was scored
    assert result["missing"] == ["b"]
    assert result["unscored"] == {"b": [1, 2], "c": [2]}
    assert result["avg"] is result["std"] is result["worst_domain"] is result["worst"] is None
    assert result["final"] == {"a": 90.0, "b": None, "c": None}


def test_nothing_was_reported() -> None:
    result = summarised(history({"a": None, "b": None}))
    assert result["domains"] == {"a": None, "b": None}
    assert result["missing"] == ["a", "b"]
    for key in ("avg", "worst", "worst_domain"):
        assert result[key] is None
    assert result["best_test"]["avg"] is None


def test_rounds_that_were_not_scored_count_in_the_totals_only() -> None:
    """Of nine rounds, 2 and 5 to 9 are scored: the last five of those are the last five of all."""
    values = [{}, {"a": 99.0}, {}, {}, {"a": 10.0}, {"a": 20.0}, {"a": 30.0}, {"a": 40.0}, {"a": None}]
    result = summarised(history(*values))
    assert (result["rounds"], result["averaged_rounds"], result["bytes_up"]) == (9, 5, 450)
    assert result["domains"] == {"a": 25.0}
    assert result["final"] == {"a": None}
    assert result["best_test"] == {"round": 2, "chosen_on": "test images", "domains": {"a": 99.0}, "avg": 99.0}
    assert summarised(history({}, {"a": None}))["best_test"]["round"] == 2


def test_rounds_behind_the_mean_are_named_where_they_are_not_the_last_ones() -> None:
    """Ten rounds, of which those of ``scored`` were scored: the mean is over the last five of these."""

    def over(*scored: int) -> list[int] | None:
        result = summarised(history(*({"a": 10.0} if number in scored else {} for number in range(1, 11))))
        assert result["averaged_rounds"] == min(5, len(scored))
        rounds: list[int] | None = result.get("averaged_over")
        return rounds

    assert over(2, 4, 6, 8, 9, 10) == [4, 6, 8, 9, 10] and over(5, 10) == [5, 10]
    assert over(5, 6, 7, 8) == [5, 6, 7, 8]  # an early end two rounds after a scored one
    assert over(2, 6, 7, 8, 9, 10) is over(10) is None


def test_the_first_of_the_best_rounds_on_validation_images_is_chosen() -> None:
    rounds = history({"a": 10.0, "b": 30.0}, {"a": 20.0, "b": 40.0}, {}, {"a": 90.0, "b": 90.0})
    assert "best_validation" not in summarised(rounds)
    validated = {0: {"a": 50.0, "b": 60.0}, 1: {"a": 80.0, "b": 40.0}, 3: {"a": 70.0, "b": 50.0}}  # means 55, 60, 60
    for index, accuracy in validated.items():
        rounds[index].shown["validation"] = dict(accuracy)
    result = summarised(rounds)
    assert result["best_validation"] == {
        "round": 2, "chosen_on": "validation images", "domains": {"a": 20.0, "b": 40.0}, "avg": 30.0,
    }  # fmt: skip
    assert result["best_test"]["round"] == 4


def test_a_round_of_zero_percent_is_better_than_a_round_without_answer() -> None:
    assert summarised(history({"a": None}, {"a": 0.0}))["best_test"]["round"] == 2


@pytest.mark.parametrize(
    ("values", "expected"), [([], None), ([None], None), ([1.0, None, 3.0], 2.0), ([0.0, None], 0.0)]
)
def test_mean_leaves_out_none(values: list[float | None], expected: float | None) -> None:
    assert mean(values) == expected


# --- what JSON and hashes need ----------------------------------------------------------------------------


def test_finite_at_any_depth() -> None:
    nan, inf = math.nan, math.inf
    value = {"a": nan, "b": [1.0, inf, (-inf, 2)], "c": {"d": {"e": nan}}, "f": "nan", "g": None, "h": True, "i": 3}
    expected = {
        "a": None,
        "b": [1.0, None, [None, 2]],
        "c": {"d": {"e": None}},
        "f": "nan",
        "g": None,
        "h": True,
        "i": 3,
    }
    assert finite(value) == expected
    json.dumps(finite(value), allow_nan=False)


@given(position=st.integers(0, 23), change=st.integers(1, 255))
def test_hash_changes_with_any_byte(position: int, change: int) -> None:
    changed = weights()
    changed["layer.weight"].view(np.uint8).reshape(-1)[position] ^= change
    assert weights_hash(changed) != weights_hash(weights())


def test_hash_changes_with_name_type_shape_and_order() -> None:
    plain = weights()
    others: list[Arrays] = [
        {"layer.bias": plain["layer.weight"], "bn.num_batches_tracked": plain["bn.num_batches_tracked"]},
        plain | {"layer.weight": plain["layer.weight"].view(np.int32)},
        plain | {"layer.weight": plain["layer.weight"].reshape(3, 2)},
        dict(reversed(plain.items())),
        plain | {"more": np.zeros(0, np.float32)},
    ]
    assert len({weights_hash(arrays) for arrays in (plain, *others)}) == 1 + len(others)


def test_hash_depends_on_nothing_else() -> None:
    # 0.5 in memory as rows and as columns: the same array.
    rows = {"w": np.full((2, 3), 0.5, np.float32)}
    columns = {"w": np.asfortranarray(rows["w"])}
    assert weights_hash(rows) == weights_hash(columns)
    assert len(weights_hash(rows)) == 64


# --- files ------------------------------------------------------------------------------------------------


def test_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT, raising=False)
    folder = opened(tmp_path)
    content = yaml.safe_load((folder.path / CONFIG_FILE).read_text())
    assert content["resolved"] == CONFIG.model_dump(mode="json")
    assert content["engine"] == "inline"
    assert {"flwr", "torch", "numpy", "python", "fedshift"} <= set(content["versions"])
    assert content["command"]
    assert content["started"]
    assert content["run_id"] == folder.run_id != opened(tmp_path).run_id
    assert "git" not in content
    monkeypatch.setenv(COMMIT, "0123456789ab-dirty")
    assert yaml.safe_load((opened(tmp_path).path / CONFIG_FILE).read_text())["git"] == "0123456789ab-dirty"


def test_a_command_with_a_name_that_is_no_utf8_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(COMMAND, "fedshift run a\x1b\udcff.yaml")
    (tmp_path / "config.yaml").write_text(as_yaml({"command": server_app._command({})}), encoding="utf-8")
    assert read_yaml(tmp_path / "config.yaml") == {"command": "fedshift run a\x1b\\udcff.yaml"}


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        named = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", *named, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    assert commit(tmp_path) == ""
    git("init", "--quiet")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "--quiet", "-m", "a")
    assert commit(tmp_path) == git("rev-parse", "--short=12", "HEAD").strip()
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path).endswith("-dirty")


def test_a_process_has_the_commit_of_the_files_that_it_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later commit is not what it computes with; runs of a sweep are forked from one process."""
    answers = iter(["before", "after"])
    monkeypatch.setattr(versions, "commit", lambda _: next(answers))
    versions.own_commit.cache_clear()
    try:
        assert [versions.own_commit(), versions.own_commit()] == ["before", "before"]
    finally:
        versions.own_commit.cache_clear()


def test_folder_is_named_after_the_run(tmp_path: Path) -> None:
    folder = opened(tmp_path / "deep" / "runs")
    assert folder.path.is_absolute()
    assert folder.path.parent == (tmp_path / "deep" / "runs").resolve()
    assert folder.path.name.startswith("handwritten-fedavg-seed3-")


def test_metrics_have_one_line_per_round(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    first = RoundResult(
        1, {"a": 40.0, "b": None}, {"a": 1.5, "b": None}, {"loss": math.nan, "ce": 2.0}, [0, 2], ["node 1 (b): gone"],
        bytes_down=30, bytes_up=20, seconds=1.23456,
    )  # fmt: skip
    folder.add_round(first, record(weights()))
    folder.add_round(RoundResult(2, {"a": 50.0, "b": 60.0}), record(weights()))
    lines = [json.loads(line) for line in (folder.path / METRICS_FILE).read_text().splitlines()]
    assert lines[0] == {
        "round": 1, "accuracy": {"a": 40.0, "b": None}, "avg": None, "test_loss": {"a": 1.5, "b": None},
        "losses": {"loss": None, "ce": 2.0}, "nodes": [0, 2], "left_out": ["node 1 (b): gone"],
        "bytes_up": 20, "bytes_down": 30, "seconds": 1.235,
    }  # fmt: skip
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[1]["avg"] == 55.0


def test_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number in range(8, 12):
        knowledge = {"prototypes": np.full((2, 2), number, np.float32)} if number > 8 else {}
        folder.add_round(RoundResult(number, {"a": 1.0}), record(weights(number)), knowledge=knowledge)
    names = sorted(path.name for path in (folder.path / "checkpoint").iterdir())
    files = [f"{kind}-{number:05d}" for kind in ("knowledge", "round", "weights") for number in (8, 10, 11)]
    assert sorted(name.split(".")[0] for name in names) == sorted(["nodes", *files])
    read = load_file(folder.path / "checkpoint" / "weights-00011.safetensors")
    assert {name: (array.dtype, array.shape) for name, array in read.items()} == {
        name: (array.dtype, array.shape) for name, array in weights().items()
    }
    assert np.array_equal(read["layer.weight"], weights(11)["layer.weight"])
    knowledge = load_file(folder.path / "checkpoint" / "knowledge-00010.safetensors")
    assert np.array_equal(knowledge["prototypes"], np.full((2, 2), 10))


def test_results(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    for number, accuracy in enumerate((40.0, 60.0), start=1):
        folder.add_round(RoundResult(number, {"a": accuracy, "b": 20.0}, bytes_up=5), record(weights(number)))
    returned = folder.finish([node(i, (3, 0, 2), "ab"[i], 4, node_id=900 + i) for i in range(2)])
    written: dict[str, Any] = json.loads((folder.path / RESULTS_FILE).read_text())
    assert written == json.loads(json.dumps(finite(returned)))
    expected = {
        "method": "fedavg", "dataset": "handwritten", "experiment": "handwritten", "model": "cnn", "bn": "average",
        "seed": 3, "rounds": 2, "engine": "inline", "domains": {"a": 50.0, "b": 20.0}, "avg": 35.0,
        "final": {"a": 60.0, "b": 20.0}, "worst": 20.0, "bytes_up": 10, "bytes_down": 0,
        "num_parameters": 2 * 3 + 1, "weights_sha256": weights_hash(weights(2)),
    }  # fmt: skip
    assert expected.items() <= written.items()
    assert 0 < written["seconds"] < 60
    assert written["best_test"]["round"] == 2
    assert written["nodes"] == [
        {"index": 0, "domain": "a", "num_examples": 5, "class_counts": [3, 0, 2]},
        {"index": 1, "domain": "b", "num_examples": 5, "class_counts": [3, 0, 2]},
    ]
    assert not list(folder.path.rglob("*.part"))


# --- where it cannot be ------------------------------------------------------------------------------------


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-000000")
    paths = [opened(tmp_path).path for _ in range(3)]
    stem = "handwritten-fedavg-seed3-20260101-000000"
    assert [path.name for path in paths] == [stem, f"{stem}-1", f"{stem}-2"]
    assert all((path / CONFIG_FILE).is_file() for path in paths)


@pytest.mark.parametrize("inside", ["", "runs", "more/runs"])
def test_output_dir_is_a_file(inside: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigError) as caught:
        opened(file / inside)
    assert str(caught.value).startswith("output-dir: ")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert file.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_output_dir_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ConfigError, match="output-dir: cannot write to"):
            opened(tmp_path / "runs")
    finally:
        tmp_path.chmod(0o700)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inline and deployed runs need no Ray, of which there are no wheels for each Python."""
    known = versions.version

    def without_ray(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return known(name)

    versions._packages.cache_clear()
    monkeypatch.setattr(versions, "version", without_ray)
    try:
        assert "ray" not in versions._packages()
        assert "torch" in versions._packages()
    finally:
        versions._packages.cache_clear()

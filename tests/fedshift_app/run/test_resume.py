"""A run that is killed at any moment goes on and ends with the numbers that it would have had."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from killing import KEEPING, NODES, ROUNDS, SHORT, STAGES, KillAt, killing, only, outcome, resume, start
from support import Run
from traffic import changing, lost

from fedshift.export import saving
from fedshift.lab.grid.rescore import scoring
from fedshift.lab.grid.sweep import records
from fedshift.lab.tables.results import loading
from fedshift.run import reading
from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift_app.run import checkpoints, resuming, status
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FederationError

#: Methods that keep something on the nodes, each with what makes it do so.
PRIVATE = (
    "local",
    "fedcode",
    "f2dc method.local_modules=local method.eval_modules=client_mean",
    "fedbn model.name=cnn_bn",
    "moon",
    "fedala",
    "fedpac method.combine_heads=false",
    "fedproto",
    "fedicon method.classifier_rounds=2 method.classifier_training=local",
    "fedseproto train.epochs=2",
    "i2pfl method.augproto_scope=round",
    "scaffold",
    "fedrep",
    "fedsr",
    "fedpall method.repeatable_noise=true",
    "fedmd method.public_epochs=1 method.first_epochs=1",
    "fedthe",
)


# --- killed and resumed ---------------------------------------------------------------------------------------


#: State on the server and on the nodes, and of GA over it.
BOTH_SIDES = "feddyn dataset.domains=[scan,texture,sketch] aggregation.weights=ga aggregation.gap_step=1"
#: Each node scores a domain of its own in round 1, and so has what is frozen: resumed, it finds that on the disk.
GGEUR = "model.freeze=encoder method.samples=20 method.least_images=2 dataset.domains=[scan,texture,sketch]"
OTHERS = (
    "fdse, fedrcl, fedmlp, feddap, fedplvm, fedpac, copa, fediir, stablefdg, afl, fedccrl, gperxan, fedfa, fedrdn, "
    "fedtgp, fedgh, fedtgp method.share_weights=true, fedsa, fedsa method.share_weights=true, fedomg, tent, eata, t3a, "
    f"ggeur {GGEUR}, fedbn model.name=cnn_bn evaluate.personal_on=all_domains"
).split(", ")
SELDOM = ({*PRIVATE} - {"fedcode"}) | {"fedheal", *OTHERS}


def arrays(run: Run) -> dict[str, bytes]:
    """Return what the server keeps after the last round."""
    return {file.name: file.read_bytes() for file in run.folder.glob(f"checkpoint/*-{ROUNDS:05d}.safetensors")}


@pytest.mark.parametrize(
    "typed",
    [pytest.param(x, marks=[pytest.mark.long] * (x in SELDOM)) for x in (*PRIVATE, BOTH_SIDES, "fedheal", *OTHERS)],
)
def test_a_run_killed_three_times_ends_as_if_it_had_not_been(typed: str, tmp_path: Path, kill_at: KillAt) -> None:
    method, _, more = typed.partition(" ")
    few = "" if typed in PRIVATE else "allocation.share=0.08 train.batch_size=16"
    flat = {"method": method, "set": f"{SHORT} {few} {more} federation.participation=0.75"}
    whole = start(tmp_path / "whole", **flat)
    at_nodes = len(list(whole.folder.glob("checkpoint/nodes/node-*/round-*-0-*.safetensors")))
    assert at_nodes == NODES or typed not in PRIVATE
    runs = tmp_path / "runs"
    with kill_at("weights-00002", "half"):
        start(runs, **flat)
    with kill_at("metrics.jsonl:3", "half"):
        resume(runs)
    with kill_at("round-00003.json", "after"):
        resume(runs)
    run = resume(runs)
    assert outcome(run) == outcome(whole) and arrays(run) == arrays(whole) != {}
    assert run.results["resumed_after"] == [1, 2, 3]
    assert run.results["seconds"] > sum(line["seconds"] for line in run.rounds) * 0.9


POINTS = [
    *(("metrics.jsonl:2", stage) for stage in STAGES), ("weights-00002", "unnamed"), ("weights-00002", "after"),
    ("knowledge-00002", "half"), *(("round-00002.json", stage) for stage in STAGES),
    ("node-2/round-00002", "half"), ("node-2/round-00002", "after"),
    ("node-0/round-00001", "before"), ("round-00001.json", "unnamed"),  # before there is a checkpoint
    (f"round-{ROUNDS:05d}.json", "after"), ("results.json", "unnamed"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stage"),
    [pytest.param(*point, marks=[] if i % 12 == 0 else pytest.mark.long) for i, point in enumerate(POINTS)],
)
def test_any_moment_will_do(name: str, stage: str, tmp_path: Path, kill_at: KillAt, whole_run: Run) -> None:
    with kill_at(name, stage):
        start(tmp_path, method=KEEPING)
    run = resume(tmp_path)
    assert outcome(run) == outcome(whole_run)
    assert not list(run.folder.glob("checkpoint/*.part"))


def test_killed_while_it_is_resumed(tmp_path: Path, kill_at: KillAt, whole_run: Run) -> None:
    with kill_at("round-00002.json", "before"):
        start(tmp_path, method=KEEPING)
    with kill_at("config.yaml", "unnamed"):
        resume(tmp_path)
    run = resume(tmp_path)
    assert outcome(run) == outcome(whole_run)
    content = run.config
    (resumed,) = content["resumed"]
    assert (resumed["after_round"], resumed["engine"]) == (1, "inline")
    assert resumed["time"] and resumed["command"] and resumed["versions"] == content["versions"]
    again = start(tmp_path / "again", experiment=str(run.folder / "config.yaml"))  # it still repeats the run
    assert again.results["weights_sha256"] == run.results["weights_sha256"]


def test_a_node_that_was_left_out_keeps_its_memory(
    tmp_path: Path, kill_at: KillAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was lost, its training was not: it goes on from there, resumed or not."""
    monkeypatch.setattr(inline, "InlineGrid", changing(lost, "train", [2], [2]))
    whole = start(tmp_path / "whole", method=KEEPING)
    assert whole.rounds[1]["left_out"] == ["node 2 (scan): no answer in time"]
    with kill_at("weights-00003", "before"):
        start(tmp_path / "runs", method=KEEPING)
    assert outcome(resume(tmp_path / "runs")) == outcome(whole)


# --- damaged checkpoints --------------------------------------------------------------------------------------


def killed_before(runs: Path, server_round: int, method: str) -> Path:
    """Start a run that is killed before a round's checkpoint; return its folder."""
    with pytest.MonkeyPatch.context() as patch, killing(patch)(f"weights-{server_round:05d}", "before"):
        start(runs, method=method)
    return only(runs)


@pytest.fixture(scope="module")
def killed_in_round_3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was killed before the third round's checkpoint, to be copied."""
    return killed_before(tmp_path_factory.mktemp("killed"), 3, KEEPING)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("weights-00002.safetensors", flip),
        pytest.param("knowledge-00002.safetensors", Path.unlink, marks=pytest.mark.long),
        ("round-00002.json", flip),
        ("nodes/node-1/round-00002-*", flip),
        pytest.param("nodes/node-1/round-00002-*", Path.unlink, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    file: str, damage: Callable[[Path], None], tmp_path: Path, killed_in_round_3: Path, whole_run: Run, capsys: Any
) -> None:
    shutil.copytree(killed_in_round_3, tmp_path / killed_in_round_3.name)
    (path,) = (only(tmp_path) / "checkpoint").glob(file)
    damage(path)
    run = resume(tmp_path)
    assert path.parent.name in capsys.readouterr().out
    assert outcome(run) == outcome(whole_run)
    assert run.results["resumed_after"] == [1]


def test_when_no_checkpoint_can_be_used_the_files_are_named(tmp_path: Path, killed_in_round_3: Path) -> None:
    folder = shutil.copytree(killed_in_round_3, tmp_path / killed_in_round_3.name)
    lines = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(lines[:-9])  # the third is not whole
    for number in (1, 2):
        flip(only(tmp_path) / "checkpoint" / f"weights-0000{number}.safetensors")
    check_refused(tmp_path, "weights-00001", "weights-00002")
    for path in (only(tmp_path) / "checkpoint").glob("round-*.json"):
        path.unlink()
    check_refused(tmp_path, "2 full rounds", "no checkpoint")


def test_checkpoints_keep_types_order_and_layout(tmp_path: Path) -> None:
    weights = {
        "z": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), "a": np.array(7),
        "none": np.zeros((0, 4), np.float16), "m": np.array([True, False]),
    }  # fmt: skip
    saved = checkpoints.Checkpoint(3, weights, {}, {"h": np.arange(3.0)}, {2: 3}, [], 1.5, 0.5)
    checkpoints.save(tmp_path / "checkpoint", saved)
    result = checkpoints.load(tmp_path / "checkpoint", 3)
    for one, other in ((saved.weights, result.weights), (saved.state, result.state)):
        assert [(name, array.dtype, array.shape, array.tobytes()) for name, array in other.items()] == [
            (name, array.dtype, array.shape, array.tobytes()) for name, array in one.items()
        ]
    assert (result.knowledge, result.memory, result.nodes, result.seconds, result.writing) == ({}, {2: 3}, [], 1.5, 0.5)


# --- what is refused ------------------------------------------------------------------------------------------


def check_refused(folder: Path, *named: str, **flat: Any) -> None:
    """Check that the run in ``folder`` is not continued, in a line that names these; nothing of it has changed."""

    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}

    before = content()
    with pytest.raises((ConfigError, FederationError)) as caught:
        resume(folder, **flat)
    assert content() == before
    message = caught.value.text
    assert message.startswith("resume: ") and "\n" not in message
    assert all(name in message for name in named), message


@pytest.fixture(scope="module")
def killed_in_round_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was killed before the second round's checkpoint, to be copied."""
    return killed_before(tmp_path_factory.mktemp("interrupted"), 2, "fedprox")


@pytest.fixture
def interrupted(tmp_path: Path, killed_in_round_2: Path) -> Path:
    shutil.copytree(killed_in_round_2, tmp_path / killed_in_round_2.name)
    return tmp_path


def test_a_folder_that_is_none_or_of_a_finished_run(tmp_path: Path, whole_run: Run) -> None:
    (tmp_path / "empty").mkdir()
    check_refused(tmp_path, "config.yaml")
    (tmp_path / "empty" / "config.yaml").write_text("resolved: {}\n")
    check_refused(tmp_path, "run_id, engine, nodes")
    folder = shutil.copytree(whole_run.folder, tmp_path / "finished" / "run")
    with pytest.raises(ConfigError, match=re.escape(f"is finished\nsee {folder / 'results.json'}")):
        resume(tmp_path / "finished")


def test_a_folder_in_use(interrupted: Path) -> None:
    given = {"resume": str(only(interrupted))}
    lock = Lock(only(interrupted) / "lock")
    check_refused(interrupted, f"process {os.getpid()} on ")
    with pytest.raises(ConfigError, match="in progress"):
        resuming.resolve(given, hold=False)  # the command looks before anything starts
    lock.release()
    config, past = resuming.resolve(given, hold=False)
    assert past is not None and past.lock is None
    assert (config.method["name"], past.completed, past.num_nodes, len(past.history)) == ("fedprox", 1, NODES, 1)
    assert resume(interrupted).results["rounds"] == ROUNDS  # it was let go


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = "import pathlib, sys; from fedshift_core.atomic_io import Lock; lock = Lock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{code}; print('held', flush=True); sys.stdin.read()", tmp_path / "lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(InUse, match=f"process {process.pid} on "):
            Lock(tmp_path / "lock")
        process.kill()
    Lock(tmp_path / "lock").release()


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        ({"rounds": 2}, ["rounds is 3 there, requested is 2"]),
        ({"seed": 3, "set": "train.lr=0.5"}, ["seed is 0 there, requested is 3", "train.lr is "]),
        ({"experiment": "handwritten"}, ["method.name is 'fedprox' there, requested is 'fedavg'", "train.epochs is 1"]),
        ({"set": "method.mu=3"}, ["method.mu is ", "requested is 3"]),
    ],
)
def test_another_experiment_is_refused_with_the_keys(flat: dict[str, Any], named: list[str], interrupted: Path) -> None:
    check_refused(interrupted, str(only(interrupted)), *named, **flat)


def edit(run: Path, *keys: str, to: Any) -> Any:
    """Set a value of ``config.yaml``; return the one before."""
    content = yaml.safe_load((run / "config.yaml").read_text())
    *sections, last = keys
    section = content["resolved"]
    for key in sections:
        section = section[key]
    before, section[last] = section[last], to
    (run / "config.yaml").write_text(yaml.safe_dump(content))
    return before


def test_an_edited_configuration_is_refused_or_taken_and_noted(interrupted: Path, capsys: Any) -> None:
    run = only(interrupted)
    edit(run, "federation", "round_timeout", to=77)  # decides no number
    before = edit(run, "train", "lr", to=0.5)
    check_refused(interrupted, f"train.lr is {before} there, requested is 0.5")
    with pytest.raises(ConfigError, match=rf"train\.lr {before} -> 0\.5"):
        saving.save(saving.Wanted(run, "safetensors"))
    assert records.read_run(run / "config.yaml") is None  # neither the run of the first value nor of the second
    noted = f"train.lr {before} -> 0.5 from round 2"
    results = resume(interrupted, **{"allow-changed": True, "rounds": ROUNDS + 1, "set": "keep_rounds=[1]"}).results
    assert results["changed"] == [{"from_round": 2, "settings": {"train.lr": [before, 0.5]}}]
    assert capsys.readouterr().out.count(noted) == 2  # as it goes on, and below the table
    (finished,) = loading.read([run]).runs
    assert noted in finished.contradiction and noted in reading.read(run).contradiction
    edit(run, "train", "lr", to=before)  # what it began with is not what it ended with
    assert f"train.lr 0.5 -> {before}" in loading.read([run]).runs[0].contradiction
    with pytest.raises(ConfigError, match="edited"):
        scoring.check(run, [])
    edit(run, "train", "lr", to=0.5)
    assert noted in status.block(status.read(run))
    assert resume(interrupted, rounds=ROUNDS + 2).results["changed"] == results["changed"]
    (run / "results.json").unlink()
    check_refused(interrupted, "train.lr is ", round=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("model.name", "cnn_bn"), ("seed", 3), ("train.precision", "float32"), ("privacy.name", "local-dp")],
)
def test_what_cannot_change_within_a_run(key: str, value: Any, interrupted: Path) -> None:
    edit(only(interrupted), *key.split("."), to=value)
    check_refused(interrupted, f"{key} is ", **{"allow-changed": True})


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("config.yaml", ("engine: inline", "engine: deployment"), ["is a deployment, requested is inline"]),
        ("checkpoint/round-00001.json", ('"class_counts": [', '"class_counts": [1'), ["node 0 (scan)", "other images"]),
    ],
)
def test_another_engine_and_nodes_with_other_images_are_refused(
    file: str, change: tuple[str, str], named: list[str], interrupted: Path
) -> None:
    path = only(interrupted) / file
    path.write_text(path.read_text().replace(*change))
    check_refused(interrupted, *named)


def test_another_number_of_nodes_is_refused_and_other_versions_are_reported(interrupted: Path, capsys: Any) -> None:
    with pytest.raises(ConfigError, match="has 3 nodes, found 8"):
        runner.run_inline({"resume": str(only(interrupted))}, 8)
    file = only(interrupted) / "config.yaml"
    file.write_text(file.read_text().replace(f"flwr: {version('flwr')}", "flwr: 1.40.0"))
    resume(interrupted)
    assert "flwr 1.40" in capsys.readouterr().out


# --- a real kill ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.long
def test_a_simulation_whose_serverapp_was_killed_says_how_it_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    flat = {"method": "fedcode", "rounds": 40, "set": f"{SHORT} train.lr=0.002"}
    whole = Run(runner.run_inline(flat | {"output-dir": str(tmp_path / "whole")}, 2))
    runs = tmp_path / "killed"

    def fedshift(*arguments: str) -> Any:
        command = [sys.executable, "-m", "fedshift", "run", *arguments]
        return subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    given = (f"{key}={value}" for key, value in flat.items())
    process = fedshift("nodes=2", "report=false", *given, f"output-dir={runs}")
    assert any(line.startswith("round  2/40") for line in process.stdout)
    os.kill(json.loads((only(runs) / "lock").read_text())["pid"], signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 1 and f"fedshift run resume={only(runs)}" in err
    ended = fedshift(f"resume={only(runs)}")
    said = ended.communicate()
    assert ended.returncode == 0, said
    results, rounds = outcome(run := Run(only(runs)))
    assert results["engine"] == "simulation" and len(run.results["resumed_after"]) == 1
    assert (results | {"engine": "inline"}, rounds) == outcome(whole)

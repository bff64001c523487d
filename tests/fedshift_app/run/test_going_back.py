"""``resume=FOLDER round=N``: the rounds that are kept, and going back to one of them; changed images are noticed."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from killing import KEEPING, NODES, SHORT, KillAt, killing, only, outcome, resume, start
from refusals import refused
from support import Command, InlineRun, Killed, Run, refusal_of

from fedshift.run.launch import runner
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_app.node import state_store
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import checkpoints, model_selection, status
from fedshift_core.errors import ConfigError
from fedshift_core.kept_rounds import KEEP_STEPS, kept_rounds
from fedshift_core.limits import MOST_KEPT
from fedshift_datasets import catalog
from fedshift_datasets.io import cache as image_cache
from fedshift_strategies.federation.context import RoundResult

# --- what is kept -------------------------------------------------------------------------------------------------


def test_five_rounds_are_kept_the_older_the_thinner() -> None:
    assert kept_rounds(17) == [17, 16, 14, 12, 8]
    assert kept_rounds(100) == [100, 99, 98, 96, 88]
    assert [kept_rounds(number) for number in (1, 2, 3, 4)] == [[1], [2, 1], [3, 2], [4, 3, 2]]


@given(st.integers(1, 5000))
def test_whoever_is_kept_was_kept_ever_since(server_round: int) -> None:
    kept = kept_rounds(server_round)
    assert kept == sorted(set(kept), reverse=True)
    assert kept[0] == server_round
    assert len(kept) == 5 or server_round < 16
    assert all(server_round - old >= step for old, step in zip(kept[1:], KEEP_STEPS, strict=False))
    assert set(kept) <= {server_round, *kept_rounds(server_round - 1)}


# --- going back ---------------------------------------------------------------------------------------------------

METHODS = {"fedavg": "", "fedbn": "model.name=cnn_bn", KEEPING: ""}  # alone; with private parts; and with knowledge
FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 federation.participation=0.75"


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name == KEEPING else pytest.mark.long) for name in METHODS]
)
def test_a_run_that_went_back_ends_as_one_that_was_never_further(
    method: str, tmp_path: Path, kill_at: KillAt, shared_run: InlineRun, broken_off: Callable[[str], Path]
) -> None:
    whole = shared_run(f"method={method} nodes={NODES} rounds=6 {FEW} {METHODS[method]}")
    runs = shutil.copytree(broken_off(method), tmp_path / "runs")
    assert checkpoints.rounds(only(runs) / "checkpoint") == [5, 4, 2]
    with kill_at("round-00005.json", "after"):
        resume(runs, round=2)
    lines = (only(runs) / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]
    run = resume(runs, round=4)
    assert outcome(run) == outcome(whole)
    assert run.results["resumed_after"] == [2, 4]


@pytest.fixture(scope="session")
def six_rounds(shared_run: InlineRun) -> Run:
    return shared_run(f"method={KEEPING} nodes={NODES} rounds=6 {FEW}")


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the folder of a method's run that has 5, 4 and 2 of 6 rounds, to be copied."""

    @cache
    def of(method: str) -> Path:
        runs = tmp_path_factory.mktemp("interrupted")
        with pytest.MonkeyPatch.context() as patch, killing(patch)("weights-00006", "before"):
            start(runs, method=method, rounds=6, set=f"{FEW} {METHODS[method]}")
        return runs

    return of


@pytest.fixture
def interrupted(broken_off: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(broken_off(KEEPING), tmp_path / "runs")


@pytest.mark.parametrize("file", ["round-00005.json", "config.yaml"])
def test_killed_while_it_goes_back(
    file: str, interrupted: Path, kill_at: KillAt, six_rounds: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next resume goes on from the last round that is left, be it the one that was asked for or a later one."""

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == file:
            raise Killed(file)
        remove(path, missing_ok)

    remove = Path.unlink
    with monkeypatch.context() as patch:
        if file != "config.yaml":
            patch.setattr(Path, "unlink", unlink)
        with kill_at("config.yaml", "unnamed"):  # at the latest
            resume(interrupted, round=2)
    left = checkpoints.rounds(only(interrupted) / "checkpoint")
    assert left == {"round-00005.json": [5, 4, 2], "config.yaml": [2]}.get(file, [4, 2])
    run = resume(interrupted)
    assert outcome(run) == outcome(six_rounds)
    assert run.results["resumed_after"] == [left[0]]


def test_what_cannot_be_gone_back_to(interrupted: Path) -> None:
    folder = only(interrupted)

    def check(server_round: int, *named: str) -> None:
        message = refusal_of(ConfigError, runner.run_inline, {"resume": str(folder), "round": server_round}, 4)
        assert all(name in message for name in named), message

    check(3, "round: 3 is not kept", "5, 4, 2")
    assert status.read(folder).kept == [5, 4, 2]
    kept = json.loads((folder / "checkpoint" / "round-00002.json").read_text())["memory"]
    index = next(index for index, number in kept.items() if number == 2)
    (part,) = (folder / "checkpoint").glob(f"nodes/node-{index}/round-00002-*")
    part.unlink()
    check(2, f"checkpoint/nodes/node-{index}", "round 2")
    weights = folder / "checkpoint" / "weights-00004.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    check(4, "round: no checkpoint in ", f"checkpoint/{weights.name}")
    assert checkpoints.rounds(folder / "checkpoint") == [5, 4, 2]


@pytest.mark.parametrize("arguments", [["round=4"], ["handwritten", "round=20"]])
def test_a_round_without_a_folder(arguments: list[str], fedshift: Command) -> None:
    ended = fedshift("run", *arguments)
    assert ended.code == 1 and "resume=FOLDER" in ended.err
    with pytest.raises(ConfigError, match="round: "):
        parse_arguments(["round=0"])


# --- other images -------------------------------------------------------------------------------------------------

DIGITS = {
    "experiment": "digits-small-cnn", "rounds": 3,
    "set": "dataset.domains=[mnist,usps] 'allocation.counts={mnist: 1, usps: 1}' allocation.share=1.0 train.epochs=1",
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two small domains as npz files."""
    monkeypatch.setenv(image_cache.CACHE_DIR, str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("mnist_train", "mnist_test", "usps_train", "usps_test"):
        x = rng.integers(0, 256, (40, 28, 28), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(40) % 10)
    return folder


@pytest.fixture
def on_digits(data: Path, tmp_path: Path, kill_at: KillAt) -> Callable[[str], Path]:
    """Return a function that starts a run which is killed as it writes a file, and returns its folder."""

    def begin(end: str) -> Path:
        with kill_at(end, "before"):
            runner.run_inline(DIGITS | {"data-dir": str(data), "output-dir": str(tmp_path / "runs")}, 2)
        catalog.load.cache_clear()
        return only(tmp_path / "runs")

    return begin


def change(data: Path, name: str) -> None:
    """Turn all images of a file upside down; labels and sizes stay."""
    with np.load(data / f"{name}.npz") as result:
        x, y = result["x"], result["y"]
    np.savez(data / f"{name}.npz", x=x[:, ::-1], y=y)
    catalog.load.cache_clear()


@pytest.mark.parametrize(
    ("end", "names"), [("round-00001.json", ["usps_train"]), ("weights-00003", ["mnist_test", "usps_train"])]
)
def test_images_that_changed_are_noticed_though_their_labels_did_not(
    end: str, names: list[str], data: Path, on_digits: Callable[[str], Path]
) -> None:
    folder = on_digits(end)
    for name in names:
        change(data, name)
    message = refusal_of(ConfigError, runner.run_inline, {"resume": str(folder)}, 2)
    assert f"the images of {', '.join(name.replace('_', ' ') for name in names)} have changed" in message
    for name in names:
        change(data, name)  # once more: as they were
    assert Run(runner.run_inline({"resume": str(folder)}, 2)).results["rounds"] == 3


# --- keep_rounds --------------------------------------------------------------------------------------


def config(more: str = "", rounds: int = 100) -> Any:
    return resolve({"rounds": rounds, "set": more})


def history(validation: list[int]) -> list[RoundResult]:
    return [
        RoundResult(n, accuracy={"a": 1.0}, shown={"validation": {"a": float(value)}})
        for n, value in enumerate(validation, start=1)
    ]


# --- the rule -------------------------------------------------------------------------------------------------

CHOSEN = st.sets(st.integers(1, 40), max_size=5)
VALIDATION = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@settings(max_examples=30)
@given(CHOSEN, VALIDATION, st.booleans())
def test_each_is_kept_ever_since_and_what_can_be_gone_back_to_has_its_best(
    rounds: set[int], validation: list[int], best: bool
) -> None:
    requested, before = asked(rounds, best), set[int]()
    for number in range(1, len(validation) + 1):
        kept = {*kept_rounds(number), *model_selection.needed(requested, history(validation[:number]))}
        assert {r for r in rounds if r <= number} <= kept <= before | {number}
        for back in (*kept_rounds(number), *(r for r in rounds if r <= number)):
            assert not best or 1 + int(np.argmax(validation[:back])) in kept
        assert len(kept) <= 5 + state_store.MOST_CHOSEN
        before = kept


def asked(rounds: set[int], best: bool) -> Any:
    keep = "best-validation" if best else "last"
    kept = ",".join(map(str, sorted(rounds)))
    return config(f"allocation.validation_fraction=0.3 keep={keep} keep_rounds=[{kept}]", 40)


@settings(max_examples=30)
@given(trained=st.sets(st.integers(1, 40), min_size=1), rounds=CHOSEN, validation=VALIDATION, best=st.booleans())
def test_a_node_has_its_private_parts_of_each_round_that_is_kept(
    trained: set[int], rounds: set[int], validation: list[int], best: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever rounds it trained in: what it would have remembered, had the run ended there."""
    requested, last = asked(rounds, best), len(validation)
    base = tmp_path_factory.mktemp("nodes")
    folder = base / "node-0"

    def check(*numbers: int) -> None:
        for number in numbers:
            wanted = max((trains for trains in trained if trains <= number), default=0)
            assert StateStore(folder, (number,)).recall()[0] == wanted

    for number in sorted(trained):
        if number <= last:
            sent = model_selection.needed(requested, history(validation[: number - 1]))  # with the round's message
            StateStore(folder, chosen=sent).remember(number, {"round": np.array(number)})
    check(*kept_rounds(last), *model_selection.needed(requested, history(validation)))
    if folder.is_dir():
        highest = 1 + int(np.argmax(validation)) if best else last  # else nothing kept the best round
        state_store.keep_last(base, (), highest)
        check(last, highest)
        assert len(list(folder.iterdir())) <= 2


# --- the key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("0", 0), ("1,10", 10), ("1,x", "'x'"), ("true", True),
        (str(list(range(MOST_KEPT + 1))).replace(" ", ""), MOST_KEPT),
    ],
)  # fmt: skip
def test_what_cannot_be_kept(said: str, named: object) -> None:
    with refused(ConfigError, "keep_rounds", named):
        config(f"keep_rounds={said}", 9)


# --- runs -----------------------------------------------------------------------------------------------------


def rounds_of(run: Run) -> list[int]:
    return checkpoints.rounds(run.folder / "checkpoint")


def test_a_resumed_run_keeps_them_and_may_be_asked_for_others(tmp_path: Path, kill_at: KillAt, whole_run: Run) -> None:
    assert rounds_of(whole_run) == [3, 2]
    runs = tmp_path / "runs"
    with kill_at("weights-00003", "before"):
        start(runs, method=KEEPING, set=f"{SHORT} keep_rounds=1")
    run = resume(runs)
    assert rounds_of(run) == [3, 2, 1]
    assert outcome(run) == outcome(whole_run)
    longer = resume(runs, rounds=4, set="keep_rounds=1,3")
    assert outcome(longer)[1] == outcome(start(tmp_path / "longer", method=KEEPING, rounds=4))[1]
    assert rounds_of(longer) == [4, 3, 2, 1]
    resolved = yaml.safe_load((only(runs) / "config.yaml").read_text())["resolved"]
    assert resolved["keep_rounds"] == [1, 3]
    assert rounds_of(resume(runs, rounds=5)) == [5, 4, 3, 2, 1]  # as the resume before was asked
    assert rounds_of(resume(runs, rounds=6, set="keep_rounds=[]")) == [6, 5, 4]

"""``fedshift tune``: where methods are searched, equal budgets, what is read of a trial, and how it goes on."""

import csv
import importlib.util
import json
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_folders import RESULTS
from support import InlineRun, on_images, refusal_of

from fedshift.lab.grid.sweep import forks, running, sweeping
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.grid.tune import study, tuning
from fedshift.lab.grid.tune.requested import FRACTION, Request
from fedshift.run import checking
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.run.versions import versions
from fedshift_core import ranges
from fedshift_core.errors import ConfigError, FederationError
from fedshift_datasets import catalog

SHORT = ("nodes=4", "rounds=6", "train.epochs=1", "allocation.share=0.2")


def read(*arguments: str) -> Request:
    return tune_requested.read(["handwritten", *arguments])


# --- where methods are searched -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", on_images(registry.METHODS))
def test_a_method_takes_all_of_its_ranges_and_its_own_values_lie_in_them(method: str) -> None:
    result = registry.get(method)
    needed = [word for word in result.short.split() if word.startswith("model.")]
    (plan,) = read(f"method={method}", "budget=1", *needed).plans  # it resolves the ends of each
    assert plan.space.keys() >= {"train.lr", "train.weight_decay"}
    assert {key for key in plan.space if key.startswith("method.")} == {
        f"method.{key}" for key in result.search if "." not in key
    }
    assert all(place.holds(plan.default[key]) for key, place in plan.space.items() if key.startswith("method."))


def test_a_method_of_ours_whose_terms_have_weights_says_where_they_are_searched() -> None:
    """A weight or a temperature that its Params declare as a number, and no file says where to look, is named."""
    lacking = []
    for method in registry.listed():
        floats = {name for name, one in method.params_class().model_fields.items() if one.annotation is float}
        if floats and not any("." not in key for key in method.search):
            lacking.append(method.name)
    assert lacking == []


def test_what_the_command_sets_is_not_searched_and_ranges_may_be_its_own() -> None:
    plan, other = read(
        "method=fedprox,moon", "budget=1", "method.mu=0.5", "search.train.weight_decay=off",
        "search.train.lr=[1e-3,1e-2,log]", "search.train.epochs=[1,3,whole]", "search.method.tau=[0.2,0.4]",
        "set=train.momentum=0.5",
    ).plans  # fmt: skip
    assert plan.space.keys() == {"train.lr", "train.epochs"}
    assert plan.space["train.lr"] == ranges.read([0.001, 0.01, "log"], "lr")
    assert other.space.keys() == {"train.lr", "train.epochs", "method.tau"}
    assert plan.default == {"train.lr": 0.01, "train.epochs": 5}
    tried = plan.trial({"train.lr": 1e-05, "train.epochs": 3}).config
    assert (tried.train.lr, tried.train.epochs, tried.method["mu"], tried.train.momentum) == (1e-05, 3, 0.5, 0.5)


def test_trials_may_have_fewer_rounds_than_the_runs_that_are_compared() -> None:
    request = read("method=fedprox", "budget=2", "rounds=8", "trial-rounds=3")
    (plan,) = request.plans
    assert (plan.rounds, plan.trial({}).config.rounds, plan.trial({"method.mu": 0.1}).config.rounds) == (3, 3, 3)
    assert {point.config.rounds for point in request.finals({"fedprox": {"method.mu": 0.1}})} == {8}
    assert request.key != read("method=fedprox", "budget=2", "rounds=8").key


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "budget is missing"),
        (["budget=0"], "budget: .*greater than or equal to 1.*'0'"),
        (["budget=3", "pruning=maybe"], "pruning: .*'maybe'"),
        (["budget=3", "trial-rounds=0"], "trial-rounds: .*greater than or equal to 1.*'0'"),
        (["budget=3", "rounds=4", "trial-rounds=5"], "trial-rounds=5 is more than the 4 rounds of a run"),
        (["budget=3", "train.lr=0.1,0.2"], "train.lr: a search has one value of this key"),
        (["budget=3", "tuned={train.lr: 1}"], "tuned: a search sets this key itself"),
        (["budget=3", "method=fedprox", "method.taw=1"], "method.taw: no method of the search has this"),
        (["budget=3", "search.method.tau=[0,1]"], "search.method.tau: no method of the search has this"),
        (["budget=3", "search.train.lr=[1,0]"], "search.train.lr: .* LOW must be below HIGH"),
        (["budget=3", "search.train.lr=fast"], "search.train.lr: 'fast' is not a range; allowed are "),
        (["budget=3", "search.train.lr=[-1,1]"], "fedavg: .*train.lr: .*greater than 0"),
        (["budget=3", "search.train.lr=[0.1,1]", "train.lr=0.2"], "the command sets train.lr as well"),
        (["budget=3", "search.model.nope=[0.1,1]"], "fedavg: unknown key model.nope"),
        (["budget=3", "method=fedavg,nope"], "unknown method 'nope'"),
    ],
)
def test_a_wrong_search_is_refused_before_anything_starts(arguments: list[str], reason: str) -> None:
    import re

    assert re.search(reason, refusal_of(ConfigError, read, *arguments))


def test_without_optuna_one_line_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'^fedshift tune: .* run: pip install "fedshift\[tune\]"$'):
        study.check_installed()


def test_all_runs_set_validation_images_aside_and_trials_look_at_no_test_image() -> None:
    request = read("method=fedprox", "budget=2", "seed=4,5")
    (plan,) = request.plans
    assert any(note.startswith(f"{FRACTION}=0.2") for note in request.notes)
    tried = plan.trial({}).config
    assert (tried.evaluate.test, tried.seed, tried.allocation.validation_fraction) == (False, 4, 0.2)
    finals = request.finals({"fedprox": {"train.weight_decay": 1e-06, "method.mu": 0.25}})
    assert [p.label for p in finals] == [f"fedprox{t} seed={s}" for s in (4, 5) for t in ("", " tuned")]
    tuned = finals[1].config
    assert (tuned.evaluate.test, tuned.allocation.validation_fraction, tuned.method["mu"]) == (True, 0.2, 0.25)
    assert (tuned.train.weight_decay, tuned.tuned) == (1e-06, {"train.weight_decay": 1e-05, "method.mu": 0.01})
    assert finals[0].config.tuned == {} and len({p.key for p in finals}) == 4
    assert read("method=fedprox", "budget=9", "seed=4").key == request.key  # a longer search goes on with it
    assert read("method=fedprox", "budget=2", "seed=4", "search.train.lr=off").key != request.key


# --- test images ----------------------------------------------------------------------------------------------


def test_test_images_cannot_influence_what_a_trial_counts_for(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of a trial is the same, bit for bit, whatever the test images are; it does not even look at them."""
    result = "train.epochs=1 allocation.share=0.1 allocation.validation_fraction=0.3 evaluate.figures=false"
    usual = run_inline(rounds=2, set=result)
    load, seen = catalog.load.__wrapped__, []

    def poisoned(name: str, domain: str, split: Any, *more: Any) -> Any:
        images = load(name, domain, split, *more)
        if split == "test":
            seen.append(domain)
            images = type(images)(255 - images.x, (images.y + 1) % 10)
        return images

    monkeypatch.setattr(catalog, "load", poisoned)
    trial = run_inline(rounds=2, set=f"{result} evaluate.test=false")
    assert tuning.averages(trial.folder) == tuning.averages(usual.folder)
    assert [line["validation"] for line in trial.rounds] == [line["validation"] for line in usual.rounds]
    assert trial.results["weights_sha256"] == usual.results["weights_sha256"]
    for line in trial.rounds:
        assert set(line["accuracy"].values()) == {None} and set(line["test_loss"].values()) == {None}
    assert trial.results["avg"] is None and trial.results["best_validation"]["round"] in (1, 2)


def test_of_metrics_the_validation_alone_is_read(tmp_path: Path) -> None:
    lines = [
        {"round": 1, "accuracy": {"a": 99.0}, "avg": 99.0, "validation": {"a": 10.0, "b": 20.0, "held": None}},
        {"round": 2, "accuracy": {"a": 99.0}, "avg": 99.0},
        {"round": 3, "accuracy": {"a": 0.0}, "avg": 0.0, "validation": {"a": 90.0, "b": None}},
        {"round": 4, "accuracy": {"a": 0.0}, "avg": 0.0, "validation": {"a": 30.0, "b": 50.0}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tuning.averages(tmp_path) == {1: 15.0, 4: 40.0}  # round 3 lacks a domain
    assert tuning.score({1: 15.0, 4: 40.0}, "last") == 27.5
    assert tuning.score({i: float(i) for i in range(1, 9)}, "last") == 6.0  # of the last five
    assert tuning.score({1: 40.0, 2: 15.0}, "best-validation") == 40.0
    assert tuning.score({}, "last") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("evaluate.test=false", "needs allocation.validation_fraction above 0"),
        (
            "evaluate.test=false allocation.validation_fraction=0.2 evaluate.client_models=last",
            "client_models=last scores test images",
        ),
    ],
)
def test_a_run_without_test_images_must_have_something_to_score(text: str, reason: str) -> None:
    assert reason in refusal_of(ConfigError, resolve, {"set": text})


# --- searches, played by a script -----------------------------------------------------------------------------

#: Does as a run does. Its validation is best near train.lr=0.05, its accuracy on test images where that is worst.
SCRIPT = """
import json, os, pathlib, sys
home = pathlib.Path(__file__).parent
given = dict(a.partition("=")[::2] for a in sys.argv[1:])
trial = given.get("evaluate.test") == "false"
lr = float(given.get("train.lr", "0.01"))
name = f"{given['method']} {'trial' if trial else 'tuned' if 'tuned' in given else 'own'} {lr}"
with (home / "started").open("a") as file:
    file.write(name + (" resumed" if "resume" in given else "") + "\\n")
folder = pathlib.Path(given.get("resume") or f"{given['output-dir']}/run-{os.getpid()}")
folder.mkdir(exist_ok=True)
config = json.loads((home / f"config-{given['method']}.json").read_text())
for key, value in given.items():
    section, _, name = key.partition(".")
    if name and section in config["resolved"]:
        config["resolved"][section][name] = {"true": True, "false": False, "off": "off"}.get(value) if (
            value in ("true", "false", "off")) else float(value) if "." in value or "e-" in value else int(value)
(folder / "config.yaml").write_text(json.dumps(config))
(folder / "checkpoint").mkdir(exist_ok=True)
(folder / "store").write_text(os.environ["MLFLOW_TRACKING_URI"])
if (home / "break").exists() and given["method"] == "fedprox":
    sys.exit("error: no node is left")
if (home / "wrong").exists() and given["method"] == "fedprox":
    print("error: modules f2dc: no feature map", file=sys.stderr)
    sys.exit(78)
if (home / "kill").exists() and len((home / "started").read_text().splitlines()) == 3:
    os.kill(os.getppid(), 2)
    import time; time.sleep(30)
value = 90 - 500 * abs(lr - 0.05) + (1 if given["method"] == "fedprox" else 0)
with (folder / "metrics.jsonl").open("w") as file:
    for r in range(1, 7):
        line = {"round": r, "accuracy": {"scan": 99 - value}, "validation": {"scan": value - 6 + r}}
        file.write(json.dumps(line) + "\\n")
(folder / "results.json").write_text(json.dumps(RESULTS | {"avg": 50.0}))
"""
SCRIPT = f"RESULTS = {RESULTS}\n{SCRIPT}"


class Searches:
    """Searches whose runs are played by ``SCRIPT``; the comparison is left out."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "play.py").write_text(SCRIPT)
        self.images: dict[str, Any] | None = None  # the fingerprints that runs write down
        self.compared: list[list[str]] = []

    def tune(self, *arguments: str) -> None:
        given = ["handwritten", f"output-dir={self.home / 'runs'}", *SHORT, "jobs=2", *arguments]
        for plan in tune_requested.read(given).plans:
            point = plan.trial({})
            fields = {"resolved": point.config.model_dump(mode="json"), "engine": "inline", "nodes": point.nodes,
                      "run_id": "x", "versions": versions(point.config)}  # fmt: skip
            fields |= {} if self.images is None else {"images": self.images}
            (self.home / f"config-{plan.method}.json").write_text(json.dumps(fields))
        tuning.tune(given, "")

    @property
    def started(self) -> list[str]:
        return (self.home / "started").read_text().splitlines()

    @property
    def rows(self) -> list[dict[str, str]]:
        (file,) = self.home.glob("runs/tune-handwritten-*/trials.csv")
        return list(csv.DictReader(file.open()))


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Searches:
    pytest.importorskip("optuna")
    made = Searches(tmp_path)
    monkeypatch.setattr(checking, "check_data", lambda *_: None)
    monkeypatch.setattr(running, "run_command", lambda: [sys.executable, str(tmp_path / "play.py")])
    monkeypatch.setattr(forks, "FEWEST_RUNS", sys.maxsize)  # a script is not forked
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def finals(self: sweeping.Sweep, paper: str) -> None:
        made.compared.append([record.point.label for record in self.records])

    monkeypatch.setattr(sweeping.Sweep, "run", finals)
    return made


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT through: what a shell starts in the background ignores it, and so do the tests then."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key not in ("seconds", "run")} for row in rows]


def test_every_method_has_the_same_budget_and_the_best_by_validation_is_chosen(
    searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    searches.tune("method=fedavg,fedprox", "budget=7", "seed=0,1")
    rows = searches.rows
    by_method = {name: [row for row in rows if row["method"] == name] for name in ("fedavg", "fedprox")}
    assert [[row["trial"] for row in of] for of in by_method.values()] == [list("0123456")] * 2
    assert all(of[0]["train.lr"] == "0.01" and of[0]["state"] == "complete" for of in by_method.values())
    (summary,) = searches.home.glob("runs/tune-*/tune.json")
    content = json.loads(summary.read_text())["methods"]
    for name, of in by_method.items():
        values = {float(row["train.lr"]): float(row["validation"]) for row in of if row["validation"]}
        best = min(values, key=lambda lr: abs(lr - 0.05))
        assert content[name]["best"]["values"]["train.lr"] == best and best != 0.01
        assert values[best] == max(values.values()) == content[name]["best"]["validation"]
    assert searches.compared == [
        [f"{m}{t} seed={s}" for s in (0, 1) for m in ("fedavg", "fedprox") for t in ("", " tuned")]
    ]
    place = summary.parent
    assert all((place / row["run"] / "metrics.jsonl").is_file() for row in rows)
    assert not list(place.glob("trials/*/*/checkpoint"))  # weights of trials are not kept
    stores = {file.read_text() for file in place.glob("trials/*/*/store")}
    assert stores == {(place / "mlruns").as_uri()}  # not one for each trial
    shown = [line for line in capsys.readouterr().out.splitlines() if "] trial " in line]
    assert sum("fedprox [7/7] trial 6: " in line for line in shown) == 1
    assert all(bool(re.search(r"; trials left \d+:\d\d$", line)) is ("[7/7]" not in line) for line in shown)
    count = len(searches.started)
    searches.tune("method=fedavg,fedprox", "budget=7", "seed=0,1")
    assert len(searches.started) == count
    searches.tune("method=fedavg,fedprox", "budget=8", "seed=0,1")
    assert len(searches.started) == count + 2


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_it_and_the_same_command_goes_on_with_the_same_trials(
    searches: Searches, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_COMMAND", "fedshift tune ...")
    searches.tune("method=fedavg", "budget=6")
    whole, place = searches.rows, next(searches.home.glob("runs/tune-*"))
    place.rename(searches.home / "whole")
    (searches.home / "started").unlink()
    (searches.home / "kill").touch()
    with pytest.raises(SystemExit) as stop:
        searches.tune("method=fedavg", "budget=6")
    assert stop.value.code == 130 and "to continue: " in capsys.readouterr().err
    assert [row["state"] for row in searches.rows] == ["complete", "complete", "running"]
    (searches.home / "kill").unlink()
    searches.tune("method=fedavg", "budget=6")
    assert without_times(searches.rows) == without_times(whole)
    assert len(searches.started) == 7


def test_without_the_store_a_finished_run_counts_for_its_own_values_alone(
    searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    searches.tune("method=fedavg", "budget=2")
    whole = searches.rows
    (store,) = searches.home.glob("runs/tune-*/trials.log")
    (plan,) = tune_requested.read(["handwritten", *SHORT, "jobs=2", "method=fedavg", "budget=2"]).plans
    for number, rate in enumerate((0.01, 0.0123)):  # of trial 1 another than it draws
        point = plan.trial({"train.lr": rate} if number else {})
        (file,) = store.parent.glob(f"trials/fedavg-000{number}/*/config.yaml")
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"resolved": point.config.model_dump(mode="json"), "nodes": point.nodes}))
    store.unlink()
    capsys.readouterr()
    searches.tune("method=fedavg", "budget=2")
    assert len(searches.started) == 3 and searches.started[2] == searches.started[1]
    assert without_times(searches.rows) == without_times(whole)
    (file,) = store.parent.glob("trials/fedavg-0000/*/config.yaml")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"images": {"scan": {"train": "other"}}}))
    store.unlink()
    searches.tune("method=fedavg", "budget=1")
    assert "done again, as " in (err := capsys.readouterr().err) and "scan train had other images" in err


def test_a_method_whose_own_values_fail_is_given_up_and_the_others_are_compared(
    searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    (searches.home / "break").touch()
    with pytest.raises(FederationError, match=r"^1 of 2 methods failed: fedprox: its first trial failed: no no"):
        searches.tune("method=fedavg,fedprox", "budget=2", "retries=1")
    assert [name for name in searches.started if name.startswith("fedprox")] == [
        "fedprox trial 0.01", "fedprox trial 0.01 resumed"
    ]  # fmt: skip
    assert all(label.startswith("fedavg") for label in searches.compared[0])
    (searches.home / "break").unlink()
    searches.tune("method=fedavg,fedprox", "budget=2")  # the same command gives it another chance
    assert [row["state"] for row in searches.rows if row["method"] == "fedprox"] == ["complete"] * 2


def test_a_trial_that_is_refused_is_not_tried_again(searches: Searches) -> None:
    (searches.home / "wrong").touch()
    with pytest.raises(FederationError, match=r"fedprox: its first trial failed: modules f2dc: no feature map"):
        searches.tune("method=fedavg,fedprox", "budget=1", "retries=3")
    assert sum(line.startswith("fedprox trial") for line in searches.started) == 1


def test_a_method_that_cannot_run_on_the_network_is_refused_before_anything_starts(searches: Searches) -> None:
    pytest.importorskip("timm")
    given = ["handwritten", "method=fedavg,f2dc", "budget=1", "model.name=timm:vit_tiny_patch16_224"]
    with pytest.raises(ConfigError, match=r"^f2dc: modules f2dc: the network 'timm:vit_tiny_patch16_224' has no feat"):
        tuning.tune([*given, f"output-dir={searches.home / 'runs'}"], "")
    assert not (searches.home / "runs").exists()


def test_a_method_that_is_best_as_it_is_has_one_row(searches: Searches, capsys: pytest.CaptureFixture[str]) -> None:
    searches.tune("method=fedavg", "budget=1")
    assert searches.compared == [["fedavg"]]
    assert "fedavg: none of its 1 trial was better on validation images than its own values" in capsys.readouterr().out


def test_trials_on_other_images_than_others_are_named_next_to_the_table(
    searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    for version, budget in (("old", 1), ("new", 2)):
        searches.images = {"scan": {"train": version}}
        searches.tune("method=fedavg", f"budget={budget}")
        line = "values were chosen by trials on other images than today's: scan train in trials/fedavg-0000/run-"
        assert line in capsys.readouterr().out

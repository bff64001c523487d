"""``fedshift tune``: where methods are searched, equal budgets, what is read of a trial, and how it goes on."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from run_folders import RESULTS
from support import InlineRun, on_images

from fedshift.lab.grid import commands
from fedshift.lab.grid.sweep import forks, running, sweeping
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift.lab.grid.tune import tuning
from fedshift.lab.grid.tune.requested import FRACTION, Request
from fedshift.run import checking
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node import data as node_data
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


def test_what_the_command_sets_is_not_searched_and_ranges_may_be_its_own() -> None:
    request = read(
        "method=fedprox,moon", "budget=1", "method.mu=0.5", "search.train.weight_decay=off",
        "search.train.lr=[1e-3,1e-2,log]", "search.train.epochs=[1,3,whole]", "search.method.tau=[0.2,0.4]",
        "set=train.momentum=0.5", "rounds=8", "trial-rounds=3",
    )  # fmt: skip
    plan, other = request.plans
    assert plan.space.keys() == {"train.lr", "train.epochs"}
    assert plan.space["train.lr"] == ranges.read([0.001, 0.01, "log"], "lr")
    assert other.space.keys() == {"train.lr", "train.epochs", "method.tau"}
    assert plan.default == {"train.lr": 0.01, "train.epochs": 5}
    tried = plan.trial({"train.lr": 1e-05, "train.epochs": 3}).config
    assert (tried.train.lr, tried.train.epochs, tried.method["mu"], tried.train.momentum) == (1e-05, 3, 0.5, 0.5)
    # Trials may have fewer rounds than the runs that are compared.
    finals = request.finals({"fedprox": {"train.lr": 0.002}, "moon": {}})
    assert (plan.rounds, tried.rounds, {point.config.rounds for point in finals}) == (3, 3, {8})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("", "budget"), ("budget=0", "'0'"), ("budget=3 pruning=maybe", "'maybe'"), ("budget=3 trial-rounds=0", "'0'"),
        ("budget=3 rounds=4 trial-rounds=5", "trial-rounds=5"), ("budget=3 train.lr=0.1,0.2", "train.lr: "),
        ("budget=3 tuned={train.lr:1}", "tuned: "), ("budget=3 method=fedprox method.taw=1", "method.taw: "),
        ("budget=3 search.method.tau=[0,1]", "search.method.tau: "), ("budget=3 search.train.lr=[1,0]", "LOW"),
        ("budget=3 search.train.lr=fast", "'fast'"), ("budget=3 search.train.lr=[-1,1]", "fedavg: "),
        ("budget=3 search.train.lr=[0.1,1] train.lr=0.2", "train.lr"), ("budget=3 method=fedavg,nope", "'nope'"),
        ("budget=3 search.model.nope=[0.1,1]", "model.nope"), ("budget=3 rounds=0", "rounds=0"),
        ("budget=3 search.train.lr=[0.1", "is not YAML"),
    ],
)  # fmt: skip
def test_a_wrong_search_is_refused_before_anything_starts(arguments: str, named: str) -> None:
    with refused(ConfigError, named):
        read(*arguments.split())


#: The first search goes on with a shorter one, the others are searches of their own.
KEYED = ("budget=9", "budget=2 search.train.lr=off", "budget=2 trial-rounds=3")


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
    again = [read("method=fedprox", *more.split(), "seed=4").key for more in KEYED]
    assert [key == request.key for key in again] == [True, False, False]  # a longer search goes on with it


# --- test images ----------------------------------------------------------------------------------------------


def test_test_images_cannot_influence_what_a_trial_counts_for(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of a trial is the same, bit for bit, whatever the test images are; it does not even look at them."""
    result = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1 allocation.validation_fraction=0.3"
    result += " evaluate.figures=false"
    usual = run_inline(nodes=2, rounds=2, set=result)
    load = catalog.load.__wrapped__

    def poisoned(name: str, domain: str, split: Any, *more: Any) -> Any:
        images = load(name, domain, split, *more)
        return type(images)(255 - images.x, (images.y + 1) % 10) if split == "test" else images

    monkeypatch.setattr(catalog, "load", poisoned)
    trial = run_inline(nodes=2, rounds=2, set=f"{result} evaluate.test=false")
    assert tuning.averages(trial.folder) == tuning.averages(usual.folder)
    assert [line["validation"] for line in trial.rounds] == [line["validation"] for line in usual.rounds]
    assert trial.results["weights_sha256"] == usual.results["weights_sha256"]
    scores = [value for line in trial.rounds for key in ("accuracy", "test_loss") for value in line[key].values()]
    assert {*scores, trial.results["avg"]} == {None} and trial.results["best_validation"]["round"] in (1, 2)


def test_of_metrics_the_validation_alone_is_read(tmp_path: Path) -> None:
    validations = [{"a": 10.0, "b": 20.0, "held": None}, {}, {"a": 90.0, "b": None}, {"a": 30.0, "b": 50.0}]
    lines = [{"round": n, "accuracy": {"a": 99.0}} | {"validation": of} for n, of in enumerate(validations, 1)]
    del lines[1]["validation"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert tuning.averages(tmp_path) == {1: 15.0, 4: 40.0}  # round 3 lacks a domain
    assert tuning.score({i: float(i) for i in range(1, 9)}, "last") == 6.0  # of the last five
    assert tuning.score({1: 40.0, 2: 15.0}, "best-validation") == 40.0
    assert tuning.score({}, "last") is None


@pytest.mark.parametrize("more", ["", " allocation.validation_fraction=0.2 evaluate.client_models=last"])
def test_a_run_without_test_images_must_have_something_to_score(more: str) -> None:
    with refused(ConfigError, "validation_fraction" if not more else "client_models"):
        resolve({"set": f"evaluate.test=false{more}"})


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
        self.images: dict[str, Any] = {}  # the fingerprints that runs write down
        self.compared: list[list[str]] = []

    def tune(self, *arguments: str) -> None:
        given = ["handwritten", f"output-dir={self.home / 'runs'}", *SHORT, "jobs=2", *arguments]
        for plan in tune_requested.read(given).plans:
            point = plan.trial({})
            fields = {"resolved": point.config.model_dump(mode="json"), "engine": "inline", "nodes": point.nodes}
            fields |= {"run_id": "x", "versions": versions(point.config), **self.images}
            (self.home / f"config-{plan.method}.json").write_text(json.dumps(fields))
        commands.tune(given)

    @property
    def started(self) -> list[str]:
        return (self.home / "started").read_text().splitlines()

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table of trials without what differs from search to search."""
        (file,) = self.home.glob("runs/tune-handwritten-*/trials.csv")
        return [{key: row[key] for key in row if key != "seconds"} for row in csv.DictReader(file.open())]


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


def test_every_method_has_the_same_budget_and_the_best_by_validation_is_chosen(searches: Searches) -> None:
    searches.tune("method=fedavg,fedprox", "budget=7", "seed=0,1")
    (summary,) = searches.home.glob("runs/tune-*/tune.json")
    content = tuning.summary(summary.parent)["methods"]
    for name in ("fedavg", "fedprox"):
        rows = [row for row in searches.rows if row["method"] == name]
        assert [row["trial"] for row in rows] == list("0123456")
        assert (rows[0]["train.lr"], rows[0]["state"]) == ("0.01", "complete")
        values = {float(row["train.lr"]): float(row["validation"]) for row in rows if row["validation"]}
        best = min(values, key=lambda lr: abs(lr - 0.05))
        assert content[name]["best"]["values"]["train.lr"] == best != 0.01
        assert values[best] == max(values.values()) == content[name]["best"]["validation"]
    assert searches.compared == [
        [f"{m}{t} seed={s}" for s in (0, 1) for m in ("fedavg", "fedprox") for t in ("", " tuned")]
    ]
    place = summary.parent
    assert all((place / row["run"] / "metrics.jsonl").is_file() for row in searches.rows)
    assert not list(place.glob("trials/*/*/checkpoint"))  # weights of trials are not kept
    stores = {file.read_text() for file in place.glob("trials/*/*/store")}
    assert stores == {(place / "mlruns").as_uri()}  # not one for each trial
    count = len(searches.started)
    for budget, more in ((7, 0), (8, 2)):
        searches.tune("method=fedavg,fedprox", f"budget={budget}", "seed=0,1")
        assert len(searches.started) == count + more


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
    assert [row | {"run": ""} for row in searches.rows] == [row | {"run": ""} for row in whole]
    assert len(searches.started) == 7


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


def test_trials_that_are_no_better_or_on_other_images_are_said(
    searches: Searches, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searches.images = {"images": {"scan": {"train": "earlier"}}}
    monkeypatch.setattr(node_data, "fingerprints", lambda _: searches.images["images"])
    search = ("method=fedavg,fedprox", "search.train.lr=[0.2,0.3]", "search.train.weight_decay=off", "method.mu=0.5")
    searches.tune(*search, "budget=2")
    assert searches.compared == [["fedavg", "fedprox"]]
    out = capsys.readouterr().out
    assert out.count("none of its 2 trials was better on validation images than its own values") == 2
    assert "is outside its search range; its first trial uses it anyway" in out and "other images" not in out
    searches.images = {"images": {"scan": {"train": "today"}}}
    searches.tune(*search, "budget=2")
    assert "values were chosen by trials on other images than today's: scan train in " in capsys.readouterr().out
    searches.tune("method=fedavg", "search.train.lr=off", "search.train.weight_decay=off", "budget=1")
    assert "fedavg: nothing to search; its trial is the unchanged method" in capsys.readouterr().out

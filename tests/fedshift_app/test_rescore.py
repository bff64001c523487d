"""``fedshift rescore``: what a finished run's models score in another way is what a run of that way scores."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import InlineRun, Run

from fedshift.lab.grid.rescore import command
from fedshift.lab.tables.compare import compare
from fedshift_core.errors import ConfigError

PLAIN = "method=fedavg rounds=2"
QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name=cnn_bn"
SHIFTED = "shift.name=corruption shift.severity=3"


def again(run: Run, to: Path, *arguments: str) -> list[Run]:
    """Score a run again in this process and return the new runs, in their order."""
    before = set(to.iterdir()) if to.is_dir() else set()
    command.rescore([str(run.folder), *arguments, f"output-dir={to}", "jobs=1"])
    return [Run(path) for path in sorted(set(to.iterdir()) - before, key=lambda path: path.stat().st_mtime_ns)]


def hashes(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def last(run: Run) -> dict[str, Any]:
    return {key: run.rounds[-1].get(key) for key in ("round", "accuracy", "test_loss", "others", "losses", "nodes")}


SAME = ("weights_sha256", "evaluated", "rounds", "nodes", "scored_with", "bytes_up", "num_parameters", "final")


def config_of(run: Run) -> dict[str, Any]:
    content: dict[str, Any] = run.config
    return content


@pytest.mark.parametrize(
    ("method", "ways"),
    [
        ("fedavg", f"{SHIFTED} adapt.name=tent"),
        pytest.param("fedbn", SHIFTED, marks=pytest.mark.long),  # BatchNorm is the node's own
        ("fedrep", "evaluate.bn=[own,retaken] images.eval_batch=32"),
    ],
)
def test_it_is_what_a_run_of_that_way_scores(finished_run: InlineRun, tmp_path: Path, method: str, ways: str) -> None:
    plain, requested = (finished_run(f"method={method} rounds=2 {QUICK} {more}") for more in ("", ways))
    before = hashes(plain.folder)
    [scored] = again(plain, tmp_path / "again", *ways.split())
    assert hashes(plain.folder) == before
    assert requested.rounds[-1]["accuracy"] != plain.rounds[-1]["accuracy"]
    assert last(scored) == last(requested)
    assert [scored.results[key] for key in SAME] == [requested.results[key] for key in SAME]
    assert scored.results["final"] == scored.results["domains"] and scored.rounds[0]["accuracy"] is None
    content, of_the_other = config_of(scored), config_of(requested)
    assert content["resolved"] | {"train": None} == of_the_other["resolved"] | {"train": None}
    marks = content["scored_again"]
    assert (marks["run"], marks["weights_sha256"]) == (plain.folder.name, plain.results["weights_sha256"])


def test_the_kept_round_is_scored(finished_run: InlineRun, tmp_path: Path) -> None:
    """With ``keep=best-validation`` that is not the last one; a node's own parts are those of then."""
    own = "keep=best-validation allocation.validation_fraction=0.2 train.lr=0.5"  # too much
    runs = (finished_run(f"method=fedbn rounds=3 seed={seed} {QUICK} {own}") for seed in range(10))
    run = next(run for run in runs if run.results["chosen_round"]["round"] < 3)
    chosen = run.results["chosen_round"]
    [scored] = again(run, tmp_path / "again", "evaluate.figures=false")
    results, marks = scored.results, config_of(scored)["scored_again"]
    assert (results["rounds"], results["final"]) == (chosen["round"], chosen["domains"])
    for key in ("round", "validation"):
        assert results["chosen_round"][key] == chosen[key]
    assert (marks["round"], marks["weights_sha256"]) == (chosen["round"], results["weights_sha256"])


def test_a_round_chosen_by_validation_that_was_not_scored_again_is_no_result(
    finished_run: InlineRun, tmp_path: Path
) -> None:
    """Of the rounds before the last one only what was trained is known: no accuracy, whichever validation says."""
    run = finished_run(f"rounds=2 {QUICK} allocation.validation_fraction=0.2")
    lines = run.rounds
    for line in lines:
        line["validation"] = dict.fromkeys(line["validation"], 90.0 if line["round"] == 1 else 10.0)
    (run.folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (new,) = again(run, tmp_path / "again", "shift.name=none")
    assert "best_validation" not in new.results
    with pytest.raises(ConfigError, match="was not scored so"):
        compare([new.folder], score="validation")
    mean = compare([new.folder], score="final").numbers.rows[0].values["AVG"].mean
    assert mean == pytest.approx(new.results["avg"])


#: Arguments that are refused, each with parts of the message.
REFUSED = {
    "train.lr=0.5": "train.lr 0.01 0.5",
    "rounds=3": "rounds 2 3",
    "method=fedprox": "method",
    "shift.name=domain": "shift",
    "shift.severity=9": "shift.severity",
    "adapt.name=tnet": "tnet",
    "engine=inline": "engine",
    "shift.severity=1 shift.severity=2": "shift.severity",
    "shift.severity=1,": "shift.severity",
    "jobs=0": "jobs 0",
}


def test_what_would_change_the_training_is_refused(finished_run: InlineRun, tmp_path: Path) -> None:
    run, other = finished_run(f"{PLAIN} {QUICK}"), tmp_path / "other"
    given = {(str(run.folder), *typed.split(), f"output-dir={other}"): named for typed, named in REFUSED.items()}
    given |= {("shift.severity=1",): "run folders", (str(tmp_path / "nothing"),): "nothing"}
    given |= {(str(run.folder.parent.parent),): run.folder.parent.parent.name}
    for arguments, named in given.items():
        with pytest.raises(ConfigError) as caught:
            command.rescore([*arguments])
        assert all(part in str(caught.value) for part in named.split())
    assert not other.exists()
    results = "results.json"
    for change, message in (
        (lambda path: (path / results).unlink(), "fedshift run resume="),
        (lambda path: shutil.rmtree(path / "checkpoint"), "rescore: round: 2 "),
        (deployed, "deployment"),
        (lambda path: (path / results).write_text('{"avg": '), r"results\.json"),
        (lambda path: (path / results).write_text("{}"), "rounds"),
    ):
        refuses(run, change, message, tmp_path)


def refuses(run: Run, change: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    """Check that a changed copy of a run is not scored again, and nothing written."""
    copy, other = tmp_path / "copy", tmp_path / "other"
    shutil.copytree(run.folder, copy)
    change(copy)
    with pytest.raises(ConfigError, match=message):
        command.rescore([str(copy), "evaluate.bn=[own]", f"output-dir={other}", "jobs=1"])
    shutil.rmtree(copy)
    assert not other.exists()


def test_no_other_round_is_scored_in_place_of_the_last(finished_run: InlineRun, tmp_path: Path) -> None:
    """Also where an earlier checkpoint is whole; and no other weights than those that the results are of."""
    run = finished_run(f"{PLAIN} {QUICK}")
    kept = run.folder / "checkpoint" / "weights-00002.safetensors"

    def swap(copy: Path) -> None:
        results = json.loads((copy / "results.json").read_text())
        (copy / "results.json").write_text(json.dumps(results | {"weights_sha256": "0" * 64}))

    turned = bytes([*kept.read_bytes()[:-1], kept.read_bytes()[-1] ^ 1])
    for change, message in (
        (lambda copy: (copy / "checkpoint" / kept.name).write_bytes(turned), "no checkpoint"),
        (lambda copy: (copy / "checkpoint" / "round-00002.json").unlink(), "rescore: round: 2 "),
        (swap, "SHA-256"),
    ):
        refuses(run, change, message, tmp_path)


def deployed(path: Path) -> None:
    content = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(content | {"engine": "deployment"}))


def test_nothing_is_left_where_it_could_not_be_scored(finished_run: InlineRun, tmp_path: Path) -> None:
    run = finished_run(f"method=fedrep rounds=2 {QUICK}")
    lost = [file.relative_to(run.folder) for file in run.folder.glob("checkpoint/nodes/node-0/*")]
    refuses(run, lambda copy: [(copy / file).unlink() for file in lost], "private parts of round 2", tmp_path)

"""Domains that no simulated node holds though none is held out: a warning before training, with the remedy."""

import json

import pytest
from support import InlineRun

from fedshift.lab.grid.costs import dry_run
from fedshift_app.config.resolving import resolve
from fedshift_app.run.build import unheld_line


@pytest.mark.parametrize(
    ("keys", "nodes", "said"),
    [
        ("", 4, ""),
        (
            "",
            3,
            "no node holds sketch: nothing trains on such images, but their scores count in averages; nodes=4 ",
        ),
        ("allocation.held_out=[sketch]", 3, ""),
        ("allocation.held_out=[scan]", 2, "no node holds sketch: "),
        ("allocation.held_out=[scan]", 2, "; nodes=3 is enough for all domains"),
        ("'allocation.counts={scan: 1, street: 1}'", 2, "no node holds texture, sketch: "),
        (
            "'allocation.counts={scan: 1, street: 1}'",
            2,
            "'allocation.held_out=[texture,sketch]'",
        ),
        ("dataset.domains=[scan,sketch]", 2, ""),
    ],
)
def test_domains_without_a_node_are_named_with_the_remedy(keys: str, nodes: int, said: str) -> None:
    line = unheld_line(resolve({"set": keys}), nodes)
    assert said in line and bool(said) == bool(line)


def test_a_run_without_training_has_no_warning() -> None:
    assert unheld_line(resolve({"rounds": 0}), 2) == ""


def test_the_log_of_a_run_has_the_warning_before_its_first_round(run_inline: InlineRun) -> None:
    run = run_inline(nodes=2, rounds=1, set="train.epochs=1")
    lines = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    events = [line.get("event") for line in lines]
    assert events.index("unheld") < events.index("round")
    assert lines[events.index("unheld")]["level"] == "warning"


def test_a_dry_run_has_the_warning() -> None:
    text = " ".join(dry_run.summary({"set": "train.epochs=1", "output-dir": "runs"}, {"nodes": 2}).split())
    assert "warning no node holds street, sketch: nothing trains on such images" in text

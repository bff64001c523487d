"""Domains that no simulated node holds though none is held out: a warning before training, with the remedy."""

import pytest
from support import InlineRun, json_lines

from fedshift_app.config.resolving import resolve
from fedshift_app.run.build import unheld_line


@pytest.mark.parametrize(
    ("keys", "nodes", "named"),
    [
        ("", 4, []),
        ("", 3, ["sketch", "nodes=4"]),
        ("allocation.held_out=[sketch]", 3, []),
        ("allocation.held_out=[scan]", 2, ["sketch", "nodes=3"]),
        ("'allocation.counts={scan: 1, street: 1}'", 2, ["texture, sketch", "'allocation.held_out=[texture,sketch]'"]),
        ("dataset.domains=[scan,sketch]", 2, []),
    ],
)
def test_domains_without_a_node_are_named_with_the_remedy(keys: str, nodes: int, named: list[str]) -> None:
    line = unheld_line(resolve({"set": keys}), nodes)
    assert all(name in line for name in named) and bool(named) == bool(line)
    assert unheld_line(resolve({"rounds": 0, "set": keys}), nodes) == ""


def test_the_log_of_a_run_has_the_warning_before_its_first_round(run_inline: InlineRun) -> None:
    run = run_inline("nodes=2 rounds=1 train.epochs=1")
    lines = json_lines(run.folder / "log.jsonl")
    events = [line.get("event") for line in lines]
    assert events.index("unheld") < events.index("round")
    assert lines[events.index("unheld")]["level"] == "warning"

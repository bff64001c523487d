"""``profile=true``: numbers in metrics.jsonl, a file, a table; and nothing of it without."""

import json

import pytest
from refusals import refused
from support import InlineRun

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.features.profile import show as profile
from fedshift_core.errors import ConfigError

SMALL = "allocation.share=0.05 train.epochs=1"


def test_a_profiled_run_tells_where_its_time_went_and_changes_no_number(run_inline: InlineRun) -> None:
    plain, run = (run_inline(method="i2pfl", rounds=2, set=SMALL, profile=on) for on in (False, True))
    assert plain.results["weights_sha256"] == run.results["weights_sha256"]
    assert not (plain.folder / "profile.json").exists()
    assert all("profile" not in line for line in plain.rounds)
    for line in run.rounds:
        result = line["profile"]
        assert set(result["server"]) == {"messages", "training", "averaging", "evaluation"}
        assert {"data", "forward/backward", "messages", "evaluation", "prototypes"} == set(result["nodes"])
        assert all(seconds >= 0 for seconds in [*result["server"].values(), *result["nodes"].values()])
        assert sum(result["server"].values()) <= line["seconds"] + 1e-3
        # The nodes worked while the server waited for them, one after another.
        assert sum(result["nodes"].values()) <= result["server"]["training"] + result["server"]["evaluation"]
        assert not [name for name in line["losses"] if "seconds" in name or "process" in name]
    written = json.loads((run.folder / "profile.json").read_text())
    assert written["nodes"]["data"] == pytest.approx(sum(line["profile"]["nodes"]["data"] for line in run.rounds))


def test_table_shows_every_part_by_its_share() -> None:
    rounds = [
        {"server": {"training": 3.0}, "nodes": {"data": 1.0}, "side_by_side": 2, "waiting": 2.0},
        {"server": {"training": 5.0}, "nodes": {"data": 3.0}, "side_by_side": 1, "waiting": 0.0},
    ]
    result = profile.summary(rounds, writing=2.0)
    assert result == {
        "rounds": 2,
        "side_by_side": 2,
        "server": {"training": 8.0, "checkpoint": 2.0},
        "nodes": {"data": 4.0, "waiting": 2.0},
    }
    lines = [line.split() for line in profile.table(result).splitlines()]
    assert ["training", "4.00", "80.0", "%"] in lines
    assert ["waiting", "1.00", "33.3", "%"] in lines


def test_profile_is_true_or_false() -> None:
    assert parse_arguments(["profile=true"])[0]["profile"] is True
    with refused(ConfigError, "profile", "'1'"):
        parse_arguments(["profile=1"])

"""``profile=true``: numbers in metrics.jsonl, a file, a table; and nothing of it without."""

import json

import pytest
from refusals import refused
from support import InlineRun

from fedshift_app.config.arguments import parse_arguments
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


def test_profile_is_true_or_false() -> None:
    assert parse_arguments(["profile=true"])[0]["profile"] is True
    with refused(ConfigError, "profile", "'1'"):
        parse_arguments(["profile=1"])

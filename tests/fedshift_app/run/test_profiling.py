"""``profile=true``: numbers in metrics.jsonl, a file, a table; and nothing of it without."""

import json

import pytest
from support import InlineRun

SMALL = "allocation.share=0.05 train.epochs=1"


def test_a_profiled_run_tells_where_its_time_went_and_changes_no_number(run_inline: InlineRun) -> None:
    plain, run = (run_inline(f"method=i2pfl rounds=2 profile={on} {SMALL}") for on in ("false", "true"))
    assert plain.results["weights_sha256"] == run.results["weights_sha256"]
    assert not (plain.folder / "profile.json").exists() and "profile" not in plain.rounds[0]
    for line in run.rounds:
        server, nodes = (line["profile"][side] for side in ("server", "nodes"))
        assert {*server} == {"messages", "training", "averaging", "evaluation"}
        assert {*nodes} == {"data", "forward/backward", "messages", "evaluation", "prototypes"}
        assert min(*server.values(), *nodes.values()) >= 0 and sum(server.values()) <= line["seconds"] + 1e-3
        # The nodes worked while the server waited for them, one after another.
        assert sum(nodes.values()) <= server["training"] + server["evaluation"]
        assert not [name for name in line["losses"] if "seconds" in name or "process" in name]
    written = json.loads((run.folder / "profile.json").read_text())["nodes"]["data"]
    assert written == pytest.approx(sum(line["profile"]["nodes"]["data"] for line in run.rounds))

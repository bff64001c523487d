"""Three SuperNodes on loopback, one of which its owner switches off in the middle of a run."""

import threading
from pathlib import Path

import pytest
from real_federation import federation
from support import ROOT, Run, ran, until

from fedshift.site import log
from fedshift_app.node.chained_log import LOG_FILE

ROUNDS = 4
DOMAINS = ("scan", "texture", "sketch")
IMAGES = f"dataset.domains=[{','.join(DOMAINS)}] allocation.share=0.2 model.name=cnn_bn train.precision=float32"


@pytest.mark.slow
@pytest.mark.long
def test_the_owner_of_a_node_stops_it_and_the_run_goes_on(tmp_path: Path) -> None:
    with federation(tmp_path, nodes=3, images=IMAGES) as made:
        made.policy.write_text("least_images: 1\n")  # numbers leave as they are

        given = {"rounds": ROUNDS, "method": "fedbn", "set": f"{IMAGES} federation.min_nodes=2"}
        thread = threading.Thread(target=lambda: made.run(ROOT, **given))
        thread.start()
        written = tmp_path / "state" / "node-0" / LOG_FILE
        assert until(lambda: written.exists() and '"round": 2, "message": "train"' in written.read_text(), 240)
        said = ran("-m", "fedshift", "site", "stop", "node-0", check=True, env=made.own).stdout
        assert "node-0 is switched off: its SuperNode (process " in said
        stopped = written.read_bytes()
        thread.join()
    (run,) = map(Run, (tmp_path / "runs").iterdir())
    last = run.rounds[-1]["accuracy"]
    assert run.results["rounds"] == ROUNDS and [last[domain] is None for domain in DOMAINS] == [True, False, False]
    assert written.read_bytes() == stopped  # nothing left it any more
    for index in range(3):
        checked = log.read(written.parents[1] / f"node-{index}")
        assert (checked.problems, checked.interrupted, len(log.runs(checked))) == ([], 0, 1)
        rounds = {sent.round for sent in checked.sent if sent.message == "train"}
        assert rounds == set(range(1, ROUNDS + 1)) if index else max(rounds) < ROUNDS

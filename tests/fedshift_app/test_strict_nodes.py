"""Real nodes in a run with secure sums: what they log is what such a run may show of them, and whom they trust."""

from pathlib import Path

import pytest
from secure_sites import SITES, Sites, real_nodes
from support import InlineRun, json_lines

from fedshift_app.run.received_log import RECEIVED_FILE
from fedshift_core.errors import FederationError
from fedshift_core.secure import crypto
from fedshift_core.wire import names


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sites:
    real_nodes(monkeypatch, tmp_path)
    return Sites(tmp_path, run_inline)


def test_strict_nodes_that_trust_each_other_send_masked_sums_and_no_counts(sites: Sites, tmp_path: Path) -> None:
    run = sites.run(2)
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert set(run.rounds[-1]["accuracy"]) == set(SITES)
    logs = sorted((tmp_path / "state").glob("*/out.jsonl"))
    assert len(logs) == 3
    received = json_lines(run.folder / RECEIVED_FILE)
    for node_id, log in enumerate(logs, 1000):
        lines = json_lines(log)
        trained = {line["name"] for line in lines if line["message"] == "train" and line["kind"] == "array"}
        assert trained == {"arrays/masked"}  # no weights, no prototypes, no counts
        assert not any("loss" in line["name"] for line in lines if line["message"] == "train" and "name" in line)
        assert not any(line.get("name", "").startswith("counts/") for line in lines)  # the policy keeps them
        left = [(line.get("name"), line["bytes"], line.get("sha256")) for line in lines]
        came = [(x.get("name"), x["bytes"], x.get("sha256")) for x in received if x["node_id"] == node_id]
        assert left == came and len(left) > 20  # what the server wrote down is what the node wrote down


def test_nodes_refuse_a_sum_with_a_node_that_has_no_key(sites: Sites) -> None:
    sites.keys["west"] = None
    with pytest.raises(FederationError) as caught:
        sites.run(1)
    assert "round 1: secure sums: 1 node dealt their shares, 3 are needed" in str(caught.value)


def test_nodes_refuse_keys_that_the_server_has_put_in_the_place_of_a_nodes(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    """With a key of its own in the place of a node's a server could unmask; the nodes see that it signed nothing."""
    own = crypto.public_of(crypto.new_secret())
    with pytest.raises(FederationError):
        sites.run(1, **{names.SECURE_MASK_KEYS: lambda keys: [keys[0], own, keys[2]]})
    text = caplog.text
    assert "node 1 of the secure sum has a signature that is not right" in text
    assert "this node's keys are not among those of the secure sum" in text  # says node 1 itself

"""Real nodes in a run with secure sums: what they log is what such a run may show of them, and whom they trust."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import own_sites
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.app import Message
from support import InlineRun, ListeningGrid

from fedshift.launch import credentials
from fedshift_app import server_app
from fedshift_app.flower.internals import make_context
from fedshift_app.node import node_key, setup, state_folder
from fedshift_app.run.received_log import RECEIVED_FILE
from fedshift_core.errors import FederationError
from fedshift_core.secure import crypto, identity
from fedshift_core.wire import names

SITES = ("north", "south", "west")
SUMS = (
    "dataset.classes=[bar,cross,disc] dataset.size=32 dataset.domains=[north,south,west] model.name=cnn train.epochs=1 "
    "train.precision=float32 method.share_weights=true federation.min_nodes=3 federation.secure_sums=on "
    "federation.log_received=true"
)


class Sites:
    """Three nodes, each with images, a key and a policy that trusts the three keys."""

    def __init__(self, folder: Path, run_inline: InlineRun) -> None:
        self._folder, self._run = folder, run_inline
        own_sites.write(folder / "images", SITES, 60)
        (folder / "keys").mkdir()
        self.keys: list[Any] = []
        trusted = []
        for site in SITES:
            public, private = sorted(credentials.make_node(folder / "keys", site), key=lambda path: path.suffix)[::-1]
            self.keys.append(node_key.serve(private))
            key: Any = serialization.load_ssh_public_key(public.read_bytes())
            trusted.append(identity.fingerprint(key))
        self._policy = folder / "policy.yaml"
        self._policy.write_text(f"secure_sums: {{nodes: 3, trusted: {json.dumps(trusted)}}}\n")
        self._policy.chmod(0o600)

    def grid(self, change: Mapping[str, Any]) -> Any:
        """Return a maker of a grid whose nodes have their keys; ``change`` replaces entries of messages with shares."""
        keys = self.keys

        class Grid(ListeningGrid):
            def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
                replies: list[Message] = []
                for message in messages:
                    config: Any = message.content.config_records["config"]
                    if config.get(names.SECURE_STAGE) == "shares":
                        config.update({key: of(config[key]) for key, of in change.items()})
                    node_key._asked = keys[message.metadata.dst_node_id - 1000]
                    replies += super().send_and_receive([message], timeout=timeout)
                return replies

        def nodes(*args: Any) -> Any:
            grid = Grid(*args)
            for i, site in enumerate(SITES):
                given = {
                    "domain": site, "data-dir": str(self._folder / "images" / site), "partition-id": i,
                    "policy": str(self._policy),
                }  # fmt: skip
                grid._contexts[1000 + i] = make_context(1000 + i, given, {})
            return grid

        return nodes

    def run(self, rounds: int, **change: Any) -> Any:
        return self._run(
            method="fedproto", dataset="folders", data_dir=str(self._folder / "images"), nodes=3, rounds=rounds,
            set=SUMS, grid=self.grid(change),
        )  # fmt: skip


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sites:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    monkeypatch.setattr(node_key, "_asked", None)
    monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
    return Sites(tmp_path, run_inline)


def test_strict_nodes_that_trust_each_other_send_masked_sums_and_no_counts(sites: Sites, tmp_path: Path) -> None:
    run = sites.run(2)
    assert [line["left_out"] for line in run.rounds] == [[], []]
    assert set(run.rounds[-1]["accuracy"]) == set(SITES)
    logs = sorted((tmp_path / "state").glob("*/out.jsonl"))
    assert len(logs) == 3
    received = [json.loads(line) for line in (run.folder / RECEIVED_FILE).read_text().splitlines()]
    for node_id, log in enumerate(logs, 1000):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        trained = {line["name"] for line in lines if line["message"] == "train" and line["kind"] == "array"}
        assert trained == {"arrays/masked"}  # no weights, no prototypes, no counts
        assert not any("loss" in line["name"] for line in lines if line["message"] == "train" and "name" in line)
        assert not any(line.get("name", "").startswith("counts/") for line in lines)  # the policy keeps them
        left = [(line.get("name"), line["bytes"], line.get("sha256")) for line in lines]
        came = [(x.get("name"), x["bytes"], x.get("sha256")) for x in received if x["node_id"] == node_id]
        assert left == came and len(left) > 20  # what the server wrote down is what the node wrote down


def test_nodes_refuse_a_sum_with_a_node_that_has_no_key(sites: Sites) -> None:
    sites.keys[2] = None
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

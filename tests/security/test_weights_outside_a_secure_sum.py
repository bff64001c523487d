"""A server asks a node whose owner says ``weights: masked`` for its weights in the open."""

from pathlib import Path

import pytest
from real_node import AppOfNode

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import state_folder
from fedshift_core.wire import names

MASKED = "federation.secure_sums=on federation.secure_sums_nodes=3"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeFolder:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    config = resolve({"set": "dataset.domains=[scan,sketch] allocation.share=0.2"})
    return exporting.export(config, 2, tmp_path / "in")[0]


@pytest.fixture
def policy(tmp_path: Path) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text("weights: masked\n")
    file.chmod(0o600)
    return str(file)


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_run_without_secure_sums_is_refused(kind: str, folder: NodeFolder, policy: str) -> None:
    reply = AppOfNode(folder, policy=policy).ask(kind, **({"domains": ["scan"]} if kind == "evaluate" else {}))
    assert reply.has_error() and reply.error.code == names.DECLINED
    assert "federation.secure_sums=off, allowed is on: weights=masked" in reply.error.reason
    assert "\n" not in reply.error.reason


def test_a_message_without_masks_is_refused_in_a_run_with_them(folder: NodeFolder, policy: str) -> None:
    node = AppOfNode(folder, MASKED, policy=policy)
    assert not node.ask("query").has_error()
    reply = node.ask("train")
    assert reply.has_error() and "a message to train lacks secure-nodes" in reply.error.reason, reply

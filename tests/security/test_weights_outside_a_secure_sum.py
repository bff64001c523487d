"""A server asks a node whose owner says ``weights: masked`` for its weights in the open."""

from collections.abc import Callable

import pytest
from guarded_node import refused, run

from fedshift.site.deploy.exporting import NodeFolder


@pytest.mark.parametrize("kind", ["query", "train", "evaluate"])
def test_a_run_without_secure_sums_is_refused(kind: str, folder: NodeFolder, policy: Callable[..., str]) -> None:
    node = run(folder, policy=policy(weights="masked"))
    reason = refused(node, kind, **({"domains": ["scan"]} if kind == "evaluate" else {}))
    assert "federation.secure_sums=off, allowed is on: weights=masked" in reason and "\n" not in reason


def test_a_message_without_masks_is_refused_in_a_run_with_them(folder: NodeFolder, policy: Callable[..., str]) -> None:
    masked = "federation.secure_sums=on federation.secure_sums_nodes=3"
    node = run(folder, masked, policy=policy(weights="masked"))
    assert not node.ask("query").has_error()
    assert "a message to train lacks secure-nodes" in node.ask("train").error.reason

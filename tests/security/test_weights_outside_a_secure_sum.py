"""A server asks a node whose owner says ``weights: masked`` for its weights in the open."""

from guarded_node import Owner, run

from fedshift.site.deploy.exporting import NodeFolder


def test_a_message_without_masks_is_refused_in_a_run_with_them(folder: NodeFolder, policy: Owner) -> None:
    masked = "federation.secure_sums=on federation.secure_sums_nodes=3"
    node = run(folder, masked, policy=policy(weights="masked"))
    assert not node.ask("query").has_error()
    assert "a message to train lacks secure-nodes" in node.ask("train").error.reason

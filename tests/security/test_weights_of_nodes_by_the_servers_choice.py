"""A server would have nodes multiply their vectors by 1, .01, .01, .01: the sum is then the first node's own update."""

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import Message, MessageType
from guarded_node import run
from real_node import AppOfNode
from secure_sites import FOUR, LAST_LOST, MakeSites, real_nodes
from support import InlineRun, listening

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.features.secure_sums.node import SecureSumsOnNode
from fedshift_core.errors import FederationError
from fedshift_core.secure import crypto
from fedshift_core.secure.group import TRAINING
from fedshift_core.secure.statement import Statement
from fedshift_core.wire import names


def dealt(node: AppOfNode, given: list[int], server_round: int = 1, **more: Any) -> str:
    """Return why a node deals no shares in a sum of four, of which the server plays three of so many images."""

    def ask(stage: str, **more: Any) -> Message:
        at = {names.SECURE_PURPOSE: TRAINING, names.SECURE_STAGE: stage}
        return node.ask(MessageType.QUERY, server_round, **at | more)

    own: Any = ask("keys").content.config_records["config"]
    statement = own[names.SECURE_STATEMENTS][0]
    played = [replace(Statement.read(statement, 10), images=images).written() for images in given]
    keys = [own[names.SECURE_KEYS], *([crypto.public_of(crypto.new_secret()) for _ in range(2)] for _ in given)]
    sums = {names.SECURE_NODES: [0, 1, 2, 3], names.SECURE_STATEMENTS: [statement, *played]}
    pairs = dict(zip((names.SECURE_KEYS, names.SECURE_MASK_KEYS), map(list, zip(*keys, strict=True)), strict=True))
    reply = ask("shares", **sums | pairs | more)
    return reply.error.reason if reply.has_error() else ""


def test_a_node_works_its_weight_out_itself_and_refuses_to_be_alone(
    folder: NodeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_nodes(monkeypatch, folder.path.parent)
    node = run(folder, "federation.secure_sums=on dataset.domains=[scan,texture,street,sketch]", policy="open")
    assert dealt(node, [180] * 3) == ""
    told = {"secure-factors": [1.0, 0.01, 0.01, 0.01]}
    assert "secure-factors=[1.0, 0.01, 0.01, 0.01]" in dealt(node, [180] * 3, 2, **told)
    assert "3 are needed (federation.secure_sums_least)" in dealt(node, [1, 1, 1], 3)


def tamper(message: Any) -> None:
    """Tell each node that the others have one image each, and leave its own statement as it is."""
    config = message.content.config_records["config"]
    if config.get(names.SECURE_STAGE) == "shares":
        own = config[names.SECURE_NODES].index(config[names.NODE_INDEX])
        said = config[names.SECURE_STATEMENTS]
        few = [Statement(1, Statement.read(data, 10).classes).written() for data in said]
        config[names.SECURE_STATEMENTS] = [*few[:own], said[own], *few[own + 1 :]]


@pytest.mark.parametrize(("least", "why"), [(1, "all nodes of the secure sum: "), (3, "0 nodes dealt their shares")])
def test_statements_that_differ_from_node_to_node_make_no_sum(least: int, why: str, run_inline: InlineRun) -> None:
    """Each node is told that it alone has images; where that is allowed (``least``), masks do not cancel."""
    given = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 evaluate.figures=false"
    given += " federation.secure_sums=on"
    with pytest.raises(FederationError, match=why):
        run_inline(f"rounds=1 {given} federation.secure_sums_least={least}", grid=listening(before=tamper))


def test_unequal_nodes_are_refused_before_training_with_what_helps(sites: MakeSites) -> None:
    three = sites(held={"north": ("bar", "cross")})
    kinds: Any = []
    grid = listening(before=lambda message: kinds.append(message.metadata.message_type))
    equal = "aggregation.weights=equal"
    for more, why in (
        ("", "training.*3 are needed .federation.secure_sums_least.*aggregation.weights=equal"),
        (f"{equal} model.name=cnn_bn evaluate.bn=[retaken,averaged]", "secure sums .answers.*evaluate.bn_images"),
        ("federation.secure_sums_least=2", "secure_sums.least=3"),
    ):
        with pytest.raises(FederationError, match=f"(?s){why}"):
            three.run(1, method="fedavg", more=more, base=grid)
        assert MessageType.TRAIN not in kinds or "answers" in why
    assert three.run(1, method="fedavg", more=equal).rounds[0]["secure_sums"]["nodes"] == 3


def test_nodes_that_are_lost_do_not_leave_one_alone(sites: MakeSites) -> None:
    """The server drops nodes after the deal: those that arrived must count as so many nodes too."""
    with pytest.raises(FederationError, match="the 3 nodes of a sum hide each other as"):
        sites(FOUR).run(1, base=LAST_LOST, more="federation.secure_sums_least=3.5")


def test_losses_weigh_as_weights_do_and_not_by_images_that_nothing_bounds(
    sites: MakeSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By images the loss of a node with nearly all of them would be the sum's, with any ``aggregation.weights``."""
    losses: Any = []
    masks = SecureSumsOnNode.on_train

    def spy(self: Any, call: Any, trains: Any) -> Any:
        def noted(call: Any) -> Any:
            losses.append((reply := trains(call)).metrics[names.LOSS])
            return reply

        return masks(self, call, noted)

    monkeypatch.setattr(SecureSumsOnNode, "on_train", spy)
    run = sites(held={"north": ("bar",)}).run(1, method="fedavg", more="aggregation.weights=equal")
    assert len(losses) == 3 and max(losses) - min(losses) > 0.01
    assert run.rounds[0]["losses"]["loss"] == pytest.approx(sum(losses) / 3, abs=1e-5)

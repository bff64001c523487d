"""A server would have nodes multiply their vectors by 1, .01, .01, .01: the sum is then the first node's own update."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import MessageType
from real_node import AppOfNode
from secure_sites import Sites, real_nodes
from support import InlineRun, ListeningGrid, refusal_of

from fedshift.site.deploy.exporting import export
from fedshift_app.config.resolving import resolve
from fedshift_app.features.secure_sums.node import SecureSumsOnNode
from fedshift_clients.features import Call, Next, Reply
from fedshift_core.errors import FederationError
from fedshift_core.secure import crypto
from fedshift_core.secure.group import TRAINING
from fedshift_core.secure.statement import Statement, check_effective, effective
from fedshift_core.wire import names
from fedshift_strategies import weighting

ON = "federation.secure_sums=on"


class Victim(AppOfNode):
    """A real node in a sum of four, in which the server plays the others."""

    def refusal(self, given: list[int], **more: Any) -> str:
        """Return why the node deals no shares where the others state so many images; empty where it deals."""
        of_round = {key: value for key, value in more.items() if key == "server_round"}
        said = self.ask(MessageType.QUERY, **{names.SECURE_STAGE: "keys", names.SECURE_PURPOSE: TRAINING}, **of_round)
        own: Any = said.content.config_records["config"]
        classes = Statement.read(own[names.SECURE_STATEMENTS][0], 10).classes
        others = [[crypto.public_of(crypto.new_secret()) for _ in range(2)] for _ in given]
        keys = [own[names.SECURE_KEYS], *others]
        reply = self.ask(MessageType.QUERY, **{
            names.SECURE_STAGE: "shares", names.SECURE_PURPOSE: TRAINING, names.SECURE_NODES: [0, 1, 2, 3],
            names.SECURE_KEYS: [key[0] for key in keys], names.SECURE_MASK_KEYS: [key[1] for key in keys],
            names.SECURE_STATEMENTS: [
                own[names.SECURE_STATEMENTS][0], *(Statement(images, classes).written() for images in given)
            ],
        } | more)  # fmt: skip
        if not reply.has_error():
            assert len(reply.content.config_records["config"][names.SECURE_TEXTS]) == 3  # type: ignore[arg-type]
            return ""
        return reply.error.reason


@pytest.fixture
def victim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Victim:
    real_nodes(monkeypatch, tmp_path)
    (folder, *_) = export(resolve({"experiment": "handwritten", "set": "allocation.share=0.2"}), None, tmp_path / "n")
    return Victim(folder, ON, policy="open")


def test_a_node_works_its_weight_out_itself_and_takes_none_from_the_server(victim: Victim) -> None:
    own = 100
    assert victim.refusal([own] * 3) == ""
    factors = "secure-factors"
    text = victim.refusal([own] * 3, server_round=2, **{factors: [1.0, 0.01, 0.01, 0.01]})
    assert f"{factors}=[1.0, 0.01, 0.01, 0.01], but a message to query has no such key" in text


def test_a_node_refuses_statements_by_which_it_would_be_alone(victim: Victim) -> None:
    text = victim.refusal([1, 1, 1])
    assert "by their weights the 4 nodes of a sum hide each other as 1." in text
    assert "3 are needed (federation.secure_sums_least)" in text


class Tampering(ListeningGrid):
    """Tells each node that the others have one image each, and leaves its own statement as it is."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        requests = list(messages)
        for message in requests:
            config: Any = message.content.config_records["config"]
            if config.get(names.SECURE_STAGE) == "shares":
                stated, index = config[names.SECURE_STATEMENTS], config[names.NODE_INDEX]
                few = [Statement(1, Statement.read(data, 10).classes).written() for data in stated]
                place = config[names.SECURE_NODES].index(index)
                config[names.SECURE_STATEMENTS] = [*few[:place], stated[place], *few[place + 1 :]]
        return super().send_and_receive(requests, timeout=timeout)


@pytest.mark.parametrize("least", [1, 3])
def test_statements_that_differ_from_node_to_node_make_no_sum(least: int, run_inline: InlineRun) -> None:
    """Each node is told that it alone has images; where that is allowed (``least``), masks do not cancel."""
    given = "train.epochs=1 allocation.share=0.05 evaluate.figures=false federation.secure_sums=on"
    with pytest.raises(FederationError) as caught:
        run_inline(rounds=1, grid=Tampering, set=f"{given} federation.secure_sums_least={least}")
    text = str(caught.value)
    assert ("0 nodes dealt their shares" if least == 3 else "all nodes of the secure sum: ") in text


def test_unequal_nodes_are_refused_before_training_with_what_helps(
    tmp_path: Path, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, held={"north": ("bar", "cross")})
    trained: list[int] = []

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            requests = list(messages)
            trained.extend(1 for message in requests if message.metadata.message_type == MessageType.TRAIN)
            return super().send_and_receive(requests, timeout=timeout)

    with pytest.raises(FederationError) as caught:
        sites.run(1, base=Grid, method="fedavg", more="")
    text = str(caught.value).splitlines()[0]
    assert text.startswith(
        "round 1: secure sums (training): by their weights the 3 nodes of a sum hide each other as 2.9"
    )
    assert "3 are needed (federation.secure_sums_least)" in text
    assert "aggregation.weights=equal where weights are averaged, more nodes, or a lower key" in text and not trained
    run = sites.run(1, method="fedavg", more="aggregation.weights=equal")
    assert run.rounds[0]["secure_sums"]["nodes"] == 3
    answers = "model.name=cnn_bn evaluate.bn=[retaken,averaged]"
    with pytest.raises(FederationError) as caught:
        sites.run(1, method="fedavg", more=f"aggregation.weights=equal {answers}")
    assert "secure sums (answers)" in str(caught.value) and "a smaller evaluate.bn_images" in str(caught.value)
    with pytest.raises(FederationError) as caught:
        sites.run(1, method="fedavg", more="federation.secure_sums_least=2")
    assert "required is at least secure_sums.least=3" in str(caught.value)


def test_nodes_that_are_lost_do_not_leave_one_alone(tmp_path: Path, run_inline: InlineRun,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """The server drops nodes after the deal: those that arrived must count as so many nodes too."""
    config = resolve({"experiment": "handwritten", "set": f"{ON} federation.secure_sums_least=3.2"})
    stated = [Statement(images, (True,)) for images in (50, 50, 50, 20)]
    factors = weighting.factors(config, stated, TRAINING, alike=False)
    assert effective(factors) >= 3.2 > effective(factors[1:])
    assert "3.2 are needed" in refusal_of(Exception, check_effective, factors[1:], 3.2)
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, ("north", "south", "west", "east"))

    class Loses(ListeningGrid):
        def pass_on(self, message: Any, reply: Any) -> Any:
            trains = message.metadata.message_type == MessageType.TRAIN
            return None if trains and message.content.config_records["config"][names.NODE_INDEX] == 3 else reply

    with pytest.raises(FederationError) as caught:
        sites.run(1, base=Loses, more="federation.secure_sums_least=3.5")
    assert "the 3 nodes of a sum hide each other as" in str(caught.value)


def test_losses_weigh_as_weights_do_and_not_by_images_that_nothing_bounds(
    tmp_path: Path, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By images the loss of a node with nearly all of them would be the sum's, with any ``aggregation.weights``."""
    real_nodes(monkeypatch, tmp_path)
    losses: list[float] = []
    masks = SecureSumsOnNode.on_train

    def spy(self: SecureSumsOnNode, call: Call, trains: Next) -> Reply:
        def noted(call: Call) -> Reply:
            reply = trains(call)
            losses.append(float(reply.metrics[names.LOSS]))
            return reply

        return masks(self, call, noted)

    monkeypatch.setattr(SecureSumsOnNode, "on_train", spy)
    sites = Sites(tmp_path, run_inline, held={"north": ("bar",)})
    run = sites.run(1, method="fedavg", more="aggregation.weights=equal")
    assert len(losses) == 3 and max(losses) - min(losses) > 0.01
    assert run.rounds[0]["losses"]["loss"] == pytest.approx(sum(losses) / 3, abs=1e-5)

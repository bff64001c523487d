"""A server passes on other statements than nodes made: of the node itself, of another one, and of itself as a node."""

from pathlib import Path
from typing import Any

import pytest
from secure_sites import SITES, Sites, real_nodes
from support import InlineRun, ListeningGrid

from fedshift_core.errors import FederationError
from fedshift_core.secure.statement import Statement
from fedshift_core.wire import names

MORE = "method.share_weights=true federation.secure_sums_least=1"


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sites:
    real_nodes(monkeypatch, tmp_path)
    return Sites(tmp_path, run_inline, sums="nodes: 3, least: 1")


def few(data: bytes) -> bytes:
    return Statement(6, Statement.read(data, 3).classes).written()


def left_out(sites: Sites, caplog: pytest.LogCaptureFixture, **change: Any) -> list[str]:
    """Return why each node deals no shares."""
    with pytest.raises(FederationError) as caught:
        sites.run(1, more=MORE, **change)
    assert "0 nodes dealt their shares" in str(caught.value)
    return [line for line in caplog.text.splitlines() if "left out: secure sums: refused" in line]


def test_a_node_refuses_what_is_said_to_be_its_own(sites: Sites, caplog: pytest.LogCaptureFixture) -> None:
    lines = left_out(sites, caplog, **{names.SECURE_STATEMENTS: lambda said: [few(data) for data in said]})
    assert len(lines) == 3
    assert all("what this node states of its images is not among the statements of the sum" in line for line in lines)


def test_the_others_see_by_its_signature_that_a_node_has_not_said_so(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    """The first node weighs as before, the two others nearly nothing; each of them is told the truth of itself."""

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            requests = list(messages)
            for message in requests:
                config: Any = message.content.config_records["config"]
                if config.get(names.SECURE_STAGE) == "shares":
                    said, own = config[names.SECURE_STATEMENTS], config[names.NODE_INDEX]
                    config[names.SECURE_STATEMENTS] = [
                        data if place in (0, own) else few(data) for place, data in enumerate(said)
                    ]
            return super().send_and_receive(requests, timeout=timeout)

    lines = left_out(sites, caplog, base=Grid)
    assert len(lines) == 3 and all("has a signature that is not right" in line for line in lines)


def test_classes_that_another_node_is_said_to_hold_are_signed_too(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    def without(said: list[Any]) -> list[Any]:
        read = Statement.read(said[1], 3)
        return [said[0], Statement(read.images, (False, *read.classes[1:])).written(), said[2]]

    lines = left_out(sites, caplog, **{names.SECURE_STATEMENTS: without})
    assert sum("node 1 of the secure sum has a signature that is not right" in line for line in lines) == 2


@pytest.mark.parametrize("images", [10, 10**6])
def test_a_node_that_states_other_images_than_it_announced_is_left_out(
    images: int, run_inline: InlineRun, caplog: pytest.LogCaptureFixture
) -> None:
    """It would weigh by another number than it is averaged by; the sum is of the others."""

    class Grid(ListeningGrid):
        def pass_on(self, message: Any, reply: Any) -> Any:
            config: Any = message.content.config_records["config"]
            if config.get(names.SECURE_STAGE) == "keys" and config[names.NODE_INDEX] == 1:
                said: Any = reply.content.config_records["config"]
                classes = Statement.read(said[names.SECURE_STATEMENTS][0], 10).classes
                said[names.SECURE_STATEMENTS] = [Statement(images, classes).written()]
            return reply

    given = "train.epochs=1 allocation.share=0.05 evaluate.figures=false federation.secure_sums=on"
    run = run_inline(rounds=1, grid=Grid, set=given)
    (line,) = run.rounds[0]["left_out"]
    assert "node 1 (texture): secure sums: it states other images than it announced before round 1" in line
    assert run.rounds[0]["nodes"] == [0, 2, 3] and len(SITES) == 3

"""A server passes on other statements than nodes made: of the node itself, of another one, and of itself as a node."""

from dataclasses import replace
from typing import Any

import pytest
from secure_sites import MakeSites
from support import InlineRun, listening

from fedshift_core.errors import FederationError
from fedshift_core.secure.statement import Statement
from fedshift_core.wire import names

SAID = names.SECURE_STATEMENTS


def few(data: bytes) -> bytes:
    return replace(Statement.read(data, 3), images=6).written()


def without_a_class(said: list[Any]) -> list[Any]:
    read = Statement.read(said[1], 3)
    return [said[0], replace(read, classes=(False, *read.classes[1:])).written(), said[2]]


def few_of_two(message: Any) -> None:
    """The first node weighs as before, the two others nearly nothing; each of them is told the truth of itself."""
    config = message.content.config_records["config"]
    if config.get(names.SECURE_STAGE) == "shares":
        true = (0, config[names.NODE_INDEX])
        config[SAID] = [data if place in true else few(data) for place, data in enumerate(config[SAID])]


@pytest.mark.parametrize(
    ("change", "why", "number"),
    [
        ({SAID: lambda said: [few(data) for data in said]}, "is not among the statements of the sum", 3),
        ({"base": listening(before=few_of_two)}, "has a signature that is not right", 3),
        ({SAID: without_a_class}, "node 1 of the secure sum has a signature that is not right", 2),
    ],
    ids=["of itself", "of another one", "of its classes"],
)
def test_nodes_deal_no_shares_where_another_statement_is_passed_on(
    change: Any, why: str, number: int, sites: MakeSites, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(FederationError, match="0 nodes dealt their shares"):
        sites(sums="nodes: 3, least: 1").run(
            1, more="method.share_weights=true federation.secure_sums_least=1", **change
        )
    refused = [line for line in caplog.text.splitlines() if "left out: secure sums: refused" in line]
    assert len(refused) == 3 and sum(why in line for line in refused) == number


@pytest.mark.parametrize("images", [10, 10**6])
def test_a_node_that_states_other_images_than_it_announced_is_left_out(images: int, run_inline: InlineRun) -> None:
    """It would weigh by another number than it is averaged by; the sum is of the others."""

    def lie(message: Any, reply: Any) -> Any:
        config = message.content.config_records["config"]
        if config.get(names.SECURE_STAGE) == "keys" and config[names.NODE_INDEX] == 1:
            said = reply.content.config_records["config"]
            said[SAID] = [replace(Statement.read(said[SAID][0], 10), images=images).written()]
        return reply

    given = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 evaluate.figures=false"
    given += " federation.secure_sums=on"
    line = run_inline(f"rounds=1 {given}", grid=listening(lie)).rounds[0]
    assert line["nodes"] == [0, 2, 3] and "node 1 (sketch): secure sums: it states other" in line["left_out"][0]

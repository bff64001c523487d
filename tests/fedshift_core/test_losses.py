"""A run names its missing nodes, rounds and images; numbers over domains are then missing, too."""

from typing import Any

import pytest
from refusals import worded

from fedshift_core.losses import Losses, Overall, unscored

DOMAINS = {"scan": 90.0, "texture": 40.0, "street": 50.0}
NODES = [{"index": 0, "domain": "scan"}, {"index": 1, "domain": "texture"}]


def of(**more: Any) -> Losses:
    return Losses.of({"averaged_rounds": 3, "domains": DOMAINS, "nodes": NODES} | more)


def test_a_complete_run_lost_nothing() -> None:
    assert (of().lines(), of().text(), of().mark("scan")) == ([], "", "")
    assert of().overall(DOMAINS) == Overall(60.0, pytest.approx(26.4575, abs=1e-4), 40.0, "texture")


def test_a_cell_over_fewer_rounds_or_images_says_so_and_nothing_is_averaged_over_fewer_domains() -> None:
    losses = of(lost={"2": [1], "3": [1, 7]}, unscored={"texture": [2, 3]}, missing_tests={"3": {"scan": [40, 60]}})
    named = (["node 1 (texture)", "2, 3"], ["node 7", "3"], ["texture", "1 of 3"], ["scan", "40 of 60", "1 of 3"])
    for line, names in zip(losses.lines(), named, strict=True):
        worded(line, *names)
    assert [losses.mark(domain) for domain in DOMAINS] == ["40 of 60 images", "1 of 3 rounds", ""]
    assert losses.overall(DOMAINS) == Overall(None, None, None, None)


def test_results_of_earlier_versions_lack_all_rounds_of_a_domain_without_a_score() -> None:
    losses = of(domains=DOMAINS | {"street": None})
    (line,) = losses.lines()
    worded(line, "street", "0 of 3")
    assert losses.mark("street") == ""  # the cell says that it is missing
    assert of(domains=dict.fromkeys(DOMAINS)).lines() == []  # evaluate.test=false: nobody was asked


def test_rounds_without_a_score_are_those_in_which_others_have_one() -> None:
    accuracies = {4: {"a": 1.0, "b": None}, 5: {"a": 1.0, "b": 2.0}, 6: {"a": None, "b": None}}
    assert unscored(accuracies) == {"a": [6], "b": [4, 6]}
    assert unscored({1: {"a": None}}) == unscored({}) == {}

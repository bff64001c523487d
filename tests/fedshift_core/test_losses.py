"""A run names its missing nodes, rounds and images; numbers over domains are then missing, too."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedshift_core.accuracies import average, spread, worst
from fedshift_core.losses import Losses, Overall, unscored

DOMAINS = {"scan": 90.0, "texture": 40.0, "street": 50.0}
NODES = [{"index": 0, "domain": "scan"}, {"index": 1, "domain": "texture"}]


def results(**more: Any) -> dict[str, Any]:
    return {"averaged_rounds": 3, "domains": DOMAINS, "nodes": NODES} | more


def test_a_complete_run_lost_nothing() -> None:
    losses = Losses.of(results())
    assert (losses.lines(), losses.text(), losses.mark("scan")) == ([], "", "")
    assert losses.overall(DOMAINS) == Overall(60.0, pytest.approx(26.4575, abs=1e-4), 40.0, "texture")


def test_a_cell_over_fewer_rounds_or_images_says_so_and_nothing_is_averaged_over_fewer_domains() -> None:
    losses = Losses.of(
        results(lost={"2": [1], "3": [1, 7]}, unscored={"texture": [2, 3]}, missing_tests={"3": {"scan": [40, 60]}})
    )
    assert losses.lines() == [
        "node 1 (texture) gave no part, or not all of it, in round 2, 3",
        "node 7 gave no part, or not all of it, in round 3",
        "texture has a score in 1 of 3 averaged rounds: AVG, STD and WORST are missing",
        "scan: the accuracy is of 40 of 60 test images, as not all its nodes were scored, in 1 of 3 averaged rounds",
    ]
    assert [losses.mark(domain) for domain in DOMAINS] == ["40 of 60 images", "1 of 3 rounds", ""]
    assert losses.overall(DOMAINS) == Overall(None, None, None, None)


def test_results_of_earlier_versions_lack_all_rounds_of_a_domain_without_a_score() -> None:
    losses = Losses.of(results(domains=DOMAINS | {"street": None}))
    assert losses.lines() == ["street has a score in 0 of 3 averaged rounds: AVG, STD and WORST are missing"]
    assert losses.mark("street") == ""  # the cell says that it is missing
    assert Losses.of(results(domains=dict.fromkeys(DOMAINS))).lines() == []  # evaluate.test=false: nobody was asked


@given(st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 100), max_size=3))
def test_no_number_is_over_fewer_domains(domains: dict[str, float | None]) -> None:
    if None in domains.values():
        assert average(domains) is spread(domains) is worst(domains) is None
    if len(domains) == 1 and None not in domains.values():
        assert (average(domains), spread(domains), worst(domains)) == (
            pytest.approx(next(iter(domains.values()))),
            None,
            None,
        )


def test_rounds_without_a_score_are_those_in_which_others_have_one() -> None:
    accuracies = {4: {"a": 1.0, "b": None}, 5: {"a": 1.0, "b": 2.0}, 6: {"a": None, "b": None}}
    assert unscored(accuracies) == {"a": [6], "b": [4, 6]}
    assert unscored({1: {"a": None}}) == unscored({}) == {}

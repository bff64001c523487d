"""``--unseen``: leave-one-out runs as one row, each domain scored by the run whose nodes did not hold it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.table import Numbers
from fedshift_core.errors import ConfigError

Keep = Callable[..., Path]
THREE = ("scan", "street", "texture")
#: Accuracies on the domain that was left out, which stand out among those of domains that were trained on: 99.
LEFT_OUT = {"scan": 30.0, "street": 40.0, "texture": 20.0}


@pytest.fixture
def keep(run: Callable[..., Path]) -> Keep:
    """Return a function that writes a finished run of three domains, which holds ``out`` out."""

    def kept(method: str, out: str, *, seed: int = 0, gain: float = 0.0, given: str = "", counts: str = "",
             **more: Any) -> Path:  # fmt: skip
        counts = counts or "{" + ", ".join(f"{domain}: 2" for domain in THREE if domain not in out) + "}"
        settings = f"dataset.domains=[scan,street,texture] 'allocation.held_out={out}' 'allocation.counts={counts}'"
        domains = {domain: LEFT_OUT[domain] + gain if domain in out else 99.0 for domain in THREE}
        of = {"n": 500, "accuracy": 1.0, "balanced_accuracy": 1.0, "macro_f1": 1.0, "auc": None, "ece": 1.0}
        results = {
            "final": {name: value + 1 for name, value in domains.items()},
            "figures": {"round": 3, "domains": dict.fromkeys(THREE, of)},
            "weights_sha256": f"{method}{out}{given}{counts}{seed}{float(gain)}",
            "nodes": [{"domain": name, "class_counts": [1]} for name in THREE if name not in out for _ in range(2)],
        }  # fmt: skip
        return run(method, seed, domains=domains, given=f"{settings} {given}", **results | more)

    return kept


def in_turn(keep: Keep, method: str, gains: dict[int, float], **more: Any) -> list[Path]:
    return [keep(method, f"[{out}]", seed=seed, gain=gain, **more) for seed, gain in gains.items() for out in THREE]


def unseen(runs: list[Path], **options: Any) -> Numbers:
    return compare(runs, held_out=True, **options).numbers


def test_each_domain_comes_from_the_run_whose_nodes_did_not_hold_it(keep: Keep) -> None:
    """Whatever was run first."""
    runs = in_turn(keep, "fedavg", {0: 0, 1: 2, 2: 4}) + in_turn(keep, "i2pfl", {0: 3, 1: 4, 2: 8})
    numbers = unseen(runs[::-1])
    assert numbers.columns == (*THREE, "AVG", "STD", "WORST")
    assert [(row.label, row.group, row.worst) for row in numbers.rows] == [
        ("fedavg", "", "texture"), ("i2pfl", "", "texture")
    ]  # fmt: skip
    for row, gains in zip(numbers.rows, ([0, 2, 4], [3, 4, 8]), strict=True):
        assert [*row.by_seed] == [0, 1, 2]
        for gain, scores in zip(gains, row.by_seed.values(), strict=True):
            expected = {domain: accuracy + gain for domain, accuracy in LEFT_OUT.items()} | {"AVG": 30 + gain}
            assert {name: scores[name] for name in expected} == pytest.approx(expected)
    assert numbers.rows[1].difference.difference.mean == pytest.approx(3)
    assert "of domains that no node held" in numbers.title and not numbers.warnings


def test_a_domain_that_a_seed_lacks_is_missing_and_no_average_is_taken(keep: Keep) -> None:
    runs = [*in_turn(keep, "fedavg", {0: 0}), keep("fedavg", "[scan]", seed=1), keep("fedavg", "[street]", seed=1)]
    numbers = unseen(runs)
    (row,) = numbers.rows
    assert (row.label, row.by_seed[1]["texture"], row.by_seed[1]["AVG"]) == ("fedavg", None, None)
    assert any(note.startswith("fedavg, seed 1: no texture") for note in numbers.notes)
    # No warning of other images: fedavg's seed 1 has fewer nodes.
    assert not unseen([*runs, *in_turn(keep, "ga", {1: 1})]).warnings
    both = unseen([keep("fedavg", "[scan,texture]")])  # two at once are two columns of one run
    assert both.columns[:2] == ("scan", "texture") and both.rows[0].by_seed[0]["AVG"] == 25


def test_runs_that_do_not_belong_together_are_refused(keep: Keep) -> None:
    none = keep("fedavg", "[]", counts="{scan: 2, street: 2, texture: 2}")
    with refused(ConfigError, "--unseen", none.name):
        unseen([keep("fedavg", "[scan]"), none])
    with refused(ConfigError, "seed 0 comes twice, without scan, with other held-out domains"):
        unseen([keep("fedavg", "[scan]"), keep("fedavg", "[scan,street]")])
    for score, named in (("clients", "--unseen: the measures of --score clients"), ("bn=own", "was not scored so")):
        with refused(ConfigError, named):
            unseen(in_turn(keep, "fedavg", {0: 0}), score=score)
    fewer = keep("fedavg", "[texture]", counts="{scan: 2, street: 1}")
    with refused(ConfigError, "--unseen: allocation.counts.street is 2"):
        unseen([*in_turn(keep, "fedavg", {0: 0}), fewer])

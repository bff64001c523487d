"""``--score bn=WAY``: a run that cannot have the way is left out by name, one that was not scored so is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedshift.lab.tables.compare import compare
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

Keep = Callable[..., Path]
TWO = "dataset.domains=[scan,street]"


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Return a function that writes a finished run of two domains as one file, also scored by ``ways``."""

    def kept(method: str, settings: str = "", *, seed: int = 0, network: str = "cnn_bn", **ways: Any) -> Path:
        given = f"{TWO} model.name={network} {settings}"
        config = resolve({"experiment": "handwritten", "method": method, "seed": seed, "set": given})
        domains = {"scan": 60.0, "street": 40.0}
        summary = {
            "method": method, "dataset": "handwritten", "seed": seed, "averaged_rounds": 5, "domains": domains,
            "evaluated": "global model", "final": domains, "best_test": {"round": 3, "domains": domains},
            "others": {f"bn={way}": value for way, value in ways.items()}, "scored_with": config.evaluate.bn[0],
            "weights_sha256": f"{method}{settings}{seed}", "nodes": [{"domain": "scan", "class_counts": [1]}] * 4,
            "config": {"resolved": config.model_dump(mode="json"), "engine": "inline", "versions": {"torch": "1"}},
        }  # fmt: skip
        file = tmp_path / f"{method}-{len(list(tmp_path.iterdir()))}.json"
        file.write_text(json.dumps(summary))
        return file

    return kept


def scored(scan: float | None, street: float | None) -> dict[str, float | None]:
    return {"scan": scan, "street": street}


def left_out(notes: tuple[str, ...]) -> list[str]:
    return [note for note in notes if note.startswith("left out")]


# Who keeps BatchNorm to itself: FedBN by its setting, Local as nothing travels, FedProto as prototypes alone do.
PRIVATE = [("fedbn", ""), ("local", ""), ("fedproto", ""), ("fedprox", "model.bn=local")]


def test_a_table_of_all_methods_leaves_out_who_keeps_batchnorm_to_itself(keep: Keep) -> None:
    runs = [
        keep("fedavg", retaken=scored(80, 70)),
        keep("fedproto", "method.share_weights=true", retaken=scored(50, 30)),
    ]
    numbers = compare([*runs, *(keep(method, settings) for method, settings in PRIVATE)], score="bn=retaken",
                    allow_different=True).numbers  # fmt: skip
    assert {row.method for row in numbers.rows} == {"fedavg", "fedproto"}
    (note,) = left_out(numbers.notes)
    for method, bn in (("fedbn", "local"), ("local", "average"), ("fedproto", "average"), ("fedprox", "local")):
        assert f"with {method} and model.bn={bn} BatchNorm stays on the nodes" in note
    assert note.startswith("left out, cannot be scored bn=retaken: ") and "fedproto share_weights=false" in note


def test_what_has_no_batchnorm_or_lets_none_out_is_left_out(keep: Keep) -> None:
    runs = [
        keep("fedavg", own=scored(80, 70), retaken=scored(81, 71)),
        keep("fedavg", "model.bn=freeze"),
        keep("fedavg", "model.bn=group"),
        keep("fedavg", network="cnn"),
        keep("fedavg", "privacy.name=local-dp", own=scored(1, 2)),
    ]
    for way, values in (("own", [[80, 70], [1, 2]]), ("retaken", [[81, 71]])):
        numbers = compare(runs, score=f"bn={way}", allow_different=True).numbers
        rows = [[row.by_seed[0][domain] for domain in ("scan", "street")] for row in numbers.rows]
        assert sorted(rows) == sorted(values)
        (note,) = left_out(numbers.notes)
        for why in ("(model.bn=freeze has no", "(model.bn=group has no", "(the network cnn has no BatchNorm)"):
            assert why in note
        assert ("privacy.name=local-dp lets no statistics" in note) == (way == "retaken")
        assert all(
            "[model.bn=" in part for part in note.split(": ", 1)[1].split("; ")
        )  # rows by name, with their group


@pytest.mark.parametrize("freeze", ["norm", "encoder"])
def test_what_has_all_its_batchnorm_frozen_is_left_out(keep: Keep, freeze: str) -> None:
    runs = [keep("fedavg", own=scored(80, 70)), keep("fedprox", f"model.projection=16 model.freeze={freeze}")]
    (note,) = left_out(compare(runs, score="bn=own", allow_different=True).numbers.notes)
    assert f"(model.freeze={freeze} freezes all its BatchNorm)" in note


@pytest.mark.parametrize("way", ["retaken", "own", "batch"])
def test_a_run_that_was_not_scored_so_is_refused_with_the_remedy(keep: Keep, way: str) -> None:
    runs = [keep("fedavg", **{way: scored(80, 70)}), keep("fedprox"), keep("local")]
    requested = rf"'evaluate.bn=\[averaged,{way}\]'"
    words = rf"--score bn={way}: fedprox-1 was not scored so, but can be, by a new run .*; --score bn shows.*"
    with pytest.raises(
        ConfigError, match=rf"{words}\nin a new run: {requested}\nor: fedshift rescore fedprox-1 {requested}$"
    ):
        compare(runs, score=f"bn={way}")


def test_one_seed_that_lacks_a_way_is_refused(keep: Keep) -> None:
    runs = [keep("fedavg", retaken=scored(80, 70)), keep("fedavg", seed=1)]
    with pytest.raises(ConfigError, match="fedavg-1 was not scored so"):
        compare(runs, score="bn=retaken")


def test_own_statistics_of_a_held_out_domain_are_nobodys(keep: Keep) -> None:
    out = "allocation.held_out=[scan,street] dataset.domains=[scan,street,texture]"
    file = keep("fedavg", out)
    with pytest.raises(ConfigError, match=r"none of these runs can be scored so: fedavg \(nobody has training images"):
        compare([file], score="bn=own")
    with pytest.raises(ConfigError, match="was not scored so"):
        compare([file], score="bn=batch")


def test_no_run_that_can_is_refused_with_the_reasons(keep: Keep) -> None:
    runs = [keep("fedbn"), keep("local")]
    with pytest.raises(ConfigError, match=r"none of these runs can be scored so: .*fedbn \(.*; local \(with local"):
        compare(runs, score="bn=retaken", allow_different=True)


def test_all_ways_side_by_side_have_average_and_worst(keep: Keep) -> None:
    runs = [
        keep("fedavg", retaken=scored(80, 70), own=scored(90, None)),
        keep("fedavg", seed=1, retaken=scored(60, 80), own=scored(90, 70)),
    ]
    numbers = compare(runs, score="bn").numbers
    assert numbers.columns == ("averaged", "retaken", "own", "batch", "averaged WORST", "retaken WORST", "own WORST")
    (row,) = numbers.rows
    means = {column: value.mean for column, value in row.values.items()}
    assert means["averaged"] == 50 and means["averaged WORST"] == 40
    assert (means["retaken"], means["retaken WORST"]) == ((75 + 70) / 2, (70 + 60) / 2)
    assert (means["own"], means["own WORST"]) == (80, 70)  # of the seed that has both domains
    assert means["batch"] is None and "batch WORST" not in means

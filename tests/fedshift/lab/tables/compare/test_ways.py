"""``--score bn=WAY``: rows that were not scored so are left out by name, a row of which one seed was not is refused."""

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


@pytest.mark.parametrize("way", ["retaken", "own", "batch"])
def test_rows_that_were_not_scored_so_are_left_out_by_name_with_the_remedy(keep: Keep, way: str) -> None:
    runs = [keep("fedavg", **{way: scored(80, 70)}), keep("fedprox"), keep("fedavg", "model.bn=local")]
    numbers = compare(runs, score=f"bn={way}", allow_different=True).numbers
    assert [[row.by_seed[0][domain] for domain in ("scan", "street")] for row in numbers.rows] == [[80, 70]]
    (note,) = left_out(numbers.notes)
    assert note.startswith(f"left out, not scored bn={way}: fedavg [model.bn=local], fedprox [model.bn=average] (")
    assert f"evaluate.bn=[averaged,{way}]" in note and "fedshift rescore" in note
    with pytest.raises(ConfigError, match=rf"fedprox-1 was not scored so\nin a new run: 'evaluate.bn=\[averaged,{way}"):
        compare(runs[1:2], score=f"bn={way}")


def test_one_seed_that_lacks_a_way_is_refused(keep: Keep) -> None:
    runs = [keep("fedavg", retaken=scored(80, 70)), keep("fedavg", seed=1)]
    with pytest.raises(ConfigError, match="fedavg-1 was not scored so"):
        compare(runs, score="bn=retaken")


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

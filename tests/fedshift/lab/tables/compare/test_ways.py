"""``--score bn=WAY``: rows that were not scored so are left out by name, a row of which one seed was not is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import refused

from fedshift.lab.tables.compare import compare
from fedshift_core.errors import ConfigError

MakeRun = Callable[..., Path]
BN = "model.name=cnn_bn"


def scored(scan: float, street: float | None) -> dict[str, float | None]:
    return {"scan": scan, "street": street}


@pytest.mark.parametrize("way", ["retaken", "own", "batch"])
def test_rows_that_were_not_scored_so_are_left_out_by_name_with_the_remedy(run: MakeRun, way: str) -> None:
    of = {f"bn={way}": scored(80, 70)}
    runs = [run("fedavg", given=BN, others=of), run("fedprox", given=BN), run("fedavg", given=f"{BN} model.bn=local")]
    numbers = compare(runs, score=f"bn={way}", allow_different=True).numbers
    assert [[row.by_seed[0][domain] for domain in ("scan", "street")] for row in numbers.rows] == [[80, 70]]
    (note,) = [note for note in numbers.notes if note.startswith("left out")]
    assert f"not scored bn={way}: fedavg [model.bn=local], fedprox [model.bn=average] (" in note
    assert f"evaluate.bn=[averaged,{way}]" in note
    lacking = [runs[0], run("fedavg", 1, given=BN)]  # one seed of a row
    for paths in (lacking, runs[1:2]):
        with refused(ConfigError, f"{paths[-1].name} was not scored so", f"evaluate.bn=[averaged,{way}]"):
            compare(paths, score=f"bn={way}")

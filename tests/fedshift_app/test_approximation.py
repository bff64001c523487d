"""A method that is an approximation of its paper's says so in every table, on every page and in the log."""

import json
from itertools import product
from pathlib import Path

import pytest
from run_folders import write_run
from support import Run
from words import config as config_of

from fedshift.lab.pages.report import record_sections
from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.compare.claim_rule import NOT_COMPARABLE
from fedshift.lab.tables.compare.claims import claims
from fedshift.run.launch import runner
from fedshift.run.reading import read
from fedshift_app.config import fits, registry
from fedshift_core.registry import Method

NAME, LABEL = "fedmlp", "fedmlp (approximation)"
WHY = registry.get(NAME).approximation
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.04"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Return a short run of FedAvg and one of the approximation."""
    base = {"experiment": "handwritten", "rounds": 1, "set": TINY, "output-dir": str(tmp_path_factory.mktemp("runs"))}
    return {name: Run(runner.run_inline(base | {"method": name}, 2)) for name in ("fedavg", NAME)}


def test_only_what_says_so_is_labelled() -> None:
    assert WHY
    assert [m.label for m in registry.listed() if m.label != m.name] == [LABEL]
    assert registry.label("gone") == "gone" and registry.approximation_line("fedavg") == ""
    recipe = Method(name="mine", title="Mine", of=NAME).made_of(registry.get(NAME))
    assert recipe.label == "mine (approximation)"
    for table in (registry.markdown(), fits.privacy()):
        assert f"| `{NAME}` (approximation) | " in table and table.count("(approximation)") == 1


@pytest.mark.usefixtures("undrawn_figures")
def test_every_form_of_a_comparison_and_the_report(runs: dict[str, Run]) -> None:
    table = compare([run.folder for run in runs.values()])
    assert [row.label for row in table.numbers.rows] == ["fedavg", LABEL]
    for text in (table.text(), table.markdown(), table.html(), table.csv()):
        assert LABEL in text
    assert [row["method"] for row in json.loads(table.json())["rows"]] == ["fedavg", NAME]
    assert any(WHY in note for note in table.numbers.notes)
    assert not any(WHY in note for note in compare([runs["fedavg"].folder]).numbers.notes)
    ours, others = (
        dict(record_sections.sections(read(runs[name].folder))[-1].tables[0].rows) for name in (NAME, "fedavg")
    )
    assert LABEL in record_sections.head(read(runs[NAME].folder))["title"]
    assert ours["approximation"] == WHY and "approximation" not in others


def test_claims_are_not_decided_by_it(tmp_path: Path) -> None:
    domains = ("photo", "art_painting", "cartoon", "sketch")
    for seed, (name, gain) in product(range(3), (("fedavg", 0.0), (NAME, 5.0))):
        config = config_of(f"fedseproto-pacs method={name} seed={seed}")
        write_run(tmp_path / f"{name}{seed}", config, dict.fromkeys(domains, 50 + seed + gain + seed * gain / 100))
    checked = claims([tmp_path])
    (claim,) = [one for one in checked.claims if one.table == "fedseproto.table2pacs"]
    assert (claim.row, claim.verdict) == ("FedMLP", NOT_COMPARABLE)
    for text in (checked.text(), checked.markdown(), checked.json()):
        assert LABEL in text

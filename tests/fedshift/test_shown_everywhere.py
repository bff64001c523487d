"""A feature's facts on a run's numbers stand on each of the five places where the run is seen."""

import html
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Run, json_lines, undrawn

from fedshift.export import saving
from fedshift.export.saving import Wanted
from fedshift.lab.pages.report import build
from fedshift.lab.tables.compare import board, board_page
from fedshift.run import reading
from fedshift.run.launch import runner
from fedshift_app.features.figures import show as figures
from fedshift_app.run import console
from fedshift_core.features import FEATURES
from fedshift_core.registry import imported
from fedshift_core.shown import History

SMALL = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"
#: Runs that have something to say; the third learns nothing, and ends early.
RUNS = {
    "local-dp": f"{SMALL} privacy.name=local-dp privacy.clipping_norm=0.5",
    "dp-sgd": f"{SMALL} privacy.name=dp-sgd privacy.noise_multiplier=0.5",
    "constant": f"{SMALL} model.name=cnn_bn evaluate.bn=[own,averaged] train.lr=1e-9 evaluate.patience=1 "
    "allocation.validation_fraction=0.3",
}
SHOWING = {name: imported(feature.show) for name, feature in FEATURES.items() if feature.show}
#: Rooms whose hook hands out facts.
WITH_FACTS = {name for name, show in SHOWING.items() if "facts=" in inspect.getsource(sys.modules[show.__module__])}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    """The finished runs, with their reports and saved models."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, undrawn():
        patch.setattr(figures, "one_class", lambda counts, classes: classes[0])
        made = {}
        for name, given in RUNS.items():
            if name == "dp-sgd":
                pytest.importorskip("opacus", reason="fedshift[dp] is not installed")
            keys = {"experiment": "handwritten", "rounds": 4, "output-dir": str(folder / name), "set": given}
            made[name] = Run(run := runner.run_inline(keys, 2))
            build.make(run, None, 5)
            saving.save(Wanted(run, "safetensors", output=run / "saved"))
        yield made


def facts_of(run: Run) -> dict[str, tuple[str, ...]]:
    """Return the facts of all features, by what ``results.json`` holds alone."""
    config = reading.read(run.folder).config
    history = History(config, results=run.results)
    return {name: show(history).facts for name, show in SHOWING.items()}


def places(folder: Path) -> dict[str, str]:
    """Return the text of each place where a run is seen."""
    record = reading.read(folder)
    assert record.results is not None
    tables = board_page.content(board.board([folder]), None, lambda _: "")["tables"]
    return {
        "log": "".join(line["message"] for line in json_lines(folder / "log.jsonl")),
        "console": console.table(record.results, record.config),
        "report": html.unescape((folder / "report.html").read_text()),
        "card": (folder / "saved" / "README.md").read_text(),
        "board": "\n".join(note for table in tables for note in table["notes"]),
    }


def test_each_fact_of_each_feature_stands_on_all_places(runs: dict[str, Run]) -> None:
    seen = set()
    for name, run in runs.items():
        texts = places(run.folder)
        for feature, facts in facts_of(run).items():
            for fact in facts:
                seen.add(feature)
                assert {place for place, text in texts.items() if fact[1:] not in text} == set(), (name, fact)
        assert bool(facts_of(run)["privacy"]) == (name != "constant")
    assert seen == WITH_FACTS >= {"privacy", "bn-statistics", "figures", "validation"}

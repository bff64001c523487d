"""``fedshift site report``: its numbers against other commands and by hand, and a page that fetches nothing."""

import json
import re
import shutil
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_sites import make
from PIL import Image
from real_node import RUN_ID, SHORT, AppOfNode
from support import invoked, undrawn
from typer.testing import Result

from fedshift.export import predicting, saving
from fedshift.run.launch import runner
from fedshift.site import nodes
from fedshift.site.deploy import exporting
from fedshift.site.page import total_variation
from fedshift_app.config.resolving import resolve
from fedshift_app.node import received_model
from fedshift_core.env import KEEP_MODEL
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.records import encode
from fedshift_datasets import catalog


def call(*words: object) -> Result:
    with undrawn():
        return invoked("site", "report", *words)


def kept(state: Path) -> dict[str, Any]:
    (path,) = state.glob("*/report.json")
    return dict(json.loads(path.read_text()))


class Page(HTMLParser):
    """What a page shows: its texts, its images, and whatever it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.images: list[str] = []
        self.fetched: list[str] = []
        self.feed(re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for value in (str(value) for key, value in attrs if key in ("src", "href")):
            if tag == "img" and re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", value):
                self.images.append(value)
            elif not value.startswith("#"):
                self.fetched.append(f"{tag} {value}")
        self.fetched += [tag] if tag in ("script", "link", "iframe") else []

    def handle_data(self, data: str) -> None:
        self.texts += [" ".join(data.split())] if data.strip() else []


@pytest.fixture(scope="module")
def run_of_sites(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the images of three sites, and a model of one round on them, which makes mistakes."""
    home = tmp_path_factory.mktemp("sites")
    images = make(home / "images", 30)
    (images / "north" / "disc" / "broken.png").unlink()
    flat = {"dataset": "folders", "data-dir": str(images), "output-dir": str(home / "runs"), "rounds": 1,
            "set": "model.name=cnn dataset.size=32 train.epochs=1 evaluate.figures=false"}  # fmt: skip
    run = runner.run_inline(flat, 3)
    model, _ = saving.save(saving.Wanted(run, "safetensors"))
    return images, model


@pytest.fixture
def site(run_of_sites: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return the images of a node, which a test may change."""
    shutil.copytree(run_of_sites[0], tmp_path / "images")
    nodes.note_start({"domain": "south", "data-dir": str(tmp_path / "images")})
    return tmp_path / "images"


def report(*words: object) -> Page:
    result = call(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return Page(Path(result.stdout.split("report: ")[1].strip()))


def test_numbers_are_those_of_predict_and_the_page_is_whole(
    site: Path, run_of_sites: tuple[Path, Path], state: Path
) -> None:
    model = run_of_sites[1]
    page, content = report("--model", model), kept(state)
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.glob("*/report.*")} == {0o600}
    predicted = predicting.predict(model, [site / "south"], split="test")
    metrics = predicted.metrics()
    assert metrics is not None and content["confusion"] == metrics.confusion.tolist() and page.fetched == []
    accuracy, balanced = (f"{100 * value:.1f} %" for value in (metrics.accuracy, metrics.balanced_accuracy))
    assert {accuracy, balanced, "Node report: south", "There is no earlier report of this node."} <= {*page.texts}
    # Mistakes: those of `predict`, highest loss first, each with its file.
    losses = {
        str(picture.path.relative_to(site)): -np.log(p[picture.label])
        for picture, p, k in zip(predicted.pictures, predicted.probabilities, predicted.chosen, strict=True)
        if picture.label is not None and k != picture.label
    }
    worst = sorted(losses, key=lambda name: -losses[name])[:12]
    assert worst and [text for text in page.texts if text in losses] == worst and len(page.images) == 3 * 4 + len(worst)


def test_what_changed_since_the_last_report(site: Path, run_of_sites: tuple[Path, Path], state: Path) -> None:
    words = ("--model", run_of_sites[1])
    report(*words)
    first = kept(state)
    assert any("+0.0 points" in text and "the same model" in text for text in report(*words).texts)
    for number in range(5):  # five new images of one class, white; and one is gone
        Image.new("RGB", (40, 40), (255 - number, 255, 255)).save(site / "south" / "disc" / f"new{number}.png")
    min((site / "south" / "disc").glob("*.jpg")).unlink()
    catalog.load_own.cache_clear()  # a new process would look at the folder again
    page, second = report(*words), kept(state)
    old, new = (content["splits"]["train"] for content in (first, second))
    row = page.texts.index("train", page.texts.index("std"))
    marks, distance = [{*of["marks"]} for of in (new, old)], total_variation(new["counts"], old["counts"])
    changes = " / ".join(f"{after - then:+.3f}" for after, then in zip(new["mean"], old["mean"], strict=True))
    gone = [str(len(one - other)) for one, other in (marks, marks[::-1])]
    assert page.texts[row + 1 : row + 5] == [*gone, f"{distance:.3f}", changes]
    assert len(new["marks"]) > len(old["marks"])
    next(state.glob("*/report.json")).write_text('{"version": 1, "time": 3}')
    assert any("report.json cannot be read" in text for text in report(*words).texts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> exporting.NodeFolder:
    config = resolve({"set": f"{SHORT} allocation.share=0.2"})
    return exporting.export(config, 2, tmp_path_factory.mktemp("real") / "nodes")[0]


@pytest.mark.parametrize(("method", "given"), [("fedbn", "model.name=cnn_bn"), ("fedproto", "")])
def test_the_received_model_has_the_accuracy_that_the_node_sent(
    method: str, given: str, folder: exporting.NodeFolder, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the private parts that it keeps, which it keeps where its owner wants it; images come in arrays."""
    nodes.note_start({"domain": folder.domain, "data-dir": str(folder.path), "partition-id": 0})
    node = AppOfNode(folder, f"{given} train.precision=float32", method, **{"partition-id": 0})
    assert not node.ask("train").has_error() and not list(state.rglob(received_model.FILE))
    monkeypatch.setenv(KEEP_MODEL, "1")
    assert not node.ask("train").has_error()
    content = node.content(1, domains=[folder.domain])
    if method == "fedproto":
        content["knowledge"] = encode({"prototypes": np.eye(10, 64, dtype=np.float32)})
    numbers: Any = node.send("evaluate", content).content.metric_records["metrics"]
    (correct,) = [value for name, value in numbers.items() if name.startswith("correct")]
    report()
    matrix = np.array(kept(state)["confusion"])
    assert (int(np.trace(matrix)), int(matrix.sum())) == (correct, numbers["num-examples"])
    assert stat.S_IMODE((state / "node-0" / received_model.FILE).stat().st_mode) == 0o600
    assert kept(state)["model"] == f"handwritten, {method}, as received in round 1 of 10"
    if method == "fedbn":
        shutil.rmtree(state / "node-0" / f"run-{RUN_ID}")
        assert "private parts" in str(call().exception)


def test_bad_input_is_named(run_of_sites: tuple[Path, Path], state: Path, tmp_path: Path) -> None:
    images, model = run_of_sites
    program, _ = saving.save(saving.Wanted(model.parent, "torchscript", output=tmp_path / "program"))
    (state / "node-0").mkdir(parents=True)

    def fails(named: str, *words: object) -> None:
        error = call(*words).exception
        assert isinstance(error, ConfigError | FedShiftError) and named in str(error)

    fails("--domain", "--model", model)
    nodes.note_start({"domain": "south", "data-dir": str(images), "partition-id": 0})
    fails("--model")
    fails("'east'", "--model", model, "--domain", "east")
    fails("configuration", "--model", program)
    (state / "node-0" / received_model.FILE).write_bytes(b"x" * 100)
    fails("read")
    assert not list(state.rglob("report.html"))


# --- statistics -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "others", "distance"), [([1, 2, 1], [0, 0, 0], None), ([1, 2, 1], [2, 1, 1], 0.25), ([1, 0], [0, 9], 1)]
)
def test_total_variation_distance(counts: Any, others: Any, distance: float | None) -> None:
    assert total_variation(counts, others) == total_variation(others, counts) == distance

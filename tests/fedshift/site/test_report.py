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
from hypothesis import given
from hypothesis import strategies as st
from own_sites import make
from PIL import Image
from real_node import RUN_ID, SHORT, AppOfNode
from support import undrawn
from typer.testing import CliRunner, Result

from fedshift import cli
from fedshift.export import predicting, saving
from fedshift.run.launch import runner
from fedshift.site import nodes, statistics
from fedshift.site.deploy import exporting
from fedshift.site.page import Scored
from fedshift.site.statistics import Images
from fedshift_app.config.resolving import resolve
from fedshift_app.node import received_model, state_folder
from fedshift_core.env import KEEP_MODEL
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.records import encode
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    return tmp_path / "state"


def call(*words: str) -> Result:
    with undrawn():
        return CliRunner().invoke(cli.app, ["site", "report", *words])


def kept(state: Path) -> dict[str, Any]:
    (path,) = state.glob("*/report.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


class Page(HTMLParser):
    """What a page shows: its texts, its images, and whatever it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.images: list[str] = []
        self.fetched: list[str] = []
        self._skipped = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._skipped = {"style": 1}.get(tag, self._skipped)
        if tag == "img":
            self.images.append(str(given["src"]))
        for key in ("src", "href"):
            value = given.get(key) or ""
            if tag in ("script", "link", "iframe") or (value and not value.startswith(("data:image/png;base64,", "#"))):
                self.fetched.append(f"{tag} {value}")

    def handle_endtag(self, tag: str) -> None:
        self._skipped = 0 if tag == "style" else self._skipped

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._skipped:
            self.texts.append(" ".join(data.split()))


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
def site(run_of_sites: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return the images of a node, which a test may change, and the model."""
    images = tmp_path / "images"
    shutil.copytree(run_of_sites[0], images)
    nodes.note_start({"domain": "south", "data-dir": str(images)})
    return images, run_of_sites[1]


def test_numbers_are_those_of_predict_and_the_page_is_whole(site: tuple[Path, Path], state: Path) -> None:
    images, model = site
    result = call("--model", str(model))
    assert result.exit_code == 0, (result.output, result.exception)
    path = Path(result.stdout.split("report: ")[1].strip())
    assert path.parent.parent == state
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "report.json").stat().st_mode) == 0o600
    content = kept(state)
    predicted = predicting.predict(model, [images / "south"], split="test")
    metrics = predicted.metrics()
    assert metrics is not None
    assert content["confusion"] == metrics.confusion.tolist()
    page = Page(path)
    assert page.fetched == []
    for text in (f"{100 * metrics.accuracy:.1f} %", f"{100 * metrics.balanced_accuracy:.1f} %", "Node report: south"):
        assert text in page.texts, text
    # Mistakes: those of `predict`, highest loss first, each with its file.
    losses = {
        str(picture.path.relative_to(images)): -np.log(p[picture.label])
        for picture, p, k in zip(predicted.pictures, predicted.probabilities, predicted.chosen, strict=True)
        if picture.label is not None and k != picture.label
    }
    worst = [name for name, _ in sorted(losses.items(), key=lambda item: -item[1])][:12]
    assert worst, "the model makes no mistake: nothing is tested"
    assert [text for text in page.texts if text in losses] == worst
    samples = 3 * 4
    assert len(page.images) == samples + len(worst)
    assert all(re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", source) for source in page.images)
    assert "There is no earlier report of this node." in page.texts


def test_what_changed_since_the_last_report(site: tuple[Path, Path], state: Path) -> None:
    images, model = site
    assert call("--model", str(model)).exit_code == 0
    first = kept(state)
    assert call("--model", str(model)).exit_code == 0
    (path,) = state.glob("*/report.html")
    page = Page(path)
    assert any(text.startswith("Accuracy: ") and "+0.0 points; the last report had the same model" in text
               for text in page.texts)  # fmt: skip
    before = sorted((images / "south" / "disc").glob("*.jpg"))
    for number in range(5):  # five new images of one class, white; and one is gone
        Image.new("RGB", (40, 40), (255 - number, 255, 255)).save(images / "south" / "disc" / f"new{number}.png")
    before[0].unlink()
    catalog.load_own.cache_clear()  # a new process would look at the folder again
    assert call("--model", str(model)).exit_code == 0
    second, page = kept(state), Page(path)
    place = page.texts.index("std")
    for split in ("train", "test"):
        marks = [set(content["splits"][split]["marks"]) for content in (first, second)]
        p, q = (np.array(content["splits"][split]["counts"], float) for content in (first, second))
        row = page.texts.index(split, place)
        assert page.texts[row + 1 : row + 4] == [
            str(len(marks[1] - marks[0])), str(len(marks[0] - marks[1])),
            f"{0.5 * sum(abs(p / p.sum() - q / q.sum())):.3f}",
        ]  # fmt: skip
        means = zip(second["splits"][split]["mean"], first["splits"][split]["mean"], strict=True)
        assert page.texts[row + 4] == " / ".join(f"{after - then:+.3f}" for after, then in means)
    assert len(second["splits"]["train"]["marks"]) > len(first["splits"]["train"]["marks"])


def test_a_last_report_that_cannot_be_read_is_named(site: tuple[Path, Path], state: Path) -> None:
    assert call("--model", str(site[1])).exit_code == 0
    (path,) = state.glob("*/report.json")
    path.write_text('{"version": 1, "time": 3}')
    assert call("--model", str(site[1])).exit_code == 0
    assert any("report.json cannot be read" in text for text in Page(path.with_suffix(".html")).texts)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[exporting.NodeFolder]:
    config = resolve({"set": f"{SHORT} allocation.share=0.2"})
    return exporting.export(config, 2, tmp_path_factory.mktemp("real") / "nodes")


@pytest.mark.parametrize(("method", "given"), [("fedbn", "model.name=cnn_bn"), ("fedproto", "")])
def test_the_received_model_has_the_accuracy_that_the_node_sent(
    method: str, given: str, folders: list[exporting.NodeFolder], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the private parts that it keeps; images come in arrays."""
    folder = folders[0]
    nodes.note_start({"domain": folder.domain, "data-dir": str(folder.path), "partition-id": 0})
    monkeypatch.setenv(KEEP_MODEL, "1")
    node = AppOfNode(folder, f"{given} train.precision=float32", method, **{"partition-id": 0})
    assert not node.ask("train").has_error()
    content = node.content(1, domains=[folder.domain])
    if method == "fedproto":
        knowledge = {"prototypes": np.eye(10, 64, dtype=np.float32)}
        content["knowledge"] = encode(knowledge)
    reply = node.send("evaluate", content)
    assert not reply.has_error(), reply.error.reason
    numbers: Any = reply.content.metric_records["metrics"]
    (correct,) = [value for name, value in numbers.items() if name.startswith("correct")]
    result = call()
    assert result.exit_code == 0, result.exception
    matrix = np.array(kept(state)["confusion"])
    assert (int(np.trace(matrix)), int(matrix.sum())) == (correct, numbers["num-examples"])
    assert stat.S_IMODE((state / "node-0" / received_model.FILE).stat().st_mode) == 0o600
    assert kept(state)["model"] == f"handwritten, {method}, as received in round 1 of 10"


def test_nothing_is_kept_unless_the_owner_wants_it(folders: list[exporting.NodeFolder], state: Path) -> None:
    assert not AppOfNode(folders[0]).ask("train").has_error()
    assert not list(state.rglob(received_model.FILE))


@pytest.mark.parametrize("what", ["nothing", "no start", "other domain", "program", "damaged", "no parts"])
def test_bad_input_is_named(
    what: str, folders: list[exporting.NodeFolder], run_of_sites: tuple[Path, Path], state: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    images, model = run_of_sites
    words = ["--model", str(model)]
    if what == "no start":
        (state / "node-0").mkdir(parents=True)
        expected = "--domain: `fedshift supernode` never started node-0 here"
    else:
        nodes.note_start({"domain": "south", "data-dir": str(images), "partition-id": 0})
    match what:
        case "nothing":
            words, expected = [], "keeps no received model: give --model"
        case "other domain":
            words, expected = [*words, "--domain", "east"], "unknown domain 'east'"
        case "program":
            made, _ = saving.save(saving.Wanted(model.parent, "torchscript", output=tmp_path / "program"))
            words, expected = ["--model", str(made)], "which lacks the run's configuration"
        case "damaged":
            (state / "node-0" / received_model.FILE).write_bytes(b"x" * 100)
            words, expected = [], "cannot be read"
        case "no parts":
            monkeypatch.setenv(KEEP_MODEL, "1")
            node = AppOfNode(folders[0], "model.name=cnn_bn", "fedbn", **{"partition-id": 0})
            assert not node.ask("train").has_error()
            shutil.rmtree(state / "node-0" / f"run-{RUN_ID}")
            words, expected = [], "has no private parts of run"
    result = call(*words)
    assert isinstance(result.exception, ConfigError | FedShiftError), result.output
    assert expected in str(result.exception)
    assert not list(state.rglob("report.html"))


# --- statistics -------------------------------------------------------------------------------------

COUNTS = st.lists(st.integers(0, 50), min_size=3, max_size=3)


@given(COUNTS, COUNTS)
def test_total_variation_distance(counts: list[int], others: list[int]) -> None:
    result = statistics.total_variation(counts, others)
    if not sum(counts) or not sum(others):
        assert result is None
        return
    events = [[k for k in range(3) if bits >> k & 1] for bits in range(8)]  # the largest difference of any event
    slow = max(
        abs(sum(counts[k] for k in event) / sum(counts) - sum(others[k] for k in event) / sum(others))
        for event in events
    )
    assert result == pytest.approx(slow)
    assert statistics.total_variation(others, counts) == pytest.approx(result)


def test_channels_are_measured_over_all_pixels() -> None:
    x = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    images = Images.of(ImageSet(x, np.arange(10) % 2), 3)
    assert images.counts == [5, 5, 0]
    np.testing.assert_allclose(images.mean, (x / 255).mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(images.std, (x / 255).std(axis=(0, 1, 2)))
    assert len(set(images.marks)) == 10


def test_mistakes_with_a_probability_of_zero_come_first() -> None:
    p = np.array([[0.9, 0.1], [1.0, 0.0], [0.2, 0.8], [0.6, 0.4]])
    scored = Scored(ImageSet(np.zeros((4, 2, 2, 3), np.uint8), np.array([1, 1, 1, 1])), p)
    assert scored.mistakes() == [1, 0, 3]
    assert scored.confusion() == [[0, 0], [3, 1]]

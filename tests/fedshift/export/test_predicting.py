"""Class and probability of each image, and of labelled ones how many were right."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused, worded
from support import Command
from torch import Tensor

from fedshift.export import images, opening, predicting, saved, saving, scorer
from fedshift.export.predicting import Metrics, Predicted
from fedshift.export.saved import Origin
from fedshift_app.config.resolving import resolve
from fedshift_clients.adapt import eata, t3a
from fedshift_clients.adapt.params import EATAParams
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.seeding import generator
from fedshift_datasets.base import PLAIN

NUMBERS: Any = dict.fromkeys(("server_round", "rounds", "nodes", "seed"), 1)
WORDS: Any = dict.fromkeys(("experiment", "dataset", "engine"), "e")
DETAILS = dict.fromkeys(("node", "site", "before"), "") | {"parts": "global", "measured": None}
DETAILS["origin"] = Origin(**NUMBERS, **WORDS, run_id="", versions={})


def model_of(folder: Path, network: str, options: str = "", **flat: str) -> Path:
    config = resolve({"set": f"model.name={network} {options}", **flat})
    state = scorer.bare_client(config).model.state_dict()
    saving.write(folder, config, {name: t.numpy() for name, t in state.items()}, "safetensors", DETAILS)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network with BatchNorm; no test may change it."""
    return model_of(tmp_path_factory.mktemp("models") / "model", "cnn_bn")


def write_image(path: Path, height: int = 8, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, 30, 3), dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eleven images of the classes 0, 3 and 7, of different sizes, in folders that are called so."""
    for k, number in ((0, 4), (3, 5), (7, 2)):
        for i in range(number):
            write_image(tmp_path / "set" / str(k) / f"{i}.png", 20 + i, 10 * k + i)
    return tmp_path / "set"


def test_each_image_by_itself(model: Path, pictures: Path) -> None:
    """Whatever the batches: decoded, normalised and passed through the network by hand."""
    predictions = predicting.predict(model, [pictures], batch=4)
    network = opening.scorer_of(*saved.read(model)).model
    files = sorted(pictures.rglob("*.png"))
    labels = [int(file.parent.name) for file in files]
    assert [(p.path, p.label) for p in predictions.pictures] == list(zip(files, labels, strict=True))
    for file, row in zip(files, predictions.probabilities, strict=True):
        with Image.open(file, formats=["PNG"]) as image:
            x = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR), np.float32) / 255
        with torch.no_grad():
            logits = network(torch.from_numpy((x - 0.5) / 0.5).permute(2, 0, 1)[None])[1][0].double().numpy()
        assert row == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=1e-5)
    wanted = np.zeros((10, 10), int)
    np.add.at(wanted, (labels, predictions.chosen), 1)
    metrics = predictions.metrics()
    assert metrics is not None and np.array_equal(metrics.confusion, wanted)


def test_metrics_by_hand() -> None:
    """Class 0: two of three; class 1: one of one, and class 2 has no images."""
    metrics = Metrics(np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0]]))
    assert (metrics.images, metrics.counts.tolist(), metrics.accuracy) == (4, [3, 1, 0], 3 / 4)
    assert metrics.recalls == [pytest.approx(2 / 3), 1, None]
    assert metrics.balanced_accuracy == pytest.approx((2 / 3 + 1) / 2)


def test_the_command(model: Path, pictures: Path, tmp_path: Path, fedshift: Command) -> None:
    one = pictures / "0" / "1.png"
    predictions = predicting.predict(model, [one])
    wanted = f"{one} {predictions.chosen[0]} {predictions.probabilities.max():.3f}"
    code, out, err = fedshift("predict", model, one)
    assert (code, err, " ".join(out.split())) == (0, "", wanted)
    table, broken = tmp_path / "out.csv", pictures / "3" / "broken.png"
    broken.write_bytes(b"nothing")  # it does not stop the others
    code, out, err = fedshift("predict", model, pictures, "--csv", table)
    assert code == 1 and "of 11 images" in out and ".png" not in out
    assert err.startswith(f"error: {broken}: ") and err.count("\n") == 1
    rows = list(csv.DictReader(table.open()))
    assert [row["label"] for row in rows] == ["0"] * 4 + ["3"] * 5 + ["7"] * 2
    assert all(float(row["probability"]) == max(float(row[f"p({k})"]) for k in range(10)) for row in rows)
    content = json.loads(fedshift("predict", model, pictures, "--json").out)
    assert content["metrics"]["count"]["3"] == 5 and len(content["images"]) == 11


def test_mistakes_are_reported_in_a_line(model: Path, pictures: Path, tmp_path: Path, fedshift: Command) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    for arguments, *named in (
        (["predict", model, tmp_path / "gone.png"], "gone.png"),
        (["predict", model, tmp_path / "empty"], "empty"),
        (["predict", model, broken], "1 image"),
        (["predict", pictures, broken], "model.json"),
        (["predict", model, pictures, "--adapt", "tant"], "--adapt: 'tant'", "tent, eata, t3a; did you mean tent"),
        (["save", tmp_path, "--format", "pickle"], "--format: 'pickle'", "safetensors, torchscript"),
        (["save", tmp_path], str(tmp_path)),
        (["save-node", tmp_path], str(tmp_path)),
    ):
        code, _, err = fedshift(*arguments)
        assert code == 1 and err.count("\n") == 1
        worded(err, *named)


@pytest.mark.parametrize(
    ("files", "classes", "labels", "named"),
    [
        (["Benign /a", "MALIGNANT/a"], ("benign", "malignant"), [0, 1], None),
        (["beni\ufb01n/a", "x/a"], ("benign", "malignant"), [None] * 2, "benign, malignant"),
        (["0", "1"], ("a", "b"), [None] * 2, "none"),
        (["0", "0.0/a"], ("0", "1"), [None] * 2, "0.0"),
        (["0", "A/a"], ("a", "b"), [None, 0], "1 image"),
    ],
)
def test_only_folders_that_are_all_classes_are_scored_and_it_is_said_why_others_are_not(
    files: Any, classes: Any, labels: Any, named: str | None, tmp_path: Path
) -> None:
    for name in files:
        write_image(tmp_path / f"{name}.png")
    taken, notes = images.find([tmp_path], classes)
    assert {p.label for p in taken} == {*labels} and len(notes) == (named is not None)
    for note in notes:
        worded(note, tmp_path, named)


# --- adaptation --------------------------------------------------------------------------------------------


def pixels_of(predictions: Predicted) -> Tensor:
    x = np.stack([images.read(p.path, 32, PLAIN).pixels for p in predictions.pictures])
    return torch.from_numpy(x).permute(0, 3, 1, 2) / 255


def by_batch(run: Any, batches: Sequence[Tensor]) -> Any:
    """Return the probabilities that an adaptation's core gives, batch by batch."""
    return pytest.approx(torch.cat([run(part) for part in batches]).double().softmax(dim=1).numpy(), abs=1e-6)


def test_where_an_adaptation_cannot_be_had(model: Path, pictures: Path, tmp_path: Path) -> None:
    for network, options, named in (
        ("cnn", "", "BatchNorm"),
        ("cnn_bn", "model.bn=freeze", "bn=freeze"),
        ("cnn_bn", "model.freeze=norm", "model.freeze"),
    ):
        with refused(ConfigError, named):
            predicting.predict(model_of(tmp_path / f"{network} {options}", network, options), [pictures], adapt="tent")
    for given, named in (({"adapt": "tent", "clean": [pictures]}, "--clean"), ({"in_order": True}, "--in-order")):
        with refused(ConfigError, named):
            predicting.predict(model, [pictures], **given)
    with refused(ConfigError, "2 images"):
        predicting.predict(model, [pictures / "0" / "0.png"], adapt="tent")


def test_a_model_of_masks_says_shares_of_pixels_and_writes_masks(model: Path, pictures: Path, tmp_path: Path) -> None:
    masks, out = model_of(tmp_path / "masks", "unet:small", experiment="handwritten-masks"), tmp_path / "out"
    for of, given, named in (
        (model, {"folder": out}, ("--masks", "class")),
        (masks, {"adapt": "tent"}, ("--adapt tent", "one class")),
        (masks, {"folder": out}, ("--masks", "0.png")),
    ):
        with refused(ConfigError, *named):
            predicting.predict(of, [pictures], **given)
    predictions = predicting.predict(masks, [pictures / "3"], folder=out)
    (first, *_), shares = predictions.frame().to_dict("records"), predictions.probabilities
    with Image.open(first["mask"]) as mask, Image.open(first["file"]) as image:
        assert mask.size == image.size
    assert [first[f"pixels({name})"] for name in predictions.model.classes] == shares[0].tolist()
    assert len(shares) == 5 and predictions.metrics() is None and len(list(out.glob("overlay/*.png"))) == 5


def test_eata_and_t3a_predict_as_their_cores_do(model: Path, pictures: Path, tmp_path: Path) -> None:
    """T3A of a network without BatchNorm; EATA without Fisher values, with a warning, and with them."""
    bare = model_of(tmp_path / "cnn", "cnn")
    predictions = predicting.predict(bare, [pictures], batch=5, adapt="t3a", in_order=True)
    built, x = opening.scorer_of(*saved.read(bare)), pixels_of(predictions)
    run = t3a.T3A(built.model.classifier, built.passed)
    assert predictions.probabilities == by_batch(run, (x[:5], x[5:10], x[10:]))
    order = generator(0, "clean-order").permutation(11)  # the folder goes class by class
    for clean in ([], [pictures]):
        predictions = predicting.predict(model, [pictures], batch=5, adapt="eata", clean=clean, in_order=True)
        built = opening.scorer_of(*saved.read(model))
        mixed = [x[order[:5]], x[order[5:]]] if clean else None
        adapted = eata.EATA(built.model, built, EATAParams(batch_size=5), mixed)
        assert predictions.probabilities == by_batch(adapted, (x[:5], x[5:]))
        assert ("without Fisher values" in predictions.notes[0]) == (not clean)


def test_scores_that_are_none(model: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may give anything."""
    (tmp_path / "a.png").write_bytes(b"")
    with refused(DataError, "a.png"):
        predicting.predict(model, [tmp_path / "a.png"])
    for scores, named in ((torch.zeros(11, 3), "(11, 3)"), (torch.full((11, 10), torch.nan), "finite")):
        monkeypatch.setattr(opening, "program_of", lambda *_, scores=scores: lambda x: scores)
        with refused(ConfigError, named):
            predicting.predict(model, [pictures])

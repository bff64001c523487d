"""Class and probability of each image, and of labelled ones how many were right."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import Command, refusal_of

from fedshift.export import images, opening, predicting, saved, saving, scorer
from fedshift.export.predicting import Metrics
from fedshift.export.saved import Origin
from fedshift_app.config.resolving import resolve
from fedshift_clients.adapt import eata, t3a, tent
from fedshift_clients.adapt.params import EATAParams
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.seeding import generator
from fedshift_datasets.base import PLAIN

ORIGIN = Origin(
    experiment="e", dataset="handwritten", server_round=1, rounds=1, nodes=2, seed=0, engine="inline", run_id="",
    versions={},
)  # fmt: skip
DETAILS = {"parts": "global", "node": "", "site": "", "before": "", "measured": None, "origin": ORIGIN}


def model_of(folder: Path, network: str, options: str = "") -> Path:
    config = resolve({"set": f"model.name={network} {options}"})
    state = scorer.bare_client(config, config.model).model.state_dict()
    saving.write(folder, config, {name: t.numpy() for name, t in state.items()}, "safetensors", DETAILS)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network with BatchNorm; no test may change it."""
    return model_of(tmp_path_factory.mktemp("models") / "model", "cnn_bn")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eleven images of the classes 0, 3 and 7, of different sizes, in folders that are called so."""
    rng = np.random.default_rng(0)
    for k, number in ((0, 4), (3, 5), (7, 2)):
        (tmp_path / "set" / str(k)).mkdir(parents=True)
        for i in range(number):
            x = rng.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8)
            Image.fromarray(x).save(tmp_path / "set" / str(k) / f"{i}.png")
    return tmp_path / "set"


def test_each_image_by_itself(model: Path, pictures: Path) -> None:
    """Whatever the batches: decoded, normalised and passed through the network by hand."""
    predictions = predicting.predict(model, [pictures], batch=4)
    network = opening.scorer_of(*saved.read(model)).model
    files = sorted(pictures.rglob("*.png"))
    assert [p.path for p in predictions.pictures] == files
    assert [p.label for p in predictions.pictures] == [int(file.parent.name) for file in files]
    for file, row in zip(files, predictions.probabilities, strict=True):
        with Image.open(file, formats=["PNG"]) as image:
            x = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR), np.float32) / 255
        with torch.no_grad():
            logits = network(torch.from_numpy((x - 0.5) / 0.5).permute(2, 0, 1)[None])[1][0].double().numpy()
        wanted = np.exp(logits) / np.exp(logits).sum()
        assert row == pytest.approx(wanted, abs=1e-5)


def test_metrics_by_hand() -> None:
    """Class 0: two of three; class 1: one of one, and class 2 has no images."""
    metrics = Metrics(np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0]]))
    assert metrics.images == 4
    assert metrics.accuracy == pytest.approx(3 / 4)
    assert metrics.recalls == [pytest.approx(2 / 3), 1.0, None]
    assert metrics.balanced_accuracy == pytest.approx((2 / 3 + 1) / 2)
    assert metrics.counts.tolist() == [3, 1, 0]


def test_confusion_of_a_folder_of_classes(model: Path, pictures: Path) -> None:
    predictions = predicting.predict(model, [pictures])
    metrics = predictions.metrics()
    assert metrics is not None
    wanted = np.zeros((10, 10), int)
    for picture, k in zip(predictions.pictures, predictions.chosen, strict=True):
        wanted[int(picture.path.parent.name), k] += 1
    assert np.array_equal(metrics.confusion, wanted)
    assert metrics.counts[[0, 3, 7]].tolist() == [4, 5, 2]


def test_only_folders_that_are_all_classes_are_scored(model: Path, pictures: Path) -> None:
    (pictures / "other").mkdir()
    Image.new("RGB", (8, 8)).save(pictures / "other" / "a.png")
    predictions = predicting.predict(model, [pictures])
    assert predictions.metrics() is None
    assert len(predictions.pictures) == 12
    assert [note.startswith(f"{pictures} is not scored: other is no class of") for note in predictions.notes] == [True]


def test_the_command(model: Path, pictures: Path, tmp_path: Path, fedshift: Command) -> None:
    code, out, err = fedshift("predict", model, pictures / "0" / "1.png")
    assert (code, err) == (0, "")
    name, kind, probability = out.split()
    predictions = predicting.predict(model, [pictures / "0" / "1.png"])
    assert (name, kind) == (str(pictures / "0" / "1.png"), str(predictions.chosen[0]))
    assert float(probability) == pytest.approx(predictions.probabilities.max(), abs=6e-4)
    table = tmp_path / "out.csv"
    code, out, _ = fedshift("predict", model, pictures, "--csv", table)
    assert code == 0
    assert "of 11 images" in out and "confusion" in out and ".png" not in out
    rows = list(csv.DictReader(table.open()))
    assert [row["label"] for row in rows] == ["0"] * 4 + ["3"] * 5 + ["7"] * 2
    assert all(float(row["probability"]) == max(float(row[f"p({k})"]) for k in range(10)) for row in rows)
    code, out, _ = fedshift("predict", model, pictures, "--json")
    content = json.loads(out)
    assert content["metrics"]["count"]["3"] == 5
    assert len(content["images"]) == 11


def test_a_file_that_is_no_image_does_not_stop_the_others(model: Path, pictures: Path, fedshift: Command) -> None:
    (pictures / "3" / "broken.png").write_bytes(b"nothing")
    code, out, err = fedshift("predict", model, pictures)
    assert code == 1
    assert "of 11 images" in out
    (line,) = err.splitlines()
    assert line.startswith(f"error: {pictures / '3' / 'broken.png'}: cannot be read")


def test_mistakes_are_reported_in_a_line(model: Path, pictures: Path, tmp_path: Path, fedshift: Command) -> None:
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.png"
    broken.write_text("no image")
    for arguments, result in (
        (["predict", model, tmp_path / "gone.png"], "there is no file and no folder"),
        (["predict", model, tmp_path / "empty"], "holds no image"),
        (["predict", model, broken], "none of 1 image can be read"),
        (["predict", pictures, broken], "is not a saved model: it has no model.json"),
        (["predict", model, pictures, "--adapt", "magic"], "--adapt: 'magic' is unknown; there are tent, eata, t3a"),
        (["predict", model, pictures, "--adapt", "tant"], "there are tent, eata, t3a; did you mean tent"),
        (["save", tmp_path, "--format", "pickle"], "--format: 'pickle' is unknown; there are safetensors, torchscript"),
        (["save", tmp_path], "is not the folder of a run"),
        (["save-node", tmp_path], "is not a saved model"),
    ):
        code, _, err = fedshift(*arguments)
        assert code == 1
        assert result in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("names", [("Benign ", "MALIGNANT"), ("benign", "malign\u200bant"), ("beni\ufb01n", "x")])
def test_folders_in_another_spelling_are_scored(tmp_path: Path, names: tuple[str, str]) -> None:
    classes = ("benign", "malignant")
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "a.png")
    taken, notes = images.find([tmp_path], classes)
    if names[1] == "x":
        assert [picture.label for picture in taken] == [None, None]
        assert "are no classes of the model, which has benign, malignant; FOLDER/<class>/* is" in notes[0]
        return
    assert (sorted(picture.label for picture in taken if picture.label is not None), notes) == ([0, 1], [])


def test_it_is_always_said_why_nothing_is_scored(tmp_path: Path) -> None:
    for number in range(2):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
    _, notes = images.find([tmp_path], ("a", "b"))
    assert notes == [f"{tmp_path} is not scored: there are no folders in it; FOLDER/<class>/* is"]
    _, notes = images.find(sorted(tmp_path.glob("*.png")), ("a", "b"))
    assert notes == ["2 files are not scored: a file given by name has no class; FOLDER/<class>/* is"]
    (tmp_path / "0.0").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "0.0" / "a.png")
    taken, notes = images.find([tmp_path], ("0", "1"))
    assert len(taken) == 3
    assert notes == [f"{tmp_path} is not scored: 0.0 is no class of the model, which has 0, 1; FOLDER/<class>/* is"]
    (tmp_path / "0.0").rename(tmp_path / "A")
    taken, notes = images.find([tmp_path], ("a", "b"))
    assert [picture.label for picture in taken] == [0, None, None]
    assert notes == [f"{tmp_path}: 2 images directly in it are not scored: in no class folder"]


# --- tent --------------------------------------------------------------------------------------------------


def test_tent_predicts_as_its_core_does_batch_by_batch(model: Path, pictures: Path) -> None:
    predictions = predicting.predict(model, [pictures], batch=5, adapt="tent", in_order=True)
    built = opening.scorer_of(*saved.read(model))
    adapted = tent.Tent(built.model, built)
    x = (
        torch.from_numpy(np.stack([images.read(p.path, 32, PLAIN) for p in predictions.pictures])).permute(0, 3, 1, 2)
        / 255
    )
    # Eleven in fives: the last batch of one joins the one before.
    wanted = torch.cat([adapted(x[:5]), adapted(x[5:])]).double().softmax(dim=1).numpy()
    assert predictions.probabilities == pytest.approx(wanted, abs=1e-6)
    plain = predicting.predict(model, [pictures])
    assert not np.allclose(predictions.probabilities, plain.probabilities, atol=1e-3)
    assert "results depend on the order" in predictions.notes[0]
    assert np.array_equal(predicting.predict(model, [pictures]).probabilities, plain.probabilities)  # nothing is kept


def test_where_tent_cannot_be_had(model: Path, pictures: Path, tmp_path: Path) -> None:
    def message_of(folder: Path) -> str:
        return refusal_of(ConfigError, predicting.predict, folder, [pictures], adapt="tent")

    assert "this network has no BatchNorm" in message_of(model_of(tmp_path / "cnn", "cnn"))
    assert "this network has no BatchNorm" in message_of(model_of(tmp_path / "group", "cnn_bn", "model.bn=group"))
    assert "bn=freeze" in message_of(model_of(tmp_path / "freeze", "cnn_bn", "model.bn=freeze"))
    assert "is frozen (model.freeze)" in message_of(model_of(tmp_path / "norm", "cnn_bn", "model.freeze=norm"))
    one = refusal_of(ConfigError, predicting.predict, model, [pictures / "0" / "0.png"], adapt="tent")
    assert "needs batches of 2 images at least" in one


def test_eata_and_t3a_predict_as_their_cores_do(model: Path, pictures: Path, tmp_path: Path) -> None:
    """T3A of a network without BatchNorm; EATA without Fisher values, with a warning, and with them."""
    bare = model_of(tmp_path / "cnn", "cnn")
    predictions = predicting.predict(bare, [pictures], batch=5, adapt="t3a", in_order=True)
    built = opening.scorer_of(*saved.read(bare))
    x = (
        torch.from_numpy(np.stack([images.read(p.path, 32, PLAIN) for p in predictions.pictures])).permute(0, 3, 1, 2)
        / 255
    )
    run = t3a.adjusting(built.model.classifier, built.passed)
    wanted = torch.cat([run(part) for part in (x[:5], x[5:10], x[10:])]).double().softmax(dim=1).numpy()
    assert predictions.probabilities == pytest.approx(wanted, abs=1e-6)
    assert predictions.notes == [
        "t3a: 50 supports a class, batches of 5; results depend on the order of the images, which is as they are listed"
    ]
    for clean in ([], [pictures]):
        predictions = predicting.predict(model, [pictures], batch=5, adapt="eata", clean=clean, in_order=True)
        built = opening.scorer_of(*saved.read(model))
        order = generator(0, "clean-order").permutation(11)  # the folder goes class by class
        mixed = [x[order[:5]], x[order[5:]]]
        adapted = eata.EATA(built.model, built, EATAParams(batch_size=5), mixed if clean else None)
        wanted = torch.cat([adapted(x[:5]), adapted(x[5:])]).double().softmax(dim=1).numpy()
        assert predictions.probabilities == pytest.approx(wanted, abs=1e-6)
        assert ("no Fisher values" in predictions.notes[0]) == (not clean)
    result = refusal_of(ConfigError, predicting.predict, model, [pictures], adapt="tent", clean=[pictures])
    assert result == "--clean: images like those of training are only for --adapt eata"


def test_an_adaptation_takes_images_in_a_mixed_order(model: Path, pictures: Path, tmp_path: Path) -> None:
    """The folder goes class by class; each image keeps its own prediction, one that cannot be read has none."""
    (broken := tmp_path / "broken.png").write_bytes(b"no image")
    given = [pictures, broken, pictures / "0" / "0.png"]  # one of them twice
    predictions = predicting.predict(model, given, batch=5, adapt="tent")
    taken, _ = images.find(given, predictions.model.classes)
    order = [place for place in generator(0, "predict-order").permutation(13) if taken[place].path != broken]
    assert order != sorted(order)
    pixels = np.stack([images.read(taken[place].path, 32, PLAIN) for place in order])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    built = opening.scorer_of(*saved.read(model))
    adapted = tent.Tent(built.model, built)
    wanted = torch.cat([adapted(x[:5]), adapted(x[5:10]), adapted(x[10:])]).double().softmax(dim=1).numpy()
    assert [p.path for p in predictions.pictures] == [p.path for p in taken if p.path != broken]
    assert predictions.probabilities[np.argsort(np.argsort(order))] == pytest.approx(wanted, abs=1e-6)
    assert len(predictions.broken) == 1
    assert "the order of the images, which is mixed, the same in each call" in predictions.notes[-1]
    again = predicting.predict(model, given, batch=5, adapt="tent")
    assert np.array_equal(again.probabilities, predictions.probabilities)
    result = refusal_of(ConfigError, predicting.predict, model, [pictures], in_order=True)
    assert result == "--in-order: the order of the images matters only with --adapt"


def test_scores_that_are_none(model: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may give anything."""
    for scores, result in ((torch.zeros(11, 3), "of shape"), (torch.full((11, 10), torch.nan), "not finite")):
        monkeypatch.setattr(opening, "program_of", lambda *_, scores=scores: lambda x: scores)
        assert result in refusal_of(ConfigError, predicting.predict, model, [pictures])


def test_nothing_readable(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"")
    assert "a.png: cannot be read" in refusal_of(DataError, predicting.predict, model, [file])

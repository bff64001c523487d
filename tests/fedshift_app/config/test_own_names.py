"""A user's own images in a configuration: names that are read or stated, and travel."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from image_trees import fill
from support import refusal_of

from fedshift.lab.grid.costs.command import as_sweep
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve, resolve_dataset
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import from_json
from fedshift_core.errors import ConfigError, DataError, FedShiftError

STATED = "dataset.domains=[Aachen,Bonn] dataset.classes=[benign,malignant]"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for site in ("Aachen", "Bonn"):
        fill(tmp_path / "data" / site, {"benign": 5, "malignant": 5})
    return tmp_path / "data"


@pytest.fixture
def hospital(tmp_path: Path) -> str:
    path = tmp_path / "hospital.yaml"
    path.write_text(
        "title: own\ndataset: {name: hospital, of: folders, test_share: 0.3}\nmodel: {name: resnet10}\n"
        "train: {epochs: 1, batch_size: 8, lr: 0.1}\nmethod: {name: fedavg}\nrounds: 1\n"
    )
    return str(path)


def refusal(**flat: Any) -> str:
    return refusal_of(FedShiftError, resolve, {key.replace("_", "-"): value for key, value in flat.items()})


def test_names_are_read_and_written_out(hospital: str, data: Path, tmp_path: Path) -> None:
    config = resolve({"experiment": hospital, "data-dir": str(data)})
    assert (config.dataset.name, config.dataset.kind) == ("hospital", "folders")
    assert config.dataset.domains == ("Aachen", "Bonn")
    assert config.dataset.classes == ("benign", "malignant")
    known = config.dataset.known()
    assert (known.name, known.size, known.classes) == ("hospital", 64, config.dataset.classes)
    assert config.allocation.validation_fraction == 0.1  # of conf/datasets/folders.yaml
    # A node, and whoever runs config.yaml again, needs no data-dir to know them.
    fill(data / "Cologne", {"cyst": 1})
    assert from_json(config.model_dump_json()) == config
    again = tmp_path / "config.yaml"
    again.write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
    assert resolve({"experiment": str(again)}) == config


def test_names_that_are_stated_need_no_data_dir(hospital: str, data: Path) -> None:
    config = resolve({"experiment": hospital, "set": STATED.replace("benign,malignant", "malignant,benign")})
    assert config.dataset.classes == ("malignant", "benign")
    one = resolve({"experiment": hospital, "data-dir": str(data), "set": "dataset.domains=[Bonn]"})
    assert (one.dataset.domains, one.dataset.classes) == (("Bonn",), ("benign", "malignant"))


def test_the_plain_data_set_lies_over_any_experiment(data: Path) -> None:
    given = {"dataset": "folders", "data-dir": str(data), "set": "dataset.size=32"}
    config = resolve(given)
    assert (config.dataset.name, config.dataset.of, config.dataset.domains) == ("folders", "", ("Aachen", "Bonn"))
    flat, _ = parse_arguments(
        ["handwritten", "dataset=folders", f"data-dir={data}", "dataset.size=32", "allocation.validation_fraction=0"]
    )
    assert resolve(flat).allocation.validation_fraction == 0
    assert resolve_dataset("folders", str(data), []).classes == ("benign", "malignant")


@pytest.mark.parametrize(
    ("flat", "reason"),
    [
        ({}, "reads its domains and classes from data-dir; without one, as on the server"),
        ({"set": "dataset.of=pacs"}, "dataset.of: pacs has its own names; allowed is folders"),
        ({"set": "dataset.of=x"}, "dataset.of: 'x'; allowed is folders"),
        ({"dataset": "own"}, "unknown dataset 'own'; there are handwritten"),
        ({"dataset": "digits", "set": "dataset.classes=[a,b]"}, "dataset.classes: digits has its own"),
        ({"dataset": "digits", "set": "dataset.test_share=0.5"}, "dataset.test_share: digits has its own"),
        ({"set": STATED + " dataset.test_share=1"}, "dataset.test_share"),
        ({"set": STATED.replace("malignant", "BENIGN")}, "at least two different classes, found benign, BENIGN"),
        ({"set": STATED.replace("Bonn", "'a/b'")}, "dataset.domains: 'a/b'; allowed are letters"),
        ({"set": STATED.replace("Bonn", "avg")}, "dataset.domains: 'avg' is a column of every table: AVG, STD, WORST"),
        ({"set": STATED.replace("Bonn", "Aachen")}, "expected different domains"),
        (
            {"set": STATED + " dataset.labels=../x.csv"},
            "dataset.labels: '../x.csv'; allowed is the name of a .csv file",
        ),
        ({"set": STATED + " dataset.labels=/etc/passwd"}, "dataset.labels: '/etc/passwd'; allowed"),
    ],
)
def test_what_is_wrong_is_reported_in_a_line(hospital: str, flat: dict[str, Any], reason: str) -> None:
    message = refusal(**{"experiment": hospital} | flat)
    assert reason in message and "\n" not in message, message


def test_a_folder_in_place_of_an_experiment_or_a_data_set_is_answered_with_what_to_give(
    hospital: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that ``fedshift init`` wrote there, a run's configuration, or a new experiment."""
    monkeypatch.chdir(tmp_path)
    for name in ("shapes/shapes.yaml", "runs/a run/config.yaml", "two/a.yaml", "two/b.yaml", "images/site/x/1.png"):
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    resume = "`fedshift run resume='runs/a run'` continues the run"
    remedies = {
        "shapes": "shapes is a folder: give its file shapes/shapes.yaml",
        "runs/a run": f"runs/a run is a run folder: its experiment is runs/a run/config.yaml; {resume}",
        "two": "two is a folder: give its file two/a.yaml or two/b.yaml",
        "images": "images is a folder: if it holds images, `fedshift init NAME data-dir=images` writes an experiment's",
    }
    for name, remedy in remedies.items():
        own = {"experiment": hospital, "dataset": name}
        for flat, unknown in (({"experiment": name}, "unknown experiment"), (own, "unknown dataset")):
            first, second = refusal(**flat).splitlines()
            assert first.startswith(unknown) and second.startswith(remedy)
    Path("mine.yaml").write_text(
        Path(hospital).read_text().replace("{name: hospital, of: folders, ", "{name: images, ")
    )
    first, second = refusal(experiment="mine.yaml").splitlines()
    assert first.endswith("(line 2, column 11 of mine.yaml)") and second.startswith(remedies["images"])
    assert refusal_of(FedShiftError, as_sweep, ["shapes"]).endswith(remedies["shapes"])
    assert "\n" not in refusal(experiment="nothing") and "\n" not in refusal(experiment=hospital, dataset="nothing")


def test_a_name_of_ones_own_is_not_that_of_a_data_set(tmp_path: Path, hospital: str) -> None:
    path = tmp_path / "pacs.yaml"
    path.write_text(Path(hospital).read_text().replace("hospital", "pacs"))
    assert "dataset.of: pacs is a data set itself" in refusal(experiment=str(path), set=STATED)
    path.write_text(Path(hospital).read_text().replace(", of: folders", ""))
    assert "write dataset: {name: 'hospital', of: folders}" in refusal(experiment=str(path))


def test_a_server_cannot_make_a_node_read_another_file(hospital: str) -> None:
    config = resolve({"experiment": hospital, "set": STATED})
    sent = config.model_copy(update={"dataset": config.dataset.model_copy(update={"labels": "../../secret.csv"})})
    refusal_of(ConfigError, from_json, sent.model_dump_json())
    sent = config.model_copy(update={"dataset": config.dataset.model_copy(update={"classes": ()})})
    refusal_of(ConfigError, from_json, sent.model_dump_json())


def test_a_data_dir_that_is_not_there_is_reported(hospital: str, data: Path) -> None:
    result = refusal_of(DataError, resolve, {"experiment": hospital, "data-dir": str(data / "no")})
    assert "does not exist" in result


def test_configurations_of_before_are_still_read(data: Path) -> None:
    layers = resolve({}).model_dump(mode="json")
    for key in ("of", "classes", "labels", "test_share", "skip_broken"):
        del layers["dataset"][key]
    assert RunConfig.model_validate(layers) == resolve({})

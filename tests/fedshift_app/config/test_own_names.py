"""A user's own images in a configuration: names that are read or stated, and travel."""

from pathlib import Path

import pytest
import yaml
from image_trees import fill
from refusals import refused
from words import config as config_of

from fedshift_app.config.resolving import resolve
from fedshift_app.config.validating import from_json
from fedshift_core.errors import ConfigError, DataError

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


def test_names_are_read_and_written_out(hospital: str, data: Path, tmp_path: Path) -> None:
    config = resolve({"experiment": hospital, "data-dir": str(data)})
    of, known = config.dataset, config.dataset.known()
    assert (of.name, of.kind, of.domains, of.classes) == (known.name, "folders", ("Aachen", "Bonn"), known.classes)
    assert (known.name, known.size, known.classes) == ("hospital", 64, ("benign", "malignant"))
    assert config.allocation.validation_fraction == 0.1  # of conf/datasets/folders.yaml
    # A node, and whoever runs config.yaml again, needs no data-dir to know them.
    fill(data / "Cologne", {"cyst": 1})
    assert from_json(config.model_dump_json()) == config
    again = tmp_path / "config.yaml"
    again.write_text(yaml.safe_dump({"resolved": config.model_dump(mode="json")}))
    assert resolve({"experiment": str(again)}) == config


def test_names_that_are_stated_need_no_data_dir(hospital: str, data: Path) -> None:
    swapped = config_of(STATED.replace("benign,malignant", "malignant,benign"), experiment=hospital)
    assert swapped.dataset.classes == ("malignant", "benign")
    one = config_of(f"dataset.data_dir={data} dataset.domains=[Bonn]", experiment=hospital)
    assert (one.dataset.domains, one.dataset.classes) == (("Bonn",), ("benign", "malignant"))


#: Keys over the hospital's, each with parts of the message.
REFUSED = {
    "": "data-dir",
    "dataset.of=pacs": "dataset.of pacs folders",
    "dataset.of=x": "dataset.of 'x' folders",
    "dataset=own": "dataset 'own' handwritten",
    "dataset=digits dataset.classes=[a,b]": "dataset.classes digits",
    "dataset=digits dataset.test_share=0.5": "dataset.test_share digits",
    f"{STATED} dataset.test_share=1": "dataset.test_share",
    STATED.replace("malignant", "BENIGN"): "benign BENIGN",
    STATED.replace("Bonn", '"a/b"'): "dataset.domains 'a/b'",
    STATED.replace("Bonn", "avg"): "dataset.domains 'avg' AVG",
    STATED.replace("Bonn", "Aachen"): "different domains",
    f"{STATED} dataset.labels=../x.csv": "dataset.labels '../x.csv'",
    f"{STATED} dataset.labels=/etc/passwd": "dataset.labels '/etc/passwd'",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_is_wrong_is_reported_in_a_line(hospital: str, typed: str) -> None:
    with refused(ConfigError, *REFUSED[typed].split()) as caught:
        config_of(typed, experiment=hospital)
    assert "\n" not in str(caught.value)


def test_a_server_cannot_make_a_node_read_another_file(hospital: str) -> None:
    config = resolve({"experiment": hospital, "set": STATED})
    for wrong in ({"labels": "../../secret.csv"}, {"classes": ()}):
        sent = config.model_copy(update={"dataset": config.dataset.model_copy(update=wrong)})
        with refused(ConfigError, "dataset"):
            from_json(sent.model_dump_json())


def test_a_data_dir_that_is_not_there_is_reported(hospital: str, data: Path) -> None:
    with refused(DataError, data / "no"):
        resolve({"experiment": hospital, "data-dir": str(data / "no")})

"""An error names what was meant and, for a file, line and column."""

from pathlib import Path

import pytest
import yaml

from fedshift_app.config import dotted_keys
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.error_location import places_of
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

EXPERIMENT = """\
dataset: {name: handwritten}
model:
  name: cnn
train: {epochs: 1, batch_size: 36, lr: 0.1}
method:
  name: i2pfl
modules:
  - name: f2dc
    tau: 0.1
methods:
  i2pfl: {tau: 0.3, model: {bn: local}}
  f2dc: {lambda1: 0.1}
rounds: 2
"""


def refusal(path: Path, old: str, new: str, *arguments: str) -> str:
    assert EXPERIMENT.count(old) == 1
    path.write_text(EXPERIMENT.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        resolve(parse_arguments([str(path), *arguments])[0])
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("old", "new", "reason", "where"),
    [
        ("lr: 0.1", "lr: 0.1, sedule: step", "unknown key train.sedule", (4, 45)),
        ("lr: 0.1", "lr: -1", "train.lr: Input should be greater than 0, found -1", (4, 36)),
        ("rounds: 2", "ruonds: 2\nrounds: 2", "unknown key ruonds", (13, 1)),
        ("rounds: 2", "rounds: -1", "rounds: Input should be", (13, 1)),
        ("name: cnn", "name: cnn5", "model.name: unknown model 'cnn5'", (3, 3)),
        ("name: i2pfl", "name: i2pfll", "unknown method 'i2pfll'", (6, 3)),
        ("name: i2pfl", "name: i2pfl\n  tua: 1", "unknown key method.tua for method 'i2pfl'", (7, 3)),
        ("{tau: 0.3", "{tau: 0", "method.tau: Input should be greater than 0", (11, 11)),
        ("bn: local", "bn: lokal", "found 'lokal'; did you mean local?", (11, 29)),
        ("  f2dc: {", "  f2cd: {", "unknown method 'f2cd'", (12, 3)),
        ("- name: f2dc", "- name: f2dd", "unknown modules 'f2dd'", (8, 5)),
        ("tau: 0.1", "tau: 0", "modules.f2dc.tau: Input should be greater than 0", (9, 5)),
        ("{name: handwritten}", "{name: handwriten}", "unknown dataset 'handwriten'", (1, 11)),
        ("{name: handwritten}", "{name: handwritten, domains: [scan, stret]}", "did you mean street?", (1, 46)),
        ("{name: handwritten}", "{name: handwritten, domains: [scan], public: stret}", "mean street?", (1, 47)),
        ("rounds: 2", "rounds: 2\nallocation: {counts: {scn: 2}}", "did you mean scan?", (14, 23)),
    ],
)
def test_the_place_of_what_is_wrong(old: str, new: str, reason: str, where: tuple[int, int], path: Path) -> None:
    message = refusal(path, old, new)
    assert reason in message
    assert message.endswith(f"(line {where[0]}, column {where[1]} of mine.yaml)")
    assert "\n" not in message and len(message) <= 293


def test_each_of_two_mistakes_has_its_place(path: Path) -> None:
    first, second = refusal(path, "lr: 0.1", "lr: -1, momentm: 0").splitlines()
    assert first.endswith("did you mean momentum? (line 4, column 44 of mine.yaml)")
    assert second.endswith("found -1 (line 4, column 36 of mine.yaml)")


def test_what_is_unknown_comes_before_what_is_missing_for_it(path: Path) -> None:
    first, second = refusal(path, "epochs: 1, batch_size: 36", "epochz: 1, batchsize: 36").splitlines()
    assert "unknown key train.epochz" in first and "did you mean epochs? (line 4, column 9" in first
    assert "unknown key train.batchsize" in second and second.endswith("(line 4, column 20 of mine.yaml)")


def test_a_parameter_of_a_recipe_is_found_where_it_is_said(path: Path) -> None:
    message = refusal(path, "lambda1: 0.1", "lambda1: -1", "method=f2dc")
    assert "modules.f2dc.lambda1" in message and message.endswith("(line 12, column 10 of mine.yaml)")


def test_what_the_command_says_has_no_place_in_the_file(path: Path) -> None:
    assert "line" not in refusal(path, "rounds: 2", "rounds: 3", "train.lr=-1")
    assert "line" not in refusal(path, "rounds: 2", "rounds: 3", "method=i2pfll")


def test_the_configuration_of_a_run_is_a_file_too(tmp_path: Path) -> None:
    said = resolve({}).model_dump(mode="json")
    said["train"]["lr"] = -1
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"resolved": said}))
    with pytest.raises(ConfigError, match=r"^train\.lr: .* \(line \d+, column 5 of config\.yaml\)$") as caught:
        resolve({"experiment": str(tmp_path / "config.yaml")})
    line = int(str(caught.value).partition("(line ")[2].partition(",")[0])
    assert (tmp_path / "config.yaml").read_text().splitlines()[line - 1] == "    lr: -1"


@pytest.mark.parametrize("typed", ["rounds.a=1", "train.lr.x=1"])
def test_a_key_typed_within_one_of_the_file_is_no_line_of_the_file(typed: str) -> None:
    with pytest.raises(ConfigError, match=r"^\S+: Input should be a valid \w+, found \{'\w': 1\}$"):
        resolve({"experiment": "handwritten", "set": typed})


def test_yaml_that_cannot_be_read_has_line_and_column(path: Path) -> None:
    message = refusal(path, "lr: 0.1}", "lr: 0.1")
    assert "mine.yaml: cannot be read as YAML: line 5, column 7: " in message
    assert places_of(path) == {}


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("lr=1", "train.lr"), ("ruonds=3", "rounds"), ("tran.epochs=1", "train.epochs"), ("engin=inline", "engine"),
        ("methd.name=moon", "method.name"), ("batch-size=3", "train.batch_size"), ("seeds=3", "seed"),
    ],
)  # fmt: skip
def test_a_key_of_the_command(argument: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(parse_arguments(["handwritten", argument])[0])
    assert f"did you mean {meant}" in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("engine=inlin", "inline"), ("method=fedprx", "fedprox"), ("dataset=pac", "pacs"),
        ("model.bn=avrage", "average"), ("adapt.name=finetun", "finetune"), ("shift.corruption=gaussian_nois", "gauss"),
        ("method.balnce=exact", "balance"), ("method.aggregation=dda", "daa"), ("method.lamda1=1", "lambda1"),
    ],
)  # fmt: skip
def test_a_value_or_a_parameter_of_the_command(argument: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(parse_arguments(["handwritten", "method=f2dc", argument])[0])
    assert f"did you mean {meant}" in str(caught.value)


def test_all_dotted_keys_are_known() -> None:
    known = dotted_keys.known()
    assert {"train.lr", "model.bn", "method.name", "adapt.name", "rounds", "dataset.window", "server.lr"} <= {*known}
    assert not {"train", "method", "adapt", "dataset"} & {*known}

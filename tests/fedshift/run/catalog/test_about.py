"""What the command tells of methods, data sets and experiments, and what a shell completes."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support import on_images
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.catalog import completion, methods
from fedshift_app.config import files, registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog

OURS = list(registry.METHODS)


def shown(*arguments: str) -> str:
    ended = CliRunner().invoke(cli.app, arguments)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an experiment that says nothing of any method, on a network that all of them take."""
    said = yaml.safe_load((files.CONF / "experiments" / "handwritten.yaml").read_text())
    path = tmp_path_factory.mktemp("experiments") / "plain.yaml"
    rest = {key: value for key, value in said.items() if key not in ("method", "methods")}
    path.write_text(yaml.safe_dump(rest | {"model": {"name": "cnn_bn"}}))
    return path


def test_each_method_tells_its_parameters_with_defaults_that_it_takes(plain: Path) -> None:
    """Whatever is printed as a default can be typed, and is what a run without it has; each is described."""
    for method in map(registry.get, on_images(OURS)):
        fields = {one.key: one for one in methods.parameters(method)}
        assert list(fields) == method.known_keys()
        assert all(one.allowed not in ("", "anything") for one in fields.values()), method.name
        assert all(re.fullmatch(r"[A-Z].*\.", one.description) for one in fields.values()), method.name
        run = resolve({"experiment": str(plain), "method": method.name, "set": method.short}).method
        own = [key for key in fields if key in run and f"method.{key}=" not in method.short]
        assert {key: yaml.safe_load(fields[key].default) for key in own} == {
            key: list(run[key]) if isinstance(run[key], tuple) else run[key] for key in own
        }, method.name


def test_values_of_papers_are_those_of_their_experiments() -> None:
    (result,) = (one.papers for one in methods.parameters(registry.get("fedcode")) if one.key == "alpha")
    assert result.startswith("100.0 (") and "f2dc-pacs" in result and "digits-small" not in result
    assert "lambda_proto [0.1, 10.0, log]" in shown("methods", "fedproto")  # where `fedshift tune` looks
    page = shown("methods", "fedcode")
    assert "alpha is 100 for PACS" in page  # what conf/methods says of where its values are from
    assert "fedshift_strategies.methods.fedcode:FedCodeStrategy" in page and "style encoder, head" in page


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("methods fedvag", "did you mean fedavg"), ("methods fpl --markdown", "'fpl' is one method"),
        ("datasets pac", "did you mean pacs"), ("experiments handwriten", "did you mean handwritten"),
        ("models resnet11", "did you mean resnet1"), ("keys method.wieghting", "did you mean method.weighting"),
        ("keys trian", "'trian'"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_refused(arguments: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CliRunner().invoke(cli.app, arguments.split(), catch_exceptions=False)


# --- completion -------------------------------------------------------------------------------------------


def completed(incomplete: str, *before: str) -> list[str]:
    return completion.arguments(SimpleNamespace(params={"arguments": list(before)}), incomplete)


def test_names_keys_and_values_are_completed() -> None:
    assert completed("handw") == ["handwritten", "handwritten-masks"]
    assert completed("handw", "handwritten") == []  # an experiment comes first, and once
    assert completed("train.lr") == ["train.lr=", "train.lr_decay="]
    assert completed("method=fedpr", "handwritten") == ["method=fedproc", "method=fedproto", "method=fedprox"]
    assert completed("method=moon,fedb") == ["method=moon,fedbn"]
    assert completed("engine=") == ["engine=simulation", "engine=inline"]
    assert completed("train.lr=") == completed("nothing=x") == []
    assert (set(completion.values("method")), set(completion.values("dataset"))) == ({*OURS}, {*catalog.DATASETS})


def test_every_key_that_is_completed_is_one() -> None:
    for key in completed("", "handwritten"):
        result = ""
        try:
            parse_arguments(["handwritten", f"{key}1"])
        except ConfigError as error:  # 1 may be no value of it
            result = str(error)
        assert "unknown key" not in result, key


def test_a_key_that_several_methods_have_stands_under_each() -> None:
    lines = shown("keys", "method.tau").splitlines()
    for method, default in (("fedcode", "0.5"), ("i2pfl", "0.07"), ("f2dc", "0.06")):
        row = lines[lines.index(f"method={method}") + 1].split()
        assert row[:3] == ["method.tau", "number", default]
    lines = shown("keys", "adapt.epochs").splitlines()
    assert [line for line in lines if "=" in line] == [f"adapt.name={name}" for name in ("finetune", "fedicon")]


def test_one_experiment_and_one_data_set(tmp_path: Path) -> None:
    result = shown("experiments", "f2dc-pacs")
    assert "10: photo 2, art_painting 3, cartoon 2, sketch 3" in result
    assert "f2dc.Table 1b: fedshift compare RUNS --paper 'f2dc.Table 1b'" in result
    assert "fedcode: alpha=100.0" in result and "100 rounds of 10 local epochs" in result
    own = tmp_path / "mine.yaml"
    own.write_text((files.CONF / "experiments" / "handwritten.yaml").read_text())
    assert shown("experiments", str(own)).startswith("mine")
    result = shown("datasets", "pacs")
    assert "photo, art_painting, cartoon, sketch" in result and "7: dog" in result and "f2dc-pacs" in result
    assert "those of data-dir" in shown("datasets", "folders")

"""What the command tells of methods, data sets and experiments, and what a shell completes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support import ROOT, on_images
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.catalog import completion, keys, methods
from fedshift_app import __version__
from fedshift_app.config import dotted_keys, files, registry
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog

OURS = list(registry.METHODS)


def shown(*arguments: str) -> str:
    ended = CliRunner().invoke(cli.app, arguments)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def parameter(of: str, key: str) -> methods.Parameter:
    return next(one for one in methods.parameters(registry.get(of)) if one.key == key)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an experiment that says nothing of any method, on a network that all of them take."""
    said = yaml.safe_load((files.CONF / "experiments" / "handwritten.yaml").read_text())
    path = tmp_path_factory.mktemp("experiments") / "plain.yaml"
    rest = {key: value for key, value in said.items() if key not in ("method", "methods")}
    path.write_text(yaml.safe_dump(rest | {"model": {"name": "cnn_bn"}}))
    return path


def test_the_list_is_in_the_groups_of_the_readme() -> None:
    lines = shown("methods").splitlines()
    assert lines[0].split()[0] == registry.FIRST
    own = [line.split()[0] for line in lines if line.startswith("  ")]
    assert own == [name for name in OURS if name != registry.FIRST]
    headings = [line for line in lines[1:] if line and not line.startswith("  ")]
    assert headings == [title for group, title in registry.GROUP_TITLES.items() if group != "other"]


def test_each_method_tells_its_parameters_with_defaults_that_it_takes(plain: Path) -> None:
    """Whatever is printed as a default can be typed, and is what a run without it has."""
    for method in map(registry.get, on_images(OURS)):
        fields = {one.key: one for one in methods.parameters(method)}
        assert list(fields) == method.known_keys()
        assert all(one.allowed not in ("", "anything") for one in fields.values()), method.name
        run = resolve({"experiment": str(plain), "method": method.name, "set": method.short}).method
        own = [key for key in fields if key in run and f"method.{key}=" not in method.short]
        assert {key: yaml.safe_load(fields[key].default) for key in own} == {
            key: list(run[key]) if isinstance(run[key], tuple) else run[key] for key in own
        }, method.name


def test_each_method_has_a_page_or_a_docstring_in_its_place() -> None:
    for name in OURS:
        path, _, part = methods.page(registry.get(name)).partition("#")
        page = Path(path).read_text(encoding="utf-8")
        written = ROOT / "docs" / "methods" / f"{name}.md"
        assert Path(path) == written or (not written.exists() and ROOT in Path(path).parents)
        assert bool(re.search(r"^## Equations$", page, re.MULTILINE)) == (part == "equations"), name


@pytest.mark.parametrize(
    ("method", "key", "default", "allowed"),
    [
        ("fpl", "tau", "0.02", "above 0"),
        ("fpl", "use_cpcl", "true", "true or false"),
        ("fpl", "proto_source", "after_training", "after_training, last_epoch"),
        ("f2dc", "lambda1", "0.8", "at least 0"),
        ("f2dc", "aggregation", "daa", "daa, fedavg"),
        ("fedicon", "classifier_rounds", "10", "whole number, at least 1"),
    ],
)
def test_parameters_by_hand(method: str, key: str, default: str, allowed: str) -> None:
    result = parameter(method, key)
    assert (result.default, result.allowed.split(", at most")[0]) == (default, allowed)


def test_values_of_papers_are_those_of_their_experiments() -> None:
    result = parameter("fedcode", "alpha").papers
    assert result.startswith("100.0 (") and "f2dc-pacs" in result and "digits-small" not in result
    assert "lambda_proto [0.1, 10.0, log]" in shown("methods", "fedproto")  # where `fedshift tune` looks
    page = shown("methods", "fedcode")
    assert "alpha is 100 for PACS" in page  # what conf/methods says of where its values are from
    assert "fedshift_strategies.methods.fedcode:FedCodeStrategy" in page and "style encoder, head" in page


def test_each_parameter_of_our_methods_is_described() -> None:
    for name in OURS:
        page = shown("methods", name)
        for one in methods.parameters(registry.get(name)):
            assert re.fullmatch(r"[A-Z].*\.", one.description), (name, one.key)
            assert one.description[:60] in page, (name, one.key)


def test_each_key_is_described_in_a_sentence() -> None:
    values = [key for group in keys.groups().values() for key in group]
    assert all(re.fullmatch(r"[A-Z].*\.", key.description) for key in values)
    assert all(key.kind != "anything" for key in values)
    assert set(dotted_keys.known()) <= {key.key for key in values}


@pytest.mark.parametrize(
    "row",
    [
        "| `train.lr` | number | `-` | above 0 | Learning rate of local training in the first round. |",
        "| `train.momentum` | number | `0.9` | at least 0, below 1 | Momentum of SGD; 0: none. |",
        "| `aggregation.gap` | word | `loss` | loss, accuracy | Quantity whose gap ga uses: loss or accuracy. |",
        "| `federation.min_nodes` | whole number | `2` | at least 1, at most 100000 "
        "| Number of nodes that must be connected before each round of a deployment. |",
    ],
)
def test_rows_of_keys_by_hand(row: str) -> None:
    assert row in keys.markdown().splitlines()


def test_keys_of_one_section() -> None:
    lines = shown("keys", "privacy").splitlines()
    assert [line.split()[0] for line in lines[1:] if line.startswith("privacy.")] == [
        "privacy.name", "privacy.clipping_norm", "privacy.epsilon", "privacy.delta", "privacy.noise_multiplier",
        "privacy.target_epsilon", "privacy.prototype_clip", "privacy.prototype_noise",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no key begins with 'trian'"):
        keys.text("trian")


def test_a_key_that_several_methods_have_stands_under_each() -> None:
    lines = shown("keys", "method.tau").splitlines()
    for method, default in (("fedcode", "0.5"), ("i2pfl", "0.07"), ("f2dc", "0.06")):
        row = lines[lines.index(f"method={method}") + 1].split()
        assert row[:3] == ["method.tau", "number", default]
    lines = shown("keys", "adapt.epochs").splitlines()
    assert [line for line in lines if "=" in line] == [f"adapt.name={name}" for name in ("finetune", "fedicon")]


def test_each_parameter_of_a_method_is_among_the_keys() -> None:
    """Also those of a recipe, which stand for keys of other sections."""
    known = {title: [key.key for key in group] for title, group in keys.groups().items()}
    for name in OURS:
        assert known.get(f"method={name}", []) == [f"method.{key}" for key in registry.get(name).known_keys()], name


def test_a_misspelt_parameter_of_a_method_is_answered_with_it() -> None:
    with pytest.raises(ConfigError, match=r"did you mean method\.weighting"):
        keys.text("method.wieghting")


def test_one_data_set() -> None:
    result = shown("datasets", "pacs")
    assert "photo, art_painting, cartoon, sketch" in result and "7: dog" in result
    assert "f2dc-pacs" in result and "art_painting 2,048" in result and "docs/guide/datasets.md" in result
    assert "those of data-dir" in shown("datasets", "folders")


def test_one_experiment(tmp_path: Path) -> None:
    result = shown("experiments", "f2dc-pacs")
    assert "10: photo 2, art_painting 3, cartoon 2, sketch 3" in result
    assert "f2dc.Table 1b: fedshift compare RUNS --paper 'f2dc.Table 1b'" in result
    assert "fedcode: alpha=100.0" in result and "100 rounds of 10 local epochs" in result
    own = tmp_path / "mine.yaml"
    own.write_text((files.CONF / "experiments" / "handwritten.yaml").read_text())
    assert shown("experiments", str(own)).startswith("mine")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["methods", "fedvag"], "did you mean fedavg"),
        (["methods", "fpl", "--markdown"], "'fpl' is one method"),
        (["datasets", "pac"], "did you mean pacs"),
        (["experiments", "handwriten"], "did you mean handwritten"),
        (["models", "resnet11"], "did you mean resnet1"),
        (["costs", "fedvag"], "did you mean fedavg"),
        (["papers", "x"], ""),
    ],
)
def test_what_is_unknown_is_refused(arguments: list[str], reason: str) -> None:
    ended = CliRunner().invoke(cli.app, arguments)
    assert ended.exit_code != 0
    assert reason in str(ended.exception)


def test_the_version() -> None:
    assert shown("--version").startswith(f"fedshift {__version__} (Flower 1.4")


# --- completion -------------------------------------------------------------------------------------------


def completed(incomplete: str, *before: str) -> list[str]:
    return completion.arguments(SimpleNamespace(params={"arguments": list(before)}), incomplete)  # type: ignore[arg-type]


def test_names_keys_and_values_are_completed() -> None:
    assert completed("handw") == ["handwritten"]
    assert completed("handw", "handwritten") == []  # an experiment comes first, and once
    assert completed("train.lr") == ["train.lr=", "train.lr_decay="]
    assert completed("method=fedpr", "handwritten") == ["method=fedproc", "method=fedproto", "method=fedprox"]
    assert completed("method=moon,fedb") == ["method=moon,fedbn"]
    assert completed("model.bn=l") == ["model.bn=local"]
    assert completed("engine=") == ["engine=simulation", "engine=inline"]
    assert completed("method.t", "handwritten", "method=i2pfl") == ["method.tau="]
    assert completed("train.lr=") == completed("nothing=x") == []


def test_bash_cuts_words_at_the_equals_sign() -> None:
    assert completed("fedb", "handwritten", "method", "=") == ["fedbn"]
    assert completed("method.t", "handwritten", "method", "=", "i2pfl") == ["method.tau="]


def test_every_key_that_is_completed_is_one() -> None:
    for key in completed("", "handwritten"):
        result = ""
        try:
            parse_arguments(["handwritten", f"{key}1"])
        except ConfigError as error:  # 1 may be no value of it
            result = str(error)
        assert "unknown key" not in result, key


def test_values_that_are_completed_are_taken() -> None:
    assert set(completion.values("method")) == set(OURS)
    assert set(completion.values("dataset")) == set(catalog.DATASETS)
    for key in ("model.bn", "train.schedule", "train.optimizer", "keep", "aggregation.robust"):
        assert len(completion.values(key)) > 1, key


@pytest.mark.slow
def test_a_shell_is_answered(tmp_path: Path) -> None:
    words = "fedshift run handwritten method=fedpro"
    requested = {"_FEDSHIFT_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": words}
    program = "import sys; sys.argv[0] = 'fedshift'; from fedshift.cli import app; app(prog_name='fedshift')"
    ended = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | requested | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert {"method=fedprox", "method=fedproc", "method=fedproto"} <= set(re.findall(r"[\w.]+=\w+", ended.stdout))

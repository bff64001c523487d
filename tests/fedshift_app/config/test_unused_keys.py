"""Keys that do nothing in a run are refused where a user set them, and left out of a sweep's other runs."""

import json
import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from fedshift.lab.grid.sweep import grid
from fedshift.lab.grid.tune import requested as tune_requested
from fedshift_app.config import options_of_a_kind, recipes, registry
from fedshift_app.config.files import CONF, names
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.yaml_files import as_yaml, parse, read_yaml

NETWORK = "model.name=cnn_bn"  # which has what every recipe needs
HEAD = """\
dataset: {name: handwritten}
method: {name: fedavg}
train: {epochs: 1, batch_size: 8, lr: 0.1}
rounds: 2
"""


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("privacy.epsilon=8", "privacy.epsilon=8 does nothing with privacy.name=none; it needs privacy.name=local-dp"),
        ("privacy.clipping_norm=2", "it needs privacy.name=local-dp or dp-sgd"),
        ("shift.severity=5", "shift.severity=5 does nothing with shift.name=none; it needs shift.name=corruption"),
        ("shift.name=domain allocation.held_out=[scan] shift.corruption=fog", "does nothing with shift.name=domain"),
        ("server.lr=2", "server.lr=2 does nothing with server.optimizer=none"),
        ("server.optimizer=fedavgm server.tau=0.1", "server.tau=0.1 does nothing with server.optimizer=fedavgm"),
        ("federation.secure_sums_nodes=5", "it needs federation.secure_sums=true"),
        ("train.schedule_end=0.5", "it needs train.schedule=linear or cosine"),
        ("model.bn=local", "model.bn=local does nothing with model.name=cnn; it needs a network with BatchNorm"),
        ("model.bn=group", "model.bn=group does nothing with model.name=cnn"),
        ("model.bn=freeze method.name=moon", "model.bn=freeze does nothing with model.name=cnn"),
    ],
)
def test_a_key_that_does_nothing_is_refused(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve({"set": given})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("adapt.name=tent method.tta_lr=0.5", "method.tta_lr=0.5 does nothing with adapt.lr=0.001; it needs adapt.lr="),
        ("adapt.name=none method.tta_lr=0.5", "method.tta_lr=0.5 does nothing with adapt.name=none; it needs adapt.lr"),
        (
            "adapt.name=tent method.tta_epochs=3",
            "does nothing with adapt.name=tent; it needs adapt.epochs=3, for which",
        ),
        ("adapt.name=tent method.tta=true", "method.tta=true does nothing with adapt.name=tent; it needs adapt.name=f"),
        ("adapt.lr=0.1 method.tta_lr=0.5", "method.tta_lr=0.5 does nothing with adapt.lr=0.1"),
        ("adapt.jitter=[0,0,0,0] method.tta_jitter=[0.1,0,0,0]", "does nothing with adapt.jitter="),
    ],
)
def test_a_parameter_that_stands_for_a_key_which_another_one_decides_is_refused(given: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        resolve({"method": "fedicon", "set": given})


def test_of_modules_too() -> None:
    with pytest.raises(
        ConfigError, match=r"does nothing with modules.f2dc.lambda1=0.5; it needs modules.f2dc.lambda1=2"
    ):
        resolve({"method": "f2dc", "set": "modules.f2dc.lambda1=0.5 method.lambda1=2"})


@pytest.mark.parametrize(
    "given",
    [
        "method.tta_lr=5e-1", "method.tta_lr='0.5'", "method.tta=false", "method.tta_jitter=[0.1,0,0,0]",
        "adapt.lr=0.5 method.tta_lr=0.5", "adapt.name=tent method.tau=0.2", "adapt.tau=0.3 method.tau=0.2",
        "method.tta_crop_padding=null",
    ],
)  # fmt: skip
def test_one_that_reaches_its_key_is_taken(given: str) -> None:
    resolve({"method": "fedicon", "set": given})


@pytest.mark.parametrize("method", [name for name in registry.METHODS if registry.get(name).parameters])
def test_every_recipes_values_reach_their_keys(method: str) -> None:
    """Of each parameter its own value, typed."""
    spec = registry.get(method)
    config = resolve({"method": method, "set": NETWORK})
    for key in spec.parameters:
        if recipes.moved(spec, key) and isinstance(target := recipes.targets_of(spec, key)[0], str):
            value = recipes.value_of(config, target)
            if value is not recipes.NOTHING:
                resolve({"method": method, "set": f"{NETWORK} method.{key}={json.dumps(value)}"})


@pytest.mark.parametrize(
    "given",
    [
        "privacy.target_epsilon=null", "privacy.name=local-dp privacy.epsilon=4",
        "server.optimizer=fedavgm server.lr=0.5", "model.bn=average", "model.bn=local modules=[f2dc]",
        "model.bn=local model.name=cnn_bn", "method.name=afl aggregation.afl_step=0.2",
    ],
)  # fmt: skip
def test_what_does_something_or_asks_for_nothing_is_taken(given: str) -> None:
    resolve({"set": given})


def test_what_a_key_needs_are_values_that_another_key_can_have() -> None:
    marked = {
        (section, key): mark
        for section in RunConfig.model_fields
        for key, mark in options_of_a_kind.options(section).items()
    }
    assert {("server", "lr"), ("shift", "severity"), ("model", "groups"), ("privacy", "epsilon")} < {*marked}
    for (section, _), mark in marked.items():
        kind = RunConfig.model_fields[section].annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel)
        assert kind.model_fields[mark.key].default not in mark.values
        assert all(accepts(kind, mark.key, value) for value in mark.values)


@pytest.mark.parametrize(
    ("typed", "section", "nested"),
    [
        (
            "aggregation.robust=trimmed_mean aggregation.trim=0.3",
            "aggregation",
            "robust: {name: trimmed_mean, trim: 0.3}",
        ),
        ("server.optimizer=fedavgm server.lr=0.5", "server", "optimizer: {name: fedavgm, lr: 0.5}"),
        ("train.schedule=cosine train.schedule_end=0.2", "train", "schedule: {name: cosine, schedule_end: 0.2}"),
        (
            "federation.secure_sums=true federation.secure_sums_nodes=4",
            "federation",
            "secure_sums: {name: true, secure_sums_nodes: 4}",
        ),
    ],
)
def test_options_of_a_kind_have_three_spellings(typed: str, section: str, nested: str, tmp_path: Path) -> None:
    """Flat, nested in a file, and nested on the command line: one configuration."""
    expected = resolve({"set": typed})
    kind, _, options = nested.partition(": ")
    assert resolve({"set": f"'{section}.{kind}={options}'"}) == expected
    words = [f"{section}.{kind}.{word.replace(': ', '=')}" for word in options.strip("{}").split(", ")]
    assert resolve({"set": " ".join(words)}) == resolve({"set": " ".join(reversed(words))}) == expected
    content = read_yaml(CONF / "experiments" / "handwritten.yaml")
    content[section] = content.get(section, {}) | {kind: parse(options)}
    file = tmp_path / "handwritten.yaml"
    file.write_text(as_yaml(content))
    assert resolve({"experiment": str(file)}) == expected
    chosen_anew = resolve(
        {
            "experiment": str(file),
            "set": f"{section}.{kind}={str(getattr(getattr(resolve({}), section), kind)).lower()}",
        }
    )
    assert chosen_anew == resolve({})


@pytest.mark.parametrize(
    ("robust", "reason"),
    [
        (
            "{name: median, trim: 0.2}",
            "aggregation.robust.trim with name=median: unknown; there are none (line 6, column 38",
        ),
        ("{name: krum, malicous: 2}", "there are malicious; did you mean malicious?"),
        ("{name: trimmed_mean, trim: 0.2}, trim: 0.2", "aggregation.robust.trim with name=trimmed_mean: comes twice"),
        (
            "{name: trimmed_mean, trim: 2}",
            "aggregation.trim: Input should be less than 0.5, found 2 (line 6, column 44",
        ),
        ("median, trim: 0.3", "aggregation.trim=0.3 does nothing with aggregation.robust=median"),
    ],
)
def test_an_option_of_another_kind_is_refused_with_its_place(robust: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{HEAD}model: {{name: cnn}}\naggregation: {{robust: {robust}}}\n")
    with pytest.raises(ConfigError, match=re.escape(reason)):
        resolve({"experiment": str(file)})


def accepts(section: type[BaseModel], key: str, value: str | bool) -> bool:
    try:
        section.model_validate({key: value})
    except ValidationError as error:  # of other keys, which a section may need
        return all(key not in entry["loc"] for entry in error.errors())
    return True


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("model: {name: cnn}\nprivacy: {epsilon: 8}\n", r"privacy.epsilon=8 .* \(line 6, column 11 of mine.yaml\)$"),
        ("model: {name: cnn}\nshift: {severity: 3}\n", r"shift.severity=3 .* \(line 6, column 9 of mine.yaml\)$"),
        ("model: {name: cnn, bn: local}\n", r"model.bn=local .* \(line 5, column 20 of mine.yaml\)$"),
    ],
)
def test_keys_of_an_experiment_are_looked_at_too(more: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD + more)
    with pytest.raises(ConfigError, match=reason):
        resolve({"experiment": str(file)})
    run = tmp_path / "config.yaml"  # a run of an earlier version is repeated as it was
    sections = resolve({}).model_dump(mode="json")
    sections["privacy"]["epsilon"], sections["model"]["bn"] = 8.0, "local"
    run.write_text(as_yaml({"resolved": sections}))
    assert resolve({"experiment": str(run)}).privacy.epsilon == 8.0


def test_shipped_experiments_hold_no_such_key() -> None:
    for experiment in names("experiments"):
        resolve({"experiment": experiment})


def points(*arguments: str) -> tuple[list[str], list[str]]:
    result, notes = grid.points(grid.read(["handwritten", *arguments]))
    return [point.label for point in result], notes


def test_a_sweep_leaves_the_key_out_of_the_runs_in_which_it_does_nothing() -> None:
    labels, notes = points("shift.name=none,corruption", "shift.severity=1,3")
    assert labels == [
        "fedavg shift.name=none", "fedavg shift.name=corruption shift.severity=1",
        "fedavg shift.name=corruption shift.severity=3",
    ]  # fmt: skip
    assert notes == [
        "shift.severity is left out with shift.name=none: it needs shift.name=corruption",
        "3 runs instead of 4: equal configurations count once",
    ]
    labels, notes = points("method=fedavg,afl", "aggregation.afl_step=0.5")
    assert labels == ["fedavg", "afl"] and notes[0].startswith("aggregation.afl_step is left out with")


def test_a_sweep_in_which_no_run_needs_the_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shift.severity=1 does nothing with shift.name=none"):
        points("method=fedavg,fedprox", "shift.severity=1,3")
    with pytest.raises(ConfigError, match=r"^fedavg privacy.name=none: privacy.epsilon=4 does nothing"):
        points("privacy.name=none,local-dp", "set=privacy.epsilon=4")


def test_a_search_leaves_it_out_likewise() -> None:
    def read(*arguments: str) -> tune_requested.Request:
        return tune_requested.read(["handwritten", "budget=1", *arguments])

    request = read("method=fedavg,afl", "aggregation.afl_step=0.5")
    assert [plan.base.config.aggregation.afl_step for plan in request.plans] == [0.1, 0.5]
    assert any(note.startswith("aggregation.afl_step is left out") for note in request.notes)
    assert "method.step" not in request.plans[1].space  # it stands for the key that the command sets
    with pytest.raises(ConfigError, match=r"method.step=0.2 does nothing with aggregation.afl_step=0.5"):
        read("method=afl", "aggregation.afl_step=0.5", "search.method.step=[0.2,0.4]")
    with pytest.raises(ConfigError, match=r"aggregation.afl_step=0.5 does nothing"):
        read("method=fedavg,fedprox", "aggregation.afl_step=0.5")

"""The configuration of a run: what YAML files and the command line say, checked as a whole.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from datasets import catalog
from fedshift_app.config import registry
from fedshift_app.config.privacy import check_method
from fedshift_app.config.sections import DatasetConfig, RunConfig, check_dataset, check_together, explain
from fedshift_app.run.tracking import check_tracker
from fedshift_wire.errors import ConfigError

CONF = Path(__file__).resolve().parent.parent.parent / "conf"

#: The flat keys of ``[tool.flwr.app.config]``, each with the value that means "as the experiment says".
FLAT_KEYS: dict[str, str | int | float | bool] = {
    "experiment": "",
    "method": "",
    "dataset": "",
    "rounds": 0,
    "seed": -1,
    "evaluate-every": 0,
    "evaluate-fraction": 0.0,
    "data-dir": "",
    "output-dir": "runs",
    "resume": "",
    "profile": False,
    "tracking": "",
    "set": "",
}

DEFAULT_EXPERIMENT = "handwritten"
#: What an experiment calls ``model.per_node``.
MODEL_PER_NODE = "model_per_node"

#: What a file may say of a method besides its parameters.
ASKED_BY_METHODS = ("images", "train", "model", "modules", "evaluate", "rounds")


class _OnceLoader(yaml.SafeLoader):
    """Refuses a mapping that names a key twice, of which YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build a mapping whose keys differ."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(problem=f"the key {key!r} comes twice, again in line {line}")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: If it cannot be read, is no YAML, or holds something else.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_OnceLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"{path}: cannot be read as YAML: {first}") from None
    if content is None or isinstance(content, dict):
        return content or {}
    raise ConfigError(f"{path}: expected a mapping of keys to values, found {type(content).__name__}")


def names(kind: str) -> list[str]:
    """Return the names of all files of ``conf/<kind>``."""
    return sorted(path.stem for path in (CONF / kind).glob("*.yaml"))


def experiment_file(experiment: str) -> Path:
    """Return the file of an experiment, given by name or as a path to a YAML file.

    Raises:
        ConfigError: If there is none.
    """
    if experiment.endswith((".yaml", ".yml")):
        path = Path(experiment).expanduser().resolve()
        if not path.is_file():
            raise ConfigError(f"experiment: there is no file {path}")
        return path
    if experiment not in names("experiments"):
        known = ", ".join(names("experiments"))
        raise ConfigError(f"unknown experiment {experiment!r}; there are {known}, or a path to a .yaml file")
    return CONF / "experiments" / f"{experiment}.yaml"


def resolve(flat: Mapping[str, Any]) -> RunConfig:
    """Build and check the configuration of a run.

    Args:
        flat: The run-config keys (``FLAT_KEYS``); missing ones mean "as the experiment says".

    Raises:
        ConfigError: For anything unknown, of the wrong type, out of range, or that makes no sense together.
    """
    given = FLAT_KEYS | dict(flat)
    for key in given:
        if key not in FLAT_KEYS:
            raise ConfigError(f"unknown key {key!r}; there are {', '.join(FLAT_KEYS)}")
    if given["resume"]:  # fedshift_app.run.resuming takes the key out
        raise ConfigError("resume: only `fedshift run` and `flwr run` continue a run")
    overrides = parse_set(str(given["set"]))
    path = experiment_file(str(given["experiment"]) or DEFAULT_EXPERIMENT)
    experiment = read_yaml(path)
    specials = _section(experiment, "methods")
    if "resolved" in experiment:  # the config.yaml of a run folder
        layers = _section(experiment, "resolved")
    else:
        layers = {"experiment": path.stem} | {
            k: v for k, v in experiment.items() if k not in ("title", "paper", "methods")
        }
    for name in specials:
        registry.get(str(name))
        _section(specials, name)
    layers = _with_alias(layers)
    layers, below, above = _with_method(layers, str(given["method"]), specials, overrides)
    layers = _with_dataset(layers, str(given["dataset"]), overrides, below.pop("images", {}))
    layers = {key: below.get(key, {}) | _section(layers, key) for key in below} | {
        key: value for key, value in layers.items() if key not in below
    }
    for key, value in above.items():
        layers[key] = _section(layers, key) | value if isinstance(value, dict) else value
    layers = _with_modules(layers, overrides)
    _set_flat(layers, given)
    for dotted, value in overrides.items():
        _set_dotted(layers, dotted, value)
    config = validate(layers)
    check_tracker(config.tracking)  # not in validate: nodes track nothing, and need not have what it takes
    return config


def resolve_dataset(name: str, data_dir: str, dotted: list[str]) -> DatasetConfig:
    """Build and check only the section ``dataset``, for commands that need no experiment.

    Raises:
        ConfigError: For anything unknown, of the wrong type, or out of range.
    """
    overrides = parse_set(shlex.join(dotted))
    layers = _with_dataset({}, name, overrides, {})
    _set_flat(layers, FLAT_KEYS | {"data-dir": data_dir})
    for key, value in overrides.items():
        _set_dotted(layers, key, value)
    try:
        config = DatasetConfig.model_validate(layers["dataset"])
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    check_dataset(config)
    return config


def validate(layers: dict[str, Any]) -> RunConfig:
    """Check a complete configuration.

    Raises:
        ConfigError: With the key, what was found and what is allowed.
    """
    try:
        config = RunConfig.model_validate(layers)
        check_dataset(config.dataset)
        config.allocation.check(config.dataset.domains)
        check_together(config)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    # Write every parameter out, so that the run folder shows defaults too.
    complete = config.model_copy(update={"modules": _complete_modules(config)})
    return complete.model_copy(update={"method": _complete_method(complete)})


def _complete_method(config: RunConfig) -> dict[str, Any]:
    """Return the method's section with all its parameters, checked."""
    method = registry.get(config.method["name"])
    try:
        server, node = config.params()
    except ValidationError as error:
        raise ConfigError(explain(error, "method")) from None
    client_class = method.client_class()
    if config.model.per_node and not client_class.heterogeneous:
        able = [name for name, m in registry.METHODS.items() if m.client_class().heterogeneous]
        raise ConfigError(
            f"model.per_node: the method {method.name!r} averages weights, so all nodes need the same network; "
            f"nodes may differ with {', '.join(able)}"
        )
    check_method(config.privacy, method, config.evaluate)
    method.strategy_class().check_run(server, config.rounds)
    client_class.plugin(registry.make_plugin(config.modules), node)
    client_class.check_run(node, config.model, config.train, config.images)
    return {"name": method.name} | server.model_dump() | node.model_dump()


def _complete_modules(config: RunConfig) -> dict[str, Any]:
    """Return the section ``modules`` with all its parameters, checked."""
    try:
        params = registry.plugin_params(config.modules)
    except ValidationError as error:
        raise ConfigError(explain(error, "modules")) from None
    return {"name": config.modules["name"]} | params.model_dump()


def from_json(text: str) -> RunConfig:
    """Read the configuration that the server sent.

    Raises:
        ConfigError: If it is not one.
    """
    return validate(json.loads(text))


def parse_set(text: str) -> dict[str, Any]:
    """Parse dotted overrides such as ``"method.tau=0.07 train.lr=0.005"``; values are YAML.

    Raises:
        ConfigError: If a part is not ``section.key=value``.
    """
    overrides = {}
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"set: {error} in {text!r}") from None
    for part in parts:
        dotted, sep, value = part.partition("=")
        if not sep or not dotted:
            raise ConfigError(f"set: {part!r} is not of the form section.key=value, for example train.lr=0.005")
        key = dotted.replace("-", "_")
        overrides["model.per_node" if key == MODEL_PER_NODE else key] = _scalar(value, dotted)
    return overrides


def _scalar(text: str, key: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"set: the value of {key}, {text!r}, is not YAML") from None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 as a word
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _section(layers: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return a copy of a section of a YAML file; one that is absent or left empty is empty."""
    value = layers.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: expected a mapping of keys to values, found {value!r}")
    return dict(value)


def _chosen(own: dict[str, Any], section: str, wanted: str, default: str) -> tuple[str, dict[str, Any]]:
    """Return the name of the method or data set, and what the experiment says of it.

    What it says of another one is dropped.
    """
    if own and "name" not in own:
        raise ConfigError(f"{section}: lacks the key name, found only {', '.join(own)}")
    named = str(own.get("name", default))
    return (wanted, {}) if wanted and wanted != named else (named, own)


def _with_alias(layers: dict[str, Any]) -> dict[str, Any]:
    """Put ``model-per-node`` of an experiment where it belongs."""
    named = {key: value for key, value in layers.items() if key.replace("-", "_") == MODEL_PER_NODE}
    rest = {key: value for key, value in layers.items() if key not in named}
    if not named:
        return rest
    return rest | {"model": _section(rest, "model") | {"per_node": next(iter(named.values()))}}


def _with_method(
    layers: dict[str, Any], flat: str, specials: dict[str, Any], overrides: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Put the method's defaults below what the experiment says of it.

    Returns:
        The layers, and what the method asks of other sections: as its default, then for this experiment.
    """
    wanted = str(overrides.pop("method.name", "") or flat)
    name, own = _chosen(_section(layers, "method"), "method", wanted, "fedavg")
    registry.get(name)
    defaults, below = _without_sections(read_yaml(CONF / "methods" / f"{name}.yaml"))
    special, above = _without_sections(_section(specials, name))
    return layers | {"method": defaults | special | own | {"name": name}}, below, above


def _without_sections(of_method: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide what a file says of a method into the method's own parameters and the rest."""
    params = {key: value for key, value in of_method.items() if key not in ASKED_BY_METHODS}
    rest = {key: value for key, value in of_method.items() if key in ASKED_BY_METHODS}
    return params, {key: value if key == "rounds" else _section(rest, key) for key, value in rest.items()}


def _with_modules(layers: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Put the modules' defaults below what the experiment says of them."""
    wanted = str(overrides.pop("modules.name", ""))
    name, own = _chosen(_section(layers, "modules"), "modules", wanted, registry.NO_PLUGIN)
    registry.check_plugin(name)
    defaults = {} if name == registry.NO_PLUGIN else read_yaml(CONF / "modules" / f"{name}.yaml")
    return layers | {"modules": defaults | own | {"name": name}}


def _with_dataset(
    layers: dict[str, Any], flat: str, overrides: dict[str, Any], of_method: Mapping[str, Any]
) -> dict[str, Any]:
    """Put the data set's defaults, and over them the method's, below what the experiment says of its images."""
    wanted = str(overrides.pop("dataset.name", "") or flat)
    name, own = _chosen(_section(layers, "dataset"), "dataset", wanted, "")
    if not name:
        raise ConfigError("dataset: the experiment lacks the key dataset.name")
    catalog.get(name)
    images = _section(layers, "images") if own else {}
    defaults = read_yaml(CONF / "datasets" / f"{name}.yaml")
    dataset = {"domains": defaults["domains"]} | own | {"name": name}
    return layers | {"dataset": dataset, "images": defaults.get("images", {}) | dict(of_method) | images}


def _set_flat(layers: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key in ("rounds", "seed"):
        if given[key] != FLAT_KEYS[key]:
            layers[key] = given[key]
    if given["profile"]:
        layers["profile"] = True
    if given["tracking"]:
        layers["tracking"] = given["tracking"]
    for key in ("every", "fraction"):
        if given[f"evaluate-{key}"] != FLAT_KEYS[f"evaluate-{key}"]:
            layers["evaluate"] = _section(layers, "evaluate") | {key: given[f"evaluate-{key}"]}
    if given["data-dir"]:
        layers["dataset"]["data_dir"] = str(Path(str(given["data-dir"])).expanduser().resolve())


def _set_dotted(layers: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, key = dotted.split(".")
    if (sections or [key])[0] not in RunConfig.model_fields:
        raise ConfigError(f"set: unknown key {dotted!r}; it starts with one of {', '.join(RunConfig.model_fields)}")
    target = layers
    for section in sections:
        inner = target.get(section)
        if not isinstance(inner, dict):
            inner = target[section] = {}
        target = inner
    if isinstance(target.get(key), dict) and not sections:
        raise ConfigError(
            f"set: {key!r} is a section; set its keys, for example {key}.{next(iter(target[key]), 'name')}="
        )
    target[key] = value

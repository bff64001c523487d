"""The configuration of a run: what YAML files and the command line say, checked as a whole.

Layers, each over the one before: conf/datasets/NAME.yaml, the sections (``images:``, ``train:``, ...) of
conf/methods/NAME.yaml, conf/experiments/NAME.yaml, its ``methods: NAME:`` with sections of its own, the flat
run-config keys, then the dotted overrides of ``set``. A method's own parameters come from conf/methods/NAME.yaml,
then ``methods: NAME:``, then the experiment's ``method:``.
"""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator

from clients.settings import ONLY_32, ImageConfig, ModelConfig, TrainConfig
from datasets import catalog
from datasets.base import Source
from datasets.corruptions import CORRUPTIONS
from datasets.errors import ConfigError
from datasets.splits import Allocation
from fedshift_app import registry
from fedshift_app.privacy import PrivacyConfig, check_method
from fedshift_app.tracking import TrackerName, check_tracker
from fedshift_wire import Params
from strategies.schedule import EvaluateConfig

CONF = Path(__file__).resolve().parent.parent / "conf"

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
#: What a name from a configuration must be so that a file of that name stays in its folder.
FOLDER_NAME = re.compile(r"[^./\\][^/\\]{0,99}")

#: What an experiment calls ``model.per_node``.
MODEL_PER_NODE = "model_per_node"

#: What a file may say of a method besides its parameters.
ASKED_BY_METHODS = ("images", "train", "model", "modules", "evaluate", "rounds")


class DatasetConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Which images."""

    name: str
    domains: tuple[str, ...]  # the domains of this run, in the order of tables
    data_dir: str = ""  # where the images are; empty: the data set makes its own
    download: bool = False  # let torchvision fetch what it can
    seed: int = Field(0, ge=0)  # of generated images
    size: int | None = Field(None, ge=16, le=512)  # height and width in pixels; null: the data set's own

    def source(self) -> Source:
        """Return where the images come from on this machine."""
        return Source(Path(self.data_dir) if self.data_dir else None, self.download, self.seed)


class ShiftConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """How test images differ from training images (FedICON, section 5). Training images are never touched."""

    #: none; corruption: the test images of every domain are corrupted; domain: a held-out domain is the
    #: test; attribute: a later test set of the same classes (cifar10.1) is the test.
    name: Literal["none", "corruption", "domain", "attribute"] = "none"
    corruption: str = "random"  # one of the 15 of Hendrycks & Dietterich, or one drawn for each image
    severity: int = Field(5, ge=0, le=5)  # 0 leaves the images as they are
    #: own: each simulated node is scored on a test set of its own, drawn from the domain's with the proportions of
    #: its training labels; none: on the domain's test set as it is.
    label_mix: Literal["none", "own"] = "none"

    @field_validator("corruption")
    @classmethod
    def _known(cls, corruption: str) -> str:
        if corruption not in ("random", *CORRUPTIONS):
            raise ValueError(f"{corruption!r} is unknown; there are random, {', '.join(CORRUPTIONS)}")
        return corruption


class FederationConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Who takes part in a round, and how long the server waits."""

    participation: float = Field(1.0, gt=0, le=1)  # share of the nodes that train in a round
    min_nodes: int = Field(2, ge=1)  # nodes that must be there before each round (deployment)
    node_timeout: float = Field(120.0, gt=0)  # seconds to wait for nodes, and for evaluation to be repeated
    round_timeout: float = Field(3600.0, gt=0)  # seconds a round's training may take
    #: Largest absolute value of a weight, a prototype, ... that a node may send; a node that sends more is left out.
    #: Weights and features of these models stay below 1e3; 1e30 is finite, but drowns all others in an average.
    max_value: float = Field(1e6, gt=0)


class RunConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Everything that decides the numbers of a run, and whether its time is measured."""

    experiment: str  # part of the run folder's name
    dataset: DatasetConfig
    images: ImageConfig = ImageConfig()
    allocation: Allocation = Allocation()
    model: ModelConfig
    train: TrainConfig
    method: dict[str, Any]  # ``name`` and the method's parameters
    modules: dict[str, Any] = {"name": registry.NO_PLUGIN}  # ``name`` and the parameters
    federation: FederationConfig = FederationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    shift: ShiftConfig = ShiftConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    rounds: int = Field(ge=1)
    seed: int = Field(0, ge=0)
    profile: bool = False  # tell where the time of each round went
    tracking: TrackerName = "none"  # show the rounds elsewhere as well, beside metrics.jsonl

    @field_validator("experiment")
    @classmethod
    def _names_a_folder(cls, experiment: str) -> str:
        if not FOLDER_NAME.fullmatch(experiment) or not experiment.isprintable():
            raise ValueError(
                f"{experiment!r} cannot be part of a folder's name: at most 100 characters, no / and \\, no dot first"
            )
        return experiment

    def server_params(self) -> Params:
        """Return the method's parameters for the strategy."""
        return self._params()[0]

    def node_params(self) -> Params:
        """Return the method's parameters for the client."""
        return self._params()[1]

    def _params(self) -> tuple[Params, Params]:
        given = {key: value for key, value in self.method.items() if key != "name"}
        return registry.get(self.method["name"]).split_params(given)


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
    if given["resume"]:  # fedshift_app.resuming takes the key out
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
        raise ConfigError(_explain(error)) from None
    _check_dataset(config)
    return config


def validate(layers: dict[str, Any]) -> RunConfig:
    """Check a complete configuration.

    Raises:
        ConfigError: With the key, what was found and what is allowed.
    """
    try:
        config = RunConfig.model_validate(layers)
        _check_dataset(config.dataset)
        config.allocation.check(config.dataset.domains)
        _check_together(config)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None
    # Write every parameter out, so that the run folder shows defaults too.
    complete = config.model_copy(update={"modules": _complete_modules(config)})
    return complete.model_copy(update={"method": _complete_method(complete)})


def _complete_method(config: RunConfig) -> dict[str, Any]:
    """Return the method's section with all its parameters, checked."""
    method = registry.get(config.method["name"])
    try:
        server, node = config._params()
    except ValidationError as error:
        raise ConfigError(_explain(error, "method")) from None
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
        raise ConfigError(_explain(error, "modules")) from None
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


def _check_dataset(config: DatasetConfig) -> None:
    if config.data_dir and not Path(config.data_dir).is_absolute():
        raise ConfigError(
            f"dataset.data_dir: {config.data_dir!r} is not an absolute path; the key data-dir= takes a relative one"
        )
    known = catalog.get(config.name).domains
    for domain in config.domains:
        if domain not in known:
            raise ConfigError(f"dataset.domains: {config.name} has no domain {domain!r}; it has {', '.join(known)}")
    if len(set(config.domains)) != len(config.domains) or not config.domains:
        raise ConfigError(f"dataset.domains: expected different domains, found {', '.join(config.domains) or 'none'}")


def _check_together(config: RunConfig) -> None:
    """Refuse combinations that make no sense."""
    size = config.dataset.size or catalog.get(config.dataset.name).size
    for name in (config.model.name, *config.model.per_node):
        if name in ONLY_32 and size != 32:
            raise ConfigError(
                f"model.name={name} needs dataset.size=32, found {size}; resnet10 and resnet18 take any size"
            )
    for domain in config.allocation.training_domains(config.dataset.domains):
        if domain in catalog.get(config.dataset.name).test_only:
            raise ConfigError(f"{domain!r} is a test set only: put it under allocation.held_out, or leave it out")
    if config.shift.name in ("domain", "attribute") and not config.allocation.held_out:
        raise ConfigError(f"shift.name={config.shift.name} needs allocation.held_out: the domains to test on")
    if config.shift.name == "corruption" and config.allocation.test_fraction > 0:
        raise ConfigError("shift.name=corruption needs allocation.test_fraction=0: it corrupts test splits")
    if config.shift.label_mix == "own" and config.allocation.test_fraction > 0:
        raise ConfigError(
            "shift.label_mix=own needs allocation.test_fraction=0, found "
            f"{config.allocation.test_fraction:g}: a test set cut from a node's images follows its labels already"
        )
    if config.shift.name == "attribute" and config.dataset.name != "cifar10":
        raise ConfigError(f"shift.name=attribute needs dataset cifar10, found {config.dataset.name}")


def _explain(error: ValidationError, *section: str) -> str:
    """Say in a line or two which key is wrong, what was found and what is allowed."""
    lines = [_problem(p, (*section, *p["loc"])) for p in error.errors()]
    more = f" (and {len(lines) - 2} more)" if len(lines) > 2 else ""
    return "\n".join(lines[:2]) + more


def _problem(problem: Any, loc: tuple[int | str, ...]) -> str:
    key = ".".join(str(part) for part in loc) or "configuration"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"unknown key {key}; there are {', '.join(_fields_beside(loc))}"
    if problem["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {message}" if problem["type"] == "value_error" else f"{key}: {message}, found {problem['input']!r}"


def _fields_beside(loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed where ``loc`` points."""
    model: type[BaseModel] = RunConfig
    for part in loc[:-1]:
        inner = model.model_fields[str(part)].annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return list(model.model_fields)

"""Checks the keys of a run's network, and finds its file of initial weights."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift_clients.models import packages
from fedshift_clients.models.catalog import FAMILIES, GIVEN, NETWORKS, family_of, is_given
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.paths import check_path, user_path
from fedshift_datasets.io import given_features

if TYPE_CHECKING:
    from fedshift_app.config.sections import RunConfig


def check_model(model: ModelConfig) -> None:
    """Refuse contradictory keys of the section ``model``, without reading a file; nodes check this too.

    Raises:
        ConfigError: With the keys.
    """
    if model.weights:
        check_path(model.weights, "model.weights")
    source = "model.weights" if model.weights else "model.download=true" if model.download else ""
    if model.weights and model.download:
        raise ConfigError("model.weights and model.download=true: set one of the two")
    if source and model.per_node:
        raise ConfigError(f"{source} is for one network, but model.per_node gives nodes different networks")
    if model.download and (family_of(model.name) is None or is_given(model.name)):
        libraries = " and ".join(f"{prefix}:NAME" for prefix in FAMILIES if prefix != GIVEN)
        raise ConfigError(f"model.download=true: weights can be fetched for {libraries}, not for {model.name}")
    if model.freeze in ("encoder", "norm") and model.bn == "local":
        raise ConfigError(
            f"model.freeze={model.freeze} leaves no BatchNorm to train, so model.bn=local has nothing to keep on "
            "the node; allowed is average"
        )


def of_features(layers: dict[str, Any], typed: Container[str]) -> None:
    """Let features of a file (``dataset.features``) take the place of the network, as far as nobody typed another.

    Raises:
        DataError: If the file cannot be used.
    """
    section, model = layers["dataset"], layers.get("model", {})
    file, folder = section.get("features"), section.get("data_dir")
    if not (isinstance(file, str) and file and isinstance(folder, str) and isinstance(model, Mapping)):
        return
    frozen = {"freeze": "encoder", "precompute": True, "weights": "", "weights_sha256": "", "download": False}
    if not is_given(str(model.get("name", ""))) and folder:
        frozen["name"] = f"{GIVEN}:{given_features.read(Path(folder) / file).width}"
    layers["model"] = {**model, **{key: value for key, value in frozen.items() if f"model.{key}" not in typed}}


def find_file(layers: dict[str, Any], experiment: Path) -> None:
    """Make ``model.weights`` an absolute path; a relative one starts in the folder of the experiment's file.

    With ``package:NAME``, ``images.mean``, ``images.std`` and ``dataset.size`` that nothing states become those of
    the weights.

    Raises:
        ConfigError: If it cannot be a path, or no package has such weights.
    """
    section = layers.get("model")
    if not (isinstance(section, Mapping) and isinstance(section.get("weights"), str) and section["weights"]):
        return
    packaged = packages.of(section["weights"])
    if packaged is None:
        path = user_path(section["weights"], "model.weights", experiment.parent)
        layers["model"] = {**section, "weights": str(path)}
        return
    if isinstance(images := layers.get("images", {}), Mapping):
        layers["images"] = {"mean": list(packaged.mean), "std": list(packaged.std), **images}
    if packaged.size is not None and layers["dataset"].get("size") is None:
        layers["dataset"] = {**layers["dataset"], "size": packaged.size}


def with_digest(config: "RunConfig") -> "RunConfig":
    """Return the configuration with the SHA-256 of its file of weights, which must match a stated one.

    A missing file is accepted if its SHA-256 is stated: a continued run does not need the file.

    Raises:
        ConfigError: If the file cannot be read, is of another network, or its SHA-256 differs.
    """
    model = config.model
    if not model.weights:
        if model.weights_sha256 and not model.download:
            raise ConfigError("model.weights_sha256 needs model.weights or model.download=true")
        return config
    packaged = packages.of(model.weights)
    if packaged is not None:
        packages.check_network(packaged, model.name)
    if model.weights_sha256 and not packages.exists(model.weights):
        return config
    digest = packages.digest(packages.located(model.weights))
    if packaged is not None and digest != packaged.sha256:
        raise ConfigError(
            f"model.weights={model.weights}: the file of {packaged.package} has the SHA-256 {digest[:12]}..., expected "
            f"{packaged.sha256[:12]}...; install the package again"
        )
    if model.weights_sha256 not in ("", digest):
        raise packages.other_file(Path(model.weights), digest, model.weights_sha256)
    return config.with_values("model", weights_sha256=digest)


def may_have_batchnorm(config: "RunConfig") -> bool:
    """Tell whether a part of the model may have BatchNorm: modules, and what a method adds, may have their own."""
    if config.modules or any(NETWORKS[name].batchnorm for name in config.model.names):
        return True
    from fedshift_clients.models.networks import Blueprint, batchnorm_names  # torch: only where it is not known yet

    plan = Blueprint(config.model, len(config.dataset.known().classes), config.dataset.pixels, seed=0)
    return bool(batchnorm_names(config.declared.client_class().build_model(plan, config.params())))

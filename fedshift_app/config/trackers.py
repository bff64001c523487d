"""The key ``tracking``: the names of trackers in a configuration, and a check that they are installed."""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from fedshift_core.errors import ConfigError

TrackerName = Literal["tensorboard", "mlflow", "wandb", "otlp"]
#: Their full names, the extra of FedShift that installs each, and the module by which it is found if not by its name.
CALLED = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Weights & Biases", "otlp": "OTLP's exporter"}
EXTRAS = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb", "otlp": "otlp"}
MODULES = {"otlp": "opentelemetry.exporter.otlp.proto.http"}


def listed(given: Any) -> Any:
    """Return the values in a list, in a text with commas, or one alone; nothing and the word none are empty."""
    if given is None:
        return ()
    values = given.strip("[] ").split(",") if isinstance(given, str) else (given,) if type(given) is int else given
    if not isinstance(values, list | tuple):
        return given
    words = [value.strip() if isinstance(value, str) else value for value in values]
    return tuple(word for word in words if word not in ("none", ""))


Trackers = Annotated[
    tuple[TrackerName, ...], BeforeValidator(listed), AfterValidator(lambda names: tuple(dict.fromkeys(names)))
]


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Refuse trackers that are not installed.

    Raises:
        ConfigError: With the command that installs it.
    """
    for name in names:
        if not _is_installed(MODULES.get(name, name)):
            raise ConfigError(
                f'tracking={name}: {CALLED[name]} is not installed; run: pip install "fedshift[{EXTRAS[name]}]"'
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False

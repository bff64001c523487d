"""The key ``tracking``: the names of trackers in a configuration, and a check that they are installed."""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from fedshift_core.errors import ConfigError

TrackerName = Literal["tensorboard", "mlflow", "wandb", "otlp"]
#: Their full names; the extra of FedShift that installs each, and the module by which it is found, if not of its name.
CALLED = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Weights & Biases", "otlp": "OTLP's exporter"}
EXTRAS = {"tensorboard": "tracking"}
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
        try:
            spec = importlib.util.find_spec(MODULES.get(name, name))
        except ModuleNotFoundError:  # not even what it is a part of
            spec = None
        if spec is None:
            extra = EXTRAS.get(name, name)
            raise ConfigError(f'tracking={name}: {CALLED[name]} is not installed; run: pip install "fedshift[{extra}]"')

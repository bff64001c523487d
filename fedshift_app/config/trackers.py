"""The key ``tracking``: the names of trackers in a configuration, and a check that they are installed."""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from fedshift_core.errors import ConfigError

TrackerName = Literal["tensorboard", "mlflow", "wandb"]
#: Their full names, and the extra of FedShift that installs each.
CALLED = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Weights & Biases"}
EXTRAS = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb"}


def _listed(given: Any) -> Any:
    """Return the names in a value: a list, names with commas, or ``none`` (an earlier form)."""
    if given is None:
        return ()
    names = given.strip("[] ").split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple):
        return given
    words = [name.strip() if isinstance(name, str) else name for name in names]
    return tuple(word for word in words if word not in ("none", ""))


def _different(names: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
    return tuple(dict.fromkeys(names))


Trackers = Annotated[tuple[TrackerName, ...], BeforeValidator(_listed), AfterValidator(_different)]


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Refuse trackers that are not installed.

    Raises:
        ConfigError: With the command that installs it.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f'tracking={name}: {CALLED[name]} is not installed; run: pip install "fedshift[{EXTRAS[name]}]"'
            )

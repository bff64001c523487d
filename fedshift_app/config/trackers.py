"""``tracking``: the names of trackers in a configuration, and whether they are installed."""

import importlib.util
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from fedshift_core.errors import ConfigError

TrackerName = Literal["tensorboard", "mlflow", "wandb"]
#: What people call them, and the extra of FedShift that installs each.
CALLED = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "Weights & Biases"}
EXTRAS = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb"}


def _listed(told: Any) -> Any:
    """Return the names in what a configuration says: a list, names with commas, or ``none`` (what it was once)."""
    if told is None:
        return ()
    names = told.strip("[] ").split(",") if isinstance(told, str) else told
    if not isinstance(names, list | tuple):
        return told
    words = [one.strip() if isinstance(one, str) else one for one in names]
    return tuple(word for word in words if word not in ("none", ""))


def _different(names: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
    return tuple(dict.fromkeys(names))


Trackers = Annotated[tuple[TrackerName, ...], BeforeValidator(_listed), AfterValidator(_different)]


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Refuse to track with what is not installed.

    Raises:
        ConfigError: With the command that installs it.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f'tracking={name}: {CALLED[name]} is not installed; run: pip install "fedshift[{EXTRAS[name]}]"'
            )

"""Holds what features need against what a run is: one function for all of them, which names none."""

from dataclasses import dataclass

from fedshift_app.config.sections import RunConfig
from fedshift_core.features import FEATURES, ours
from fedshift_core.params import Params
from fedshift_core.registry import Method


@dataclass(frozen=True)
class Case:
    """A run whose features are checked.

    Attributes:
        config: Its configuration, complete but for the method's defaults.
        method: Its method.
        server: The server's side of the method's parameters.
        node: The node's side.
        finished: It is that of a finished run, which chooses nothing any more.
    """

    config: RunConfig
    method: Method
    server: Params
    node: Params
    finished: bool = False


def check(case: Case) -> None:
    """Refuse features that do not go with the rest of a run.

    Raises:
        ConfigError: With the key, its value, and what is allowed.
    """
    for feature in (*ours(), *(FEATURES[str(entry["name"])] for entry in case.config.features)):
        if feature.rules is not None:
            feature.rules(case)

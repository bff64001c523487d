"""Which rounds are scored."""

from typing import Any

import pytest
from refusals import refused

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import EvaluateConfig
from fedshift_core.errors import ConfigError


def scored(rounds: int, **config: Any) -> list[int]:
    schedule = EvaluateConfig(**config)
    return [number for number in range(1, rounds + 1) if schedule.scores_global(number, rounds)]


def with_clients(rounds: int, which: Any) -> list[int]:
    schedule = EvaluateConfig(client_models=which)
    return [number for number in range(1, rounds + 1) if schedule.scores_clients(number, rounds)]


def test_client_models_are_scored_when_asked_for() -> None:
    assert with_clients(8, "off") == with_clients(8, False) == []  # YAML reads off as false
    assert with_clients(7, "every") == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "text",
    ["every=0", "every=1.5", "last=0", "last=6", "fraction=0", "fraction=1.5", "client_models=on", "clients=last"],
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    key, value = text.split("=")
    with refused(ConfigError, f"evaluate.{key}", "" if key == "clients" else value.replace("on", "off")):
        resolve({"set": f"evaluate.{text}"})

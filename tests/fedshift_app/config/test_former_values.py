"""Keys that recorded runs lack, as they did not exist: the value that was in force then, not today's default."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from words import config as config_of

from fedshift.lab.grid.sweep import grid, records
from fedshift_app.config import validating, written
from fedshift_app.config.sections import RunConfig


def read_back(layers: dict[str, Any]) -> RunConfig:
    return written.read_back(validating.sections_of_run({"resolved": layers}))


def recorded(text: str) -> dict[str, Any]:
    """Return the sections that a run recorded before ``evaluate.bn_order`` existed."""
    layers = config_of(f"model.name=cnn_bn {text}").model_dump(mode="json")
    del layers["evaluate"]["bn_order"]
    return layers


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("evaluate.bn=[averaged,own]", "listed"),
        ("evaluate.bn=[retaken]", "listed"),
        ("evaluate.bn=[averaged,batch]", "shuffled"),  # it takes no statistics of training images
    ],
)
def test_statistics_of_runs_from_before_are_of_images_as_listed(text: str, order: str) -> None:
    layers = recorded(text)
    assert read_back(layers).evaluate.bn_order == order
    again: RunConfig = validating.validate(validating.sections_of_run({"resolved": layers}))
    assert again.evaluate.bn_order == order
    said = {**layers, "evaluate": {**layers["evaluate"], "bn_order": "shuffled"}}
    assert read_back(said).evaluate.bn_order == "shuffled"
    assert config_of(f"model.name=cnn_bn {text}").evaluate.bn_order == "shuffled"


def test_a_sweep_takes_a_run_from_before_only_for_what_it_was(tmp_path: Path) -> None:
    """Else seeds of one row would be of two orders."""
    text = "evaluate.bn=[averaged,own]"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump({"resolved": recorded(text), "nodes": 4}))
    made = records.read_run(file)
    assert made is not None
    listed, shuffled = (
        grid.identity(config_of(f"model.name=cnn_bn {text} evaluate.bn_order={order}"), 4)
        for order in ("listed", "shuffled")
    )
    assert made[0] == listed != shuffled

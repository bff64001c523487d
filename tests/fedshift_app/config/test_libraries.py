"""The package of a run's network, which is known before anything is checked or imported."""

from pathlib import Path

import pytest

from fedshift_app.config import resolving


@pytest.mark.parametrize(
    ("flat", "found"),
    [
        ({}, ()),
        ({"experiment": "pacs-pretrained"}, ("timm",)),
        ({"experiment": "pacs-pretrained", "set": "model.name=small-cnn"}, ()),
        ({"set": "model.name=torchvision:resnet18"}, ("torchvision",)),
        ({"experiment": "no-such"}, ()),
        ({"set": "model.name='"}, ()),
        ({"resume": "no-such-folder"}, ()),
    ],
)
def test_it_is_that_of_the_command_or_of_its_experiment(flat: dict[str, str], found: tuple[str, ...]) -> None:
    assert resolving.libraries(flat) == found


def test_what_cannot_be_read_is_refused_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: [")
    assert resolving.libraries({"resume": str(tmp_path)}) == ()
    (tmp_path / "config.yaml").write_text("resolved: 3\nmodel: {name: 7}")
    assert resolving.libraries({"resume": str(tmp_path)}) == ()

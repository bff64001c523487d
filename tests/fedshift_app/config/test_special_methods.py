"""``methods: NAME:`` of an experiment is checked for every method that it names, whichever runs."""

from pathlib import Path

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError

HEAD = """\
dataset: {name: handwritten}
model: {name: cnn}
method: {name: fedavg}
train: {epochs: 1, batch_size: 8, lr: 0.1}
rounds: 2
"""


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("{key: garbage}", "unknown key method.key"),
        ("{tau: garbage}", "methods.i2pfl.tau: "),
        ("{tau: -1}", "methods.i2pfl.tau: "),
        ("{train: {lrr: 0.1}}", "unknown key methods.i2pfl.train.lrr"),
        ("{train: {lr: fast}}", "methods.i2pfl.train.lr: "),
        ("{model: {bn: nowhere}}", "methods.i2pfl.model.bn: "),
        ("{rounds: many}", "methods.i2pfl.rounds: "),
        ("{modules: [nothing_such]}", "nothing_such"),
        ("{dataset: {size: 8}}", "dataset.'size' of a method"),
        ("garbage", "i2pfl: expected a mapping"),
    ],
)
@pytest.mark.parametrize("runs", ["fedavg", "i2pfl"])
def test_garbage_is_refused(entry: str, reason: str, runs: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{HEAD}methods: {{i2pfl: {entry}}}\n")
    with pytest.raises(ConfigError) as caught:
        resolve({"experiment": str(file), "method": runs})
    assert reason in str(caught.value) or runs == "i2pfl"


def test_what_is_right_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(HEAD)
    before = resolve({"experiment": str(file)})
    file.write_text(HEAD + "methods: {i2pfl: {tau: 0.1, train: {lr: 0.2}, rounds: 5}, f2dc: {sigma: 0.2}}\n")
    assert resolve({"experiment": str(file)}) == before
    assert resolve({"experiment": str(file), "method": "i2pfl"}).method["tau"] == 0.1

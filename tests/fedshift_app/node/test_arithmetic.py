"""What trains fastest here: measured once, kept, measured anew where it is damaged or of another machine."""

from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused

from fedshift_app.config.resolving import resolve
from fedshift_app.node import precision as node_precision
from fedshift_app.node import setup
from fedshift_clients.training import autotune
from fedshift_clients.training.autotune import Found, Work
from fedshift_core.errors import ConfigError
from fedshift_datasets.io import cache

CPU = torch.device("cpu")
WORK = Work("cnn", 0, "none", 32, 32)


class Measured:
    """Stands for ``autotune.measure``.

    Attributes:
        works: What was measured.
        found: What comes of it.
    """

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.found = Found("float32/nchw", {"float32/channels_last": 2.0, "float32/nchw": 1.0}, 16)

    def __call__(self, work: Work, device: torch.device) -> Found:
        self.works.append(work)
        return self.found


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measured:
    made = Measured()
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(node_precision.ASKED)
    monkeypatch.setattr(autotune, "measure", made)
    node_precision._known.cache_clear()
    return made


def test_it_is_measured_once_and_kept(measured: Measured) -> None:
    for _ in range(3):
        assert node_precision.chosen(WORK, CPU) == "float32/nchw"
    assert measured.works == [WORK]
    ((path, entry),) = node_precision.entries()
    assert entry is not None
    assert (entry.choice, entry.images, entry.work.batch) == ("float32/nchw", 16, 32)
    assert node_precision.is_here(entry)
    assert [f"{folder.stat().st_mode & 0o777:o}" for folder in (path.parent, path.parent.parent)] == ["700", "700"]
    node_precision.chosen(Work("cnn", 0, "none", 32, 64), CPU)  # another batch is another question
    assert len(node_precision.entries()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff" * 20_000,
        b'{"choice": "fp8"}',
        b"[" * 5000,
        (b'"format": 2', b'"format": 1'),
        (b'"cnn"', b'"resnet10"'),
    ],
)
def test_a_file_that_is_damaged_of_an_earlier_version_or_of_other_work_is_measured_anew(
    damage: Any, measured: Measured
) -> None:
    node_precision.chosen(WORK, CPU)
    ((path, _),) = node_precision.entries()
    path.write_bytes(damage if isinstance(damage, bytes) else path.read_bytes().replace(*damage))
    ((_, entry),) = node_precision.entries()
    assert entry is None or not node_precision.is_here(entry) or entry.work != WORK
    assert node_precision.chosen(WORK, CPU) == "float32/nchw"
    assert len(measured.works) == 2


@pytest.mark.parametrize(("freeze", "expected"), [("encoder", "float32/channels_last"), ("stages:2", "float32/nchw")])
def test_with_kept_features_only_what_still_trains_decides(freeze: str, expected: str, measured: Measured) -> None:
    config = resolve({"set": f"model.name=resnet10 model.freeze={freeze} model.precompute=on images.crop_padding=0"})
    assert node_precision.fastest_here(config, config.model) == expected


def test_what_was_too_long_to_measure_is_not_kept(measured: Measured) -> None:
    measured.found = Found("float32/channels_last", {}, 4)
    assert node_precision.chosen(WORK, CPU) == "float32/channels_last"
    assert node_precision.entries() == []


@pytest.mark.parametrize("said", ["train.precision=float32", "train.arithmetic=bf16/nchw", "train.arithmetic=hardware"])
def test_nothing_is_measured_where_the_run_says_how_nodes_compute(said: str, measured: Measured) -> None:
    config = resolve({"set": said})
    assert node_precision.fastest_here(config, config.model) is None
    assert measured.works == []


def test_a_machine_may_be_configured(measured: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve({})
    for requested, expected in (("hardware", setup.precision.by_hardware(CPU)), ("bf16/nchw", "bf16/nchw")):
        monkeypatch.setenv(node_precision.ASKED, requested)
        assert node_precision.fastest_here(config, config.model) == expected
    monkeypatch.setenv(node_precision.ASKED, "fp8")
    with refused(ConfigError, "FEDSHIFT_ARITHMETIC", "'fp8'"):
        node_precision.fastest_here(config, config.model)
    assert measured.works == []

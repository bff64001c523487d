"""`fedshift prepare` of an experiment with model.precompute=on: all is there before the run, with the same bits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import save_file
from support import InlineRun, Run, refusal_of

from clients.training.precomputed import FrozenFeatures
from datasets.io import cache, feature_store
from fedshift.data import prepare
from fedshift_app.config import resolving
from fedshift_app.node import setup
from fedshift_core.errors import ConfigError, DataError

#: Of a run on 4 x (359 or 360 + 90) images.
FROZEN = ("model.precompute=on", "model.freeze=stages:1", "train.epochs=1", "rounds=1")
AS_THEY_ARE = (*FROZEN, "images.crop_padding=0")
IN_VIEWS = (*FROZEN, "images.cached_views=2")
IMAGES, TRAINED_ON = 1797, 1437
ONCE = "is computed once for"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of the test's own."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "cache"


def _rows() -> int:
    return sum(store.rows for store in feature_store.kept())


def _run(run_inline: InlineRun, keys: tuple[str, ...], **flat: Any) -> Run:
    return run_inline("handwritten", nodes=4, set=" ".join(keys), **flat)


def _file_of_weights(folder: Path) -> Path:
    """Write the weights of an initial model to a file."""
    model = setup.initial_model(resolving.resolve({"experiment": "handwritten", "seed": 7}))
    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def _weights(run: Run) -> bytes:
    return max((run.folder / "checkpoint").glob("weights-*.safetensors")).read_bytes()


@pytest.mark.parametrize(("keys", "rows"), [(AS_THEY_ARE, IMAGES), (IN_VIEWS, IMAGES + 2 * TRAINED_ON)])
def test_a_run_finds_all_features_and_has_the_same_bits(
    keys: tuple[str, ...], rows: int, run_inline: InlineRun, folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keys = (*keys, f"model.weights={_file_of_weights(tmp_path)}")  # without it each seed has other weights
    assert prepare.prepare("handwritten", list(keys), as_json=False) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"features: stages:1 of cnn, {rows:,} images and views, {rows:,} of them computed now (")
    assert line.endswith(f"in {folder / 'features'}")
    assert _rows() == rows
    for seed in (0, 1):  # which deals other images to the nodes
        prepared = _run(run_inline, keys, seed=seed)
        assert _rows() == rows
    said = capsys.readouterr().out
    assert "round 1/1" in said
    assert ONCE not in said
    monkeypatch.setenv(cache.CACHE_DIR, str(folder) + "-2")
    plain = _run(run_inline, keys, seed=1)
    assert ONCE in capsys.readouterr().out
    assert _weights(plain) == _weights(prepared)


def test_again_nothing_is_computed_and_json_is_alone_on_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=False)
    capsys.readouterr()
    assert prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=True) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["classes"]
    assert "1,797 images and views, 0 of them computed now (0 bytes)" in said.err


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupted_it_goes_on(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed, sizes = FrozenFeatures._computed, list[int]()

    def few(self: FrozenFeatures, images: Any, index: NDArray[np.int64], view: int) -> NDArray[Any]:
        if len(sizes) == 3:
            raise kind
        sizes.append(len(index))
        return computed(self, images, index, view)

    with monkeypatch.context() as patch:
        patch.setattr(FrozenFeatures, "_computed", few)
        with pytest.raises(kind):
            prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=False)
    assert "features: stopped, " in capsys.readouterr().err
    kept = _rows()
    assert kept == sum(sizes) > 0
    prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=False)
    assert f"1,797 images and views, {IMAGES - kept:,} of them computed now" in capsys.readouterr().out
    assert _rows() == IMAGES


def test_corrupted_test_images_of_the_run_are_computed_too(
    run_inline: InlineRun, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = (*AS_THEY_ARE, "shift.name=corruption", "shift.severity=2")
    prepare.prepare("handwritten", list(keys), as_json=False)
    assert _rows() == IMAGES + 4 * 90
    _run(run_inline, keys)
    said = capsys.readouterr().out
    assert "round 1/1" in said
    assert ONCE not in said


def test_there_must_be_room_before_the_work() -> None:
    keys = [*AS_THEY_ARE, "model.precompute_gb=0.01"]
    text = refusal_of(DataError, prepare.prepare, "handwritten", keys, as_json=False)
    assert "features of 1797 images need 22.6 MB" in text
    assert "may hold 10.0 MB (model.precompute_gb)" in text
    assert _rows() == 0


def test_an_experiment_without_it_and_a_data_set_compute_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.prepare("handwritten", [], as_json=False) == 0
    assert prepare.prepare("handwritten", ["train.epochs=1", "nodes=4"], as_json=False) == 0
    assert "features" not in capsys.readouterr().out
    assert _rows() == 0


def test_a_data_set_refuses_keys_of_a_run_and_an_experiment_unknown_ones() -> None:
    text = refusal_of(ConfigError, prepare.prepare, "pacs", ["model.precompute=on"], as_json=False)
    assert text == "'model.precompute=on': prepare accepts data-dir=DIR and dataset.KEY=VALUE"
    text = refusal_of(ConfigError, prepare.prepare, "handwritten", ["model.precompte=on"], as_json=False)
    assert "model.precompte" in text
    keys = [*FROZEN, "images.crop_padding=0", "model.freeze=none"]
    assert "needs a frozen beginning" in refusal_of(ConfigError, prepare.prepare, "handwritten", keys, as_json=False)

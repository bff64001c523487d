"""``model.precompute``: runs on kept features give the results of runs that compute them anew; `fedshift prepare`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from safetensors.numpy import load_file
from safetensors.torch import save_file
from support import InlineRun, Run

from fedshift.data import prepare
from fedshift.run.launch import runner, worker_count
from fedshift_app.config import registry, resolving
from fedshift_app.node import setup
from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_datasets.io import cache, feature_store, kept
from fedshift_datasets.listing import ImageSet

# --- ``model.precompute``: runs on kept features give the results of runs that compute them anew ---

TWO = "dataset.domains=[scan,sketch]"
PLAIN = f"{TWO} allocation.share=0.05 images.crop_padding=0 train.precision=float32 train.epochs=1"
VECTORS = f"{PLAIN} model.freeze=encoder model.projection=16"
MAPS = f"{PLAIN} model.freeze=stages:1 model.precompute_maps=float32"
#: Of each kind of method one or two; all others are like one of them.
QUICK = ("i2pfl", "fedcode", "fedseproto", "fedmd", "t3a")
#: A frozen encoder is nothing for them, or their adaptation or augmentation needs the images.
REFUSED = ("eata", "fdse", "fedbn", "fedccrl", "fedicon", "fedrdn", "gperxan", "stablefdg", "tent")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of the test's own."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(run: Run) -> dict[str, Any]:
    """Return the shared weights after the last round."""
    return load_file(sorted(run.folder.glob("checkpoint/weights-*.safetensors"))[-1])


def pair(run_inline: InlineRun, method: str, settings: str, **flat: Any) -> tuple[Run, Run]:
    """Return a run that computes frozen parts anew, and one that keeps them."""
    short = registry.get(method).short
    off, on = (
        run_inline(rounds=2, method=method, set=f"{settings} {short} model.precompute={value}", **flat)
        for value in ("off", "on")
    )
    return off, on


def check_alike(off: Run, on: Run) -> None:
    one, other = weights(off), weights(on)
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-5, err_msg=name)
    assert [line["accuracy"] for line in off.rounds] == [line["accuracy"] for line in on.rounds]
    for before, now in zip(off.rounds, on.rounds, strict=True):
        assert before["losses"] == pytest.approx(now["losses"], rel=1e-5)


def rows_of_stores() -> list[int]:
    return [kept.read(path, check=False).number for path in feature_store.stores()]


@pytest.mark.parametrize("method", QUICK)
def test_kept_features_change_no_result(method: str, run_inline: InlineRun) -> None:
    check_alike(*pair(run_inline, method, VECTORS, nodes=2))
    assert rows_of_stores()


@pytest.mark.long
@pytest.mark.parametrize("method", sorted(set(registry.METHODS) - set(QUICK) - set(REFUSED)))
def test_kept_features_change_no_result_of_any_method(method: str, run_inline: InlineRun) -> None:
    repeats = " method.repeatable_noise=true" if method == "fedpall" else ""
    check_alike(*pair(run_inline, method, f"{VECTORS} model.precompute_maps=float32{repeats}"))


@pytest.mark.parametrize("method", ["f2dc", "scaffold"])
def test_kept_maps_change_no_result(method: str, run_inline: InlineRun) -> None:
    check_alike(*pair(run_inline, method, MAPS, nodes=2))


def test_statistics_of_frozen_batchnorm_stay_whatever_scores(run_inline: InlineRun) -> None:
    ways = "model.name=cnn_bn evaluate.bn=[averaged,retaken,own,batch]"
    off, on = pair(run_inline, "fedavg", f"{MAPS} {ways}", nodes=2)
    check_alike(off, on)
    for before, now in zip(off.rounds, on.rounds, strict=True):
        assert before["others"] == now["others"]
        assert set(before["others"]) == {"bn=retaken", "bn=own", "bn=batch"}


def test_the_second_run_computes_nothing(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_inline(rounds=1, set=f"{VECTORS} model.precompute=on")
    rows = rows_of_stores()
    assert len(rows) == 1
    log = (first.folder / "log.jsonl").read_text()
    monkeypatch.setattr(FrozenFeatures, "_computed", None)  # it would be called
    second = run_inline(rounds=1, set=f"{VECTORS} model.precompute=on")
    other = run_inline(rounds=1, method="fedproto", set=f"{VECTORS} model.precompute=on train.lr=0.02")
    assert rows_of_stores() == rows
    assert "computed once" not in (second.folder / "log.jsonl").read_text() + log
    for name, array in weights(first).items():
        np.testing.assert_array_equal(weights(second)[name], array)
        assert other.results


def test_processes_agree_bit_for_bit(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    views = "images.flip=true images.cached_views=3 evaluate.client_models=last evaluate.last=1"
    given = f"{MAPS} {views} model.precompute=on"
    alone = run_inline(rounds=2, set=given)
    monkeypatch.setenv(worker_count.WORKERS, "2")
    shared = run_inline(rounds=2, set=given)
    assert [line["accuracy"] for line in alone.rounds] == [line["accuracy"] for line in shared.rounds]
    for name, array in weights(alone).items():
        np.testing.assert_array_equal(weights(shared)[name], array)


def test_a_resumed_run_gives_the_same_bits(run_inline: InlineRun) -> None:
    settings = f"{VECTORS} model.precompute=on"
    whole = run_inline(rounds=3, method="fedproto", set=settings)
    begun = run_inline(rounds=2, method="fedproto", set=settings)
    resumed = Run(runner.run_inline({"resume": str(begun.folder), "set": "rounds=3"}, 4))
    for name, array in weights(whole).items():
        np.testing.assert_array_equal(weights(resumed)[name], array)


FLIPS = ImageConfig(flip=True, crop_padding=2, cached_views=4)


def noise(number: int) -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (number, 32, 32, 3), np.uint8)
    return ImageSet(images, np.zeros(number, np.int64))


def frozen(views: ImageConfig = FLIPS, *, name: str = "cnn", threads: int = 1) -> tuple[SplitModel, FrozenFeatures]:
    """Return a network with a frozen encoder, and what computes and keeps its features."""
    model = networks.build(name, 7, seed=0)
    freeze(model, "encoder", name)
    model = model.to(memory_format=torch.channels_last)
    config = ModelConfig(name=name, freeze="encoder", precompute=True)
    return model, FrozenFeatures(model, config, views, "float32", torch.channels_last, 32, threads)


def test_an_image_has_the_same_features_in_any_company(tmp_path: Path) -> None:
    images, order = noise(19), np.random.default_rng(1).permutation(19)
    for view in (0, 2):
        together = frozen(name="resnet10", threads=2)[1].of(images, view).take(slice(None))
        (feature_store.root()).rename(tmp_path / f"before-{view}")
        other = frozen(name="resnet10")[1]
        parts = [other.of(images.select(order[start : start + 7]), view).take(slice(None)) for start in range(0, 19, 7)]
        assert torch.equal(torch.cat(parts), together[torch.from_numpy(order)])
        (feature_store.root()).rename(tmp_path / f"after-{view}")
    assert feature_store.stores() == []


def test_an_epoch_takes_kept_views_by_its_generator() -> None:
    images, index = noise(40), torch.arange(40)
    _, features = frozen()

    def drawn(seed: int) -> torch.Tensor:
        return features.drawn(images, index, torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    views = torch.stack([features.of(images, view).take(index) for view in range(1, 5)])
    assert (drawn(1) == views).all(dim=2).any(dim=0).all()  # each row is that of one of the image's views
    assert len({row.numpy().tobytes() for row in views[:, 0]}) > 1


def test_a_method_that_changes_what_is_frozen_is_stopped() -> None:
    images, (model, features) = noise(4), frozen(ImageConfig())
    before = features.of(images).take(slice(None))
    weight = model.state_dict()["encoder.0.weight"]
    weight.copy_(weight.clone())  # written, but as it was
    assert torch.equal(features.of(images).take(slice(None)), before)
    weight.add_(0.1)
    with refused(ConfigError, "frozen", "cnn"):
        features.of(images)
    features.renew()
    assert not torch.equal(features.of(images).take(slice(None)), before)


def test_a_bound_on_the_disk_is_said_before_the_work(run_inline: InlineRun, tmp_path: Path) -> None:
    settings = f"{VECTORS} model.precompute=on model.precompute_gb=0.00001"
    with pytest.raises(FedShiftError, match=r"model\.precompute_gb"):
        run_inline(rounds=1, set=settings)
    assert rows_of_stores() in ([], [0])
    assert not list((tmp_path / "runs").glob("*/metrics.jsonl"))


# --- `fedshift prepare` of an experiment with model.precompute=on: all is there before the run, with the same bits ---

#: Of a run on 2 x (359 or 360 + 90) images.
FROZEN = (TWO, "model.precompute=on", "model.freeze=stages:1", "train.epochs=1", "rounds=1")
AS_THEY_ARE = (*FROZEN, "images.crop_padding=0")
IN_VIEWS = (*FROZEN, "images.cached_views=2")
IMAGES, TRAINED_ON = 899, 719
ONCE = "is computed once for"


def _rows() -> int:
    return sum(rows_of_stores())


def _run(run_inline: InlineRun, keys: tuple[str, ...], **flat: Any) -> Run:
    return run_inline("handwritten", nodes=4, set=" ".join(keys), **flat)


def _file_of_weights(folder: Path) -> Path:
    """Write the weights of an initial model to a file."""
    model = setup.initial_model(resolving.resolve({"experiment": "handwritten", "seed": 7}))
    save_file(model.state_dict(), folder / "weights.safetensors")
    return folder / "weights.safetensors"


def _weights(run: Run) -> bytes:
    return max((run.folder / "checkpoint").glob("weights-*.safetensors")).read_bytes()


@pytest.mark.parametrize(
    ("keys", "rows"), [pytest.param(AS_THEY_ARE, IMAGES, marks=pytest.mark.long), (IN_VIEWS, IMAGES + 2 * TRAINED_ON)]
)
def test_a_run_finds_all_features_and_has_the_same_bits(
    keys: tuple[str, ...], rows: int, run_inline: InlineRun, folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    keys = (*keys, f"model.weights={_file_of_weights(tmp_path)}")  # without it each seed has other weights
    assert prepare.prepare("handwritten", list(keys), as_json=False) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"{rows:,} of them computed now" in line and line.endswith(str(folder / "features"))
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


def test_interrupted_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    computed, sizes = FrozenFeatures._computed, list[int]()

    def few(self: FrozenFeatures, images: Any, index: NDArray[np.int64], view: int) -> NDArray[Any]:
        if len(sizes) == 3:
            raise KeyboardInterrupt
        sizes.append(len(index))
        return computed(self, images, index, view)

    with monkeypatch.context() as patch:
        patch.setattr(FrozenFeatures, "_computed", few)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=False)
    kept = _rows()
    assert kept == sum(sizes) > 0
    prepare.prepare("handwritten", list(AS_THEY_ARE), as_json=False)
    assert _rows() == IMAGES


def test_there_must_be_room_before_the_work() -> None:
    with refused(DataError, IMAGES, "model.precompute_gb"):
        prepare.prepare("handwritten", [*AS_THEY_ARE, "model.precompute_gb=0.01"], as_json=False)
    assert _rows() == 0


@pytest.mark.parametrize(
    ("name", "key"),
    [("pacs", "model.precompute=on"), ("handwritten", "model.precompte=on"), ("handwritten", "model.precompute=on")],
)
def test_keys_that_are_none_of_a_data_set_or_not_of_an_experiment_are_refused(name: str, key: str) -> None:
    with refused(ConfigError, key.partition("=")[0]):
        prepare.prepare(name, [key], as_json=False)

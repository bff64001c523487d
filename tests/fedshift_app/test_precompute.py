"""``model.precompute``: runs on kept features give the results of runs that compute them anew; `fedshift prepare`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import save_file
from support import InlineRun, Run, image_set, on_images, rng
from words import config as config_of

from fedshift.data import prepare
from fedshift_app.config import registry
from fedshift_app.node import setup
from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_datasets.io import cache, feature_store, kept
from fedshift_datasets.listing import ImageSet

# --- ``model.precompute``: runs on kept features give the results of runs that compute them anew ---

TWO, ONE = "dataset.domains=[scan,sketch]", "nodes=2 dataset.domains=[sketch]"
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


def pair(run_inline: InlineRun, method: str, settings: str) -> tuple[Run, Run]:
    """Return a run that computes frozen parts anew, and one that keeps them, which must be alike."""
    given = f"rounds=2 method={method} {settings} {registry.get(method).short} model.precompute="
    off, on = (run_inline(f"{given}{value}") for value in ("off", "on"))
    one, other = off.weights, on.weights
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-5, err_msg=name)
    assert [line["accuracy"] for line in off.rounds] == [line["accuracy"] for line in on.rounds]
    for before, now in zip(off.rounds, on.rounds, strict=True):
        assert before["losses"] == pytest.approx(now["losses"], rel=1e-5)
    return off, on


def check_same(first: Run, second: Run) -> None:
    for name, array in first.weights.items():
        np.testing.assert_array_equal(second.weights[name], array)


def rows_of_stores() -> list[int]:
    return [kept.read(path, check=False).number for path in feature_store.stores()]


@pytest.mark.parametrize(
    "typed", [*(f"{method} {VECTORS} {ONE}" for method in QUICK), f"f2dc {MAPS} {ONE}", f"scaffold {MAPS} {ONE}"]
)
def test_kept_features_and_maps_change_no_result(typed: str, run_inline: InlineRun) -> None:
    pair(run_inline, *typed.split(" ", 1))
    assert rows_of_stores()


@pytest.mark.long
@pytest.mark.parametrize("method", sorted({*on_images(registry.METHODS)} - set(QUICK) - set(REFUSED)))
def test_kept_features_change_no_result_of_any_method(method: str, run_inline: InlineRun) -> None:
    repeats = " method.repeatable_noise=true" if method == "fedpall" else ""
    pair(run_inline, method, f"{VECTORS} model.precompute_maps=float32{repeats}")


def test_statistics_of_frozen_batchnorm_stay_whatever_scores(run_inline: InlineRun) -> None:
    ways = "model.name=cnn_bn evaluate.bn=[averaged,retaken,own,batch]"
    off, on = pair(run_inline, "fedavg", f"{MAPS} {ways} {ONE}")
    assert [line["others"] for line in off.rounds] == [line["others"] for line in on.rounds]
    assert {*off.rounds[0]["others"]} == {"bn=retaken", "bn=own", "bn=batch"}


def test_the_second_run_computes_nothing(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    given = f"nodes=2 rounds=1 {VECTORS} model.precompute=on"
    first = run_inline(given)
    rows = rows_of_stores()
    assert len(rows) == 1
    monkeypatch.setattr(FrozenFeatures, "_computed", None)  # it would be called
    second = run_inline(given)
    assert run_inline(f"{given} method=fedproto train.lr=0.02").results and rows_of_stores() == rows
    assert not any("computed once" in (run.folder / "log.jsonl").read_text() for run in (first, second))
    check_same(first, second)


def test_a_resumed_run_gives_the_same_bits(run_inline: InlineRun) -> None:
    whole, begun = (run_inline(f"nodes=2 rounds={n} method=fedproto {VECTORS} model.precompute=on") for n in (2, 1))
    check_same(whole, run_inline("", nodes=2, resume=str(begun.folder), rounds=2))


FLIPS = ImageConfig(flip=True, crop_padding=2, cached_views=4)


def noise(number: int) -> ImageSet:
    return image_set(number, classes=1)


def frozen(views: ImageConfig = FLIPS, *, name: str = "cnn", threads: int = 1) -> tuple[SplitModel, FrozenFeatures]:
    """Return a network with a frozen encoder, and what computes and keeps its features."""
    model = networks.build(name, 7, seed=0)
    freeze(model, "encoder", name)
    model = model.to(memory_format=torch.channels_last)
    config = ModelConfig(name=name, freeze="encoder", precompute=True)
    return model, FrozenFeatures(model, config, views, "float32", torch.channels_last, 32, threads)


def test_an_image_has_the_same_features_in_any_company(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    images, order = noise(19), np.random.default_rng(1).permutation(19)
    for view in (0, 2):
        together = frozen(name="resnet10", threads=2)[1].of(images, view).take(slice(None))
        monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / f"another-{view}"))
        assert feature_store.stores() == []
        other = frozen(name="resnet10")[1]
        parts = [other.of(images.select(order[start : start + 7]), view).take(slice(None)) for start in range(0, 19, 7)]
        assert torch.equal(torch.cat(parts), together[torch.from_numpy(order)])


def test_an_epoch_takes_kept_views_by_its_generator() -> None:
    images, index, (_, features) = noise(40), torch.arange(40), frozen()
    one, same, other = (features.drawn(images, index, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    views = torch.stack([features.of(images, view).take(index) for view in range(1, 5)])
    assert (one == views).all(dim=2).any(dim=0).all()  # each row is that of one of the image's views
    assert len(views[:, 0].unique(dim=0)) > 1


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


# --- `fedshift prepare` of an experiment with model.precompute=on: all is there before the run, with the same bits ---

#: Of a run on 359 + 90 images.
FROZEN = ("dataset.domains=[sketch]", "model.precompute=on", "model.freeze=stages:1", "train.epochs=1", "rounds=1")
IMAGES, TRAINED_ON = 449, 359
ONCE = "is computed once for"


def test_a_run_finds_all_features_and_has_the_same_bits(
    run_inline: InlineRun, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    rows = IMAGES + 2 * TRAINED_ON
    file = tmp_path / "weights.safetensors"  # without it each seed has other weights
    save_file(setup.initial_model(config_of("seed=7")).state_dict(), file)
    keys = (*FROZEN, "images.cached_views=2", f"model.weights={file}")
    assert prepare.prepare("handwritten", list(keys), as_json=False) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert f"{rows:,} of them computed now" in line and line.endswith(str(folder / "features"))
    for seed in (0, 1):  # which deals other images to the nodes
        prepared = run_inline(f"nodes=2 seed={seed} {' '.join(keys)}")
        assert sum(rows_of_stores()) == rows
    said = capsys.readouterr().out
    assert "round 1/1" in said and ONCE not in said
    monkeypatch.setenv(cache.CACHE_DIR, str(folder) + "-2")
    check_same(run_inline(f"nodes=2 seed=1 {' '.join(keys)}"), prepared)
    assert ONCE in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "key"),
    [("pacs", "model.precompute=on"), ("handwritten", "model.precompte=on"), ("handwritten", "model.precompute=on")],
)
def test_keys_that_are_none_of_a_data_set_or_not_of_an_experiment_are_refused(name: str, key: str) -> None:
    with refused(ConfigError, key.partition("=")[0]):
        prepare.prepare(name, [key], as_json=False)

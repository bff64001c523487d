"""``model.precompute``: runs on kept features give the results of runs that compute them anew; `fedshift prepare`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.torch import save_file
from support import InlineRun, Run, refusal_of

from fedshift.data import prepare
from fedshift.run.launch import runner, worker_count
from fedshift_app import server_app
from fedshift_app.config import registry, resolving
from fedshift_app.config.resolving import resolve
from fedshift_app.node import setup
from fedshift_app.run import precomputing
from fedshift_clients.models import networks
from fedshift_clients.models.freezing import freeze
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError, DataError
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


@pytest.mark.parametrize("frozen", ["model.freeze=norm", "model.freeze=encoder model.projection=16"])
def test_frozen_batchnorm_has_no_other_statistics(frozen: str, run_inline: InlineRun) -> None:
    settings = f"{PLAIN} model.name=cnn_bn {frozen} evaluate.bn=[averaged,own]"
    freeze = frozen.split()[0]
    assert refusal_of(ConfigError, run_inline, rounds=1, set=settings) == (
        f"evaluate.bn=[averaged,own]: {freeze} freezes all BatchNorm of cnn_bn, statistics included; allowed is "
        "[averaged]"
    )


def test_halves_of_maps_are_near(run_inline: InlineRun) -> None:
    settings = MAPS.replace("float32", "{}", 2).format("float32", "bfloat16")
    off, on = pair(run_inline, "fedavg", settings, nodes=2)
    one, other = weights(off), weights(on)
    assert max(np.abs(one[name] - other[name]).max() for name in one) < 1e-2
    assert any((one[name] != other[name]).any() for name in one)


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


def test_a_terminal_sees_how_far_the_features_are(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(server_app, "_tell", reports.append)
    monkeypatch.setattr(precomputing, "TELL_SECONDS", 0.0)
    with pytest.raises(FileNotFoundError):  # nobody wrote where the run folder is
        run_inline(rounds=1, set=f"{VECTORS} model.precompute=on")
    first, *between, last = [line["features"] for line in reports if line.get("features")]
    assert first == {"done": 0, "of": last["of"], "seconds_left": None} and last["done"] == last["of"] > 0
    assert last["seconds_left"] == 0 and all(line["run_folder"] is None for line in reports if line.get("features"))
    done = [line["done"] for line in between]
    assert len(done) > 2 and done == sorted(done)


@pytest.mark.parametrize("settings", [pytest.param(VECTORS, marks=pytest.mark.long), MAPS])
def test_processes_agree_bit_for_bit(settings: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> None:
    views = "images.flip=true images.cached_views=3 evaluate.client_models=last evaluate.last=1"
    alone = run_inline(rounds=2, set=f"{settings} {views} model.precompute=on")
    monkeypatch.setenv(worker_count.WORKERS, "2")
    shared = run_inline(rounds=2, set=f"{settings} {views} model.precompute=on")
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


def test_not_each_round_has_a_checkpoint(run_inline: InlineRun) -> None:
    settings = f"{VECTORS} model.precompute=on checkpoint_seconds=1000"
    run = run_inline(rounds=3, set=settings)
    assert [path.name for path in sorted(run.folder.glob("checkpoint/round-*"))] == [
        "round-00001.json", "round-00003.json",
    ]  # fmt: skip
    assert len(run.rounds) == 3
    local = run_inline(rounds=3, method="local", set=settings)  # its nodes keep their models
    assert [path.name for path in sorted(local.folder.glob("checkpoint/round-*.json"))] == [
        "round-00002.json", "round-00003.json",
    ]  # fmt: skip


def test_an_image_has_the_same_features_in_any_company(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = ImageSet(rng.integers(0, 256, (19, 32, 32, 3), np.uint8), np.zeros(19, np.int64))
    config = ModelConfig(name="resnet10", freeze="encoder", precompute=True)

    def features(threads: int) -> FrozenFeatures:
        model = networks.build("resnet10", 7, seed=0)
        freeze(model, "encoder", "resnet10")
        flips = ImageConfig(flip=True, crop_padding=2, jitter=(0.4, 0.4, 0.4, 0.1), cached_views=2)
        model = model.to(memory_format=torch.channels_last)
        return FrozenFeatures(model, config, flips, "float32", torch.channels_last, 16, threads)

    for view in (0, 2):
        together = features(2).of(images, view).take(slice(None))
        (feature_store.root()).rename(tmp_path / f"before-{view}")
        order = rng.permutation(19)
        other = features(1)
        parts = [other.of(images.select(order[start : start + 7]), view).take(slice(None)) for start in range(0, 19, 7)]
        assert torch.equal(torch.cat(parts), together[torch.from_numpy(order)])
        (feature_store.root()).rename(tmp_path / f"after-{view}")
    assert feature_store.stores() == []


def test_an_epoch_takes_kept_views_by_its_generator() -> None:
    rng = np.random.default_rng(0)
    images = ImageSet(rng.integers(0, 256, (40, 32, 32, 3), np.uint8), np.zeros(40, np.int64))
    model = networks.build("cnn", 7, seed=0)
    freeze(model, "encoder", "cnn")
    config = ModelConfig(name="cnn", freeze="encoder", precompute=True)
    features = FrozenFeatures(
        model, config, ImageConfig(flip=True, crop_padding=2, cached_views=4), "float32", torch.channels_last, 32
    )
    index = torch.arange(40)

    def drawn(seed: int) -> torch.Tensor:
        return features.drawn(images, index, torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    views = torch.stack([features.of(images, view).take(index) for view in range(1, 5)])
    assert (drawn(1) == views).all(dim=2).any(dim=0).all()  # each row is that of one of the image's views
    assert len({row.numpy().tobytes() for row in views[:, 0]}) > 1


def test_a_method_that_changes_what_is_frozen_is_stopped() -> None:
    rng = np.random.default_rng(0)
    images = ImageSet(rng.integers(0, 256, (4, 32, 32, 3), np.uint8), np.zeros(4, np.int64))
    model = networks.build("cnn", 7, seed=0)
    freeze(model, "encoder", "cnn")
    config = ModelConfig(name="cnn", freeze="encoder", precompute=True)
    features = FrozenFeatures(model, config, ImageConfig(), "float32", torch.channels_last, 32)
    before = features.of(images).take(slice(None))
    weight = model.state_dict()["encoder.0.weight"]
    weight.copy_(weight.clone())  # written, but as it was
    assert torch.equal(features.of(images).take(slice(None)), before)
    weight.add_(0.1)
    assert "the method changes what is frozen of cnn" in refusal_of(ConfigError, features.of, images)
    features.renew()
    assert not torch.equal(features.of(images).take(slice(None)), before)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            "model.freeze=none",
            "model.precompute=on needs a frozen beginning: model.freeze=encoder or stages:N, found none",
        ),
        ("model.freeze=norm model.name=cnn_bn", "model.precompute=on needs a frozen beginning"),
        ("model.freeze=stages:1 model.name=cnn_bn model.bn=local", "statistics of model.bn=local change on the node"),
        (
            "images.flip=true",
            "of which each epoch takes one; or turn them off: images.flip=false",
        ),
        ("images.cached_views=4", "no augmentation is on, so all kept views would be the same"),
        ("images.views=2", "images.views=2 with model.precompute=on needs an augmentation and images.cached_views"),
        ("adapt.name=tent model.freeze=stages:1 model.name=cnn_bn", "adapt.name=tent changes what model.precompute=on"),
        ("method=fedcode model.freeze=stages:1", "fedcode's style encoder looks at the images"),
        ("method=fdse model.name=cnn_bn", "fdse gives each node layers of its own within the encoder"),
        ("model.precompute=off images.flip=true images.cached_views=2", "needs model.precompute=on, found off"),
        ("model.precompute_gb=0", "model.precompute_gb"),
        ("model.projection=-1", "model.projection"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_the_run(settings: str, reason: str) -> None:
    method, _, rest = settings.removeprefix("method=").partition(" ")
    method, settings = (method, rest) if settings.startswith("method=") else ("fedavg", settings)
    given = {"model.freeze": "encoder", "images.crop_padding": "0", "model.precompute": "on"}
    given |= dict(part.split("=") for part in settings.split())
    text = " ".join(f"{key}={value}" for key, value in given.items())
    assert reason in refusal_of(ConfigError, resolve, {"experiment": "handwritten", "method": method, "set": text})


def test_a_bound_on_the_disk_is_said_before_the_work(run_inline: InlineRun, tmp_path: Path) -> None:
    settings = f"{VECTORS} model.precompute=on model.precompute_gb=0.00001"
    message = refusal_of(Exception, run_inline, rounds=1, set=settings)
    assert "(model.precompute_gb)" in message
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
    assert line.startswith(f"features: stages:1 of cnn, {rows:,} images and views, {rows:,} of them computed now; ")
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
    assert f"{IMAGES} images and views, 0 of them computed now;" in said.err


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
    assert f"{IMAGES} images and views, {IMAGES - kept} of them computed now" in capsys.readouterr().out
    assert _rows() == IMAGES


def test_corrupted_test_images_of_the_run_are_computed_too(
    run_inline: InlineRun, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = (*AS_THEY_ARE, "shift.name=corruption", "shift.severity=2")
    prepare.prepare("handwritten", list(keys), as_json=False)
    assert _rows() == IMAGES + 2 * 90
    _run(run_inline, keys)
    said = capsys.readouterr().out
    assert "round 1/1" in said
    assert ONCE not in said


def test_there_must_be_room_before_the_work() -> None:
    keys = [*AS_THEY_ARE, "model.precompute_gb=0.01"]
    text = refusal_of(DataError, prepare.prepare, "handwritten", keys, as_json=False)
    assert f"features of {IMAGES} images need 11.3 MB" in text
    assert "may hold 10.0 MB (model.precompute_gb)" in text
    assert _rows() == 0


def test_an_experiment_without_it_and_a_data_set_compute_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.prepare("handwritten", [], as_json=False) == 0
    assert prepare.prepare("handwritten", ["train.epochs=1", "nodes=4"], as_json=False) == 0
    assert "features" not in capsys.readouterr().out
    assert _rows() == 0


def test_a_data_set_refuses_keys_of_a_run_and_an_experiment_unknown_ones() -> None:
    text = refusal_of(ConfigError, prepare.prepare, "pacs", ["model.precompute=on"], as_json=False)
    assert text == "'model.precompute=on': of a data set data-dir=DIR and dataset.KEY=VALUE are accepted"
    text = refusal_of(ConfigError, prepare.prepare, "handwritten", ["model.precompte=on"], as_json=False)
    assert "model.precompte" in text
    keys = [*FROZEN, "images.crop_padding=0", "model.freeze=none"]
    assert "needs a frozen beginning" in refusal_of(ConfigError, prepare.prepare, "handwritten", keys, as_json=False)

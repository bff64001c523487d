"""Segmentation: loss and figures against slow ones and MONAI's, what it needs of a run, and runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image
from refusals import refused
from safetensors.numpy import load_file
from support import InlineRun, rng

from fedshift.export import programs, scorer
from fedshift.export.forms import Form
from fedshift.lab.pages.report import command as report
from fedshift_app.config import needs, registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node import setup
from fedshift_app.tasks.segmentation import RECORD, UNITS, MaskOptions, figures
from fedshift_app.tasks.segmentation.losses import EPSILON, MaskGrading, MaskLoss
from fedshift_app.tasks.segmentation.server import Masks, _check
from fedshift_clients.images.augment import Pipeline
from fedshift_clients.models import networks
from fedshift_clients.training import per_image
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import Refused
from fedshift_core.wire.records import encode
from fedshift_datasets.listing import IGNORED

C, SHAPE = 3, (4, 9, 9)
SHORT = "train.epochs=1 train.precision=float32"
KEPT = "model.freeze=encoder model.precompute=on"
Pixels = NDArray[np.uint8]
pixels = arrays.arrays(np.uint8, SHAPE, elements=st.sampled_from([0, 1, 2, IGNORED]))
said = arrays.arrays(np.uint8, SHAPE, elements=st.integers(0, C - 1))


def logits_of(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE[0], C, *SHAPE[1:], generator=rng(seed), dtype=torch.float64)


def slow_loss(logits: NDArray[np.float64], y: Pixels, options: MaskOptions) -> list[float]:
    """Return the loss of each image, pixel by pixel."""
    losses = []
    for scores, mask in zip(logits, y, strict=True):
        places = [at for at in np.ndindex(*mask.shape) if mask[at] != IGNORED]
        p = {at: np.exp(scores[:, *at]) / np.exp(scores[:, *at]).sum() for at in places}
        ce = sum(-np.log(p[at][mask[at]]) for at in places) / max(len(places), 1)
        dice = []
        for k in range(0 if options.background else 1, C):
            both = sum(p[at][k] for at in places if mask[at] == k)
            dice.append((2 * both + EPSILON) / (sum(p[at][k] + (mask[at] == k) for at in places) + EPSILON))
        losses.append(float(options.ce * ce + options.dice * (1 - np.mean(dice))))
    return losses


@pytest.mark.parametrize("options", [{}, {"dice": 0.0}, {"ce": 0.0, "background": True}, {"ce": 0.5, "dice": 2.0}])
@settings(max_examples=10)
@given(y=pixels)
def test_the_loss_is_that_of_the_definition(options: dict[str, Any], y: Pixels) -> None:
    given, target = MaskOptions(**options), torch.from_numpy(y).long()
    loss, logits = MaskLoss(given), logits_of(0)
    wanted = slow_loss(logits.numpy(), y, given)
    np.testing.assert_allclose(loss.of_each(logits, target).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert float(loss(logits, target)) == pytest.approx(np.mean(wanted), rel=1e-5)


@settings(max_examples=30)
@given(y=pixels, predicted=said)
def test_an_image_scores_its_mean_dice_and_one_where_nothing_was_to_be_found(y: Pixels, predicted: Pixels) -> None:
    dice = figures.of_images(y, predicted, C, 1.0)[0]
    each = [float(np.mean(row[np.isfinite(row)])) if np.isfinite(row).any() else 1.0 for row in dice]
    grading = MaskGrading(MaskLoss(MaskOptions()), C)
    right = grading.right(torch.from_numpy(predicted).long(), torch.from_numpy(y).long())
    assert float(right) == pytest.approx(sum(each))


@settings(max_examples=30, deadline=None)
@given(y=said, predicted=said, tolerance=st.sampled_from([1, 2]), spacing=st.sampled_from([None, (0.7, 1.3)]))
def test_figures_equal_those_of_monai(
    y: Pixels, predicted: Pixels, tolerance: int, spacing: tuple[float, float] | None
) -> None:
    monai = pytest.importorskip("monai.metrics", reason="needs the extra segmentation")
    hot = [torch.from_numpy(np.stack([mask == k for k in range(C)], 1)) for mask in (predicted, y)]
    dice = monai.compute_dice(*hot, include_background=False, ignore_empty=True)
    iou = monai.compute_iou(*hot, include_background=False, ignore_empty=True)
    alike: dict[str, Any] = {"include_background": False, "spacing": spacing}
    far = monai.compute_hausdorff_distance(*hot, percentile=95, **alike)
    near = monai.compute_surface_dice(*hot, [float(tolerance)] * (C - 1), **alike)
    found = figures.of_images(y, predicted, C, float(tolerance), spacing and np.tile(spacing, (len(y), 1)))
    either = np.isfinite(found[0])
    both = np.isfinite(found[2])
    for name, theirs, counted in zip(figures.METRICS, (dice, iou, far, near), (both, both, both, either), strict=True):
        ours = found[figures.METRICS.index(name)]
        np.testing.assert_allclose(ours[counted], theirs.numpy()[counted], atol=1e-6, err_msg=name)
    assert not found[0][either & ~both].any() and not found[3][either & ~both].any()


def test_a_site_counts_patients_first_and_hides_classes_of_few_images() -> None:
    values = np.full((4, 6, 2), np.nan)
    values[:, :, 0] = [1.0, 0.0, 0.5, 0.5, 0.25, 0.75]
    values[:, :2, 1] = 1.0
    patients = np.array(["4", "4", "b", "", "", "c"])  # not image 4, which is on its own
    site = figures.of_site(values, patients, least=1)
    assert site[0, 0, [0, 3, 4]].tolist() == pytest.approx([np.mean([0.5, 0.5, 0.5, 0.25, 0.75]), 6, 5])
    assert site[0, 0, 1] < site[0, 0, 0] < site[0, 0, 2]
    assert site[0, 1].tolist() == [1.0, figures.ABSENT, figures.ABSENT, 2, 1]  # no interval of one patient
    hidden = figures.of_site(values, patients, least=3)
    assert (hidden[:, 1] == figures.ABSENT).all()


@settings(max_examples=20)
@given(seed=st.integers(0, 99), padding=st.integers(0, 4), flip=st.booleans(), crop=st.booleans())
def test_a_mask_moves_with_its_image(seed: int, padding: int, flip: bool, crop: bool) -> None:
    drawn = np.random.default_rng(seed)
    y = torch.from_numpy(drawn.integers(1, C, (3, 4, 4)).repeat(4, 1).repeat(4, 2).astype(np.uint8))
    x = (y[..., None] * 80).expand(-1, -1, -1, 3).contiguous()
    scale = {"resized_crop": (0.5, 1.0)} if crop else {}
    config = ImageConfig(crop_padding=padding, flip=flip, mean=(0, 0, 0), std=(1, 1, 1), **scale)
    pipeline = Pipeline(config, torch.device("cpu"))
    moved, masks = pipeline.with_targets(x, y, rng(seed))
    assert torch.equal(moved, pipeline.train(x, rng(seed)))  # the same draws, with masks and without
    shown = (moved[:, 0] * 255 / 80).round().to(torch.uint8)
    known = masks != IGNORED
    if crop:  # an image mixes pixels at the edges of classes, a mask does not
        assert (shown == masks)[known].float().mean() > 0.7
        assert set(masks.unique().tolist()) <= {1, 2, IGNORED}
    else:
        assert torch.equal(shown[known], masks[known]) and not shown[~known].any()


FITS = {
    "fedavg", "fedprox", "scaffold", "fedbn", "fedrdn", "fedfa", "feddyn", "ga", "fedheal", "fedala", "fedrep",
    "mixstyle", "moon", "local", "ditto", "afl", "fedavg-ft", "fedgma", "fediir", "fedomg", "fdse", "gperxan",
}  # fmt: skip


def test_methods_that_need_no_class_of_an_image_fit() -> None:
    assert {m.name for m in registry.listed() if not needs.why_not("dense targets", m)} >= FITS
    refusing = {
        "fedproto",
        "i2pfl",
        "t3a",
        "tent",
        "ggeur",
        "fedcode",
        "f2dc",
        "fed3r",
        "fedicon",
        "fedseproto",
        "fedmd",
    }
    assert all(needs.why_not("dense targets", registry.get(name)) for name in refusing)


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        ({"method": "fedproto"}, ("task", "segmentation", "fedproto", "fedavg", "scaffold")),
        ({"set": "adapt.name=tent"}, ("adapt.name=tent",)),
        ({"set": "train.sampler=balanced"}, ("train.sampler=balanced", "shuffle")),
        ({"set": "images.views=2"}, ("images.views=2",)),
        ({"set": "model.projection=8"}, ("model.projection=8", "0")),
        ({"set": f"{KEPT} images.cached_views=2"}, ("images.crop_padding", "model.precompute=on")),
        ({"experiment": "handwritten", "set": "model.name=unet:small"}, ("model.name=unet:small", "task=segmentation")),
        ({"set": "evaluate.figures=true"}, ("evaluate.figures=true", "false")),
        ({"set": "segmentation.ce=0 segmentation.dice=0"}, ("segmentation.ce=0", "segmentation.dice=0")),
        (
            {"set": "task=classification dataset.masks=true"},
            ("dataset.masks=true", "task=segmentation", "classification"),
        ),
        ({"set": "task=classification"}, ("task=classification", "handwritten-masks", "segmentation")),
        ({"experiment": "handwritten", "set": "task=segmentation"}, ("task=segmentation", "handwritten")),
        ({"experiment": "handwritten", "set": "segmentation.dice=2"}, ("segmentation", "task=classification")),
    ],
)
def test_what_goes_by_the_class_of_an_image_is_refused(flat: dict[str, str], named: tuple[str, ...]) -> None:
    with refused(ConfigError, *named):
        resolve({"experiment": "handwritten-masks", **flat})


@pytest.mark.parametrize(
    ("keys", "named"), [("model.name=cnn", ("model.name", "cnn", "unet")), ("modules=[f2dc]", ("unet:NAME", "stages"))]
)
def test_a_network_without_masks_is_refused_before_training(
    keys: str, named: tuple[str, ...], run_inline: InlineRun
) -> None:
    with refused(ConfigError, *named):
        run_inline("handwritten-masks", rounds=1, set=f"{SHORT} {keys}")


@pytest.mark.parametrize("form", ["torchscript", pytest.param("onnx", marks=pytest.mark.slow)])
def test_its_network_becomes_a_program_that_gives_the_same_scores(form: Form) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="pip install 'fedshift[onnx]'")
        pytest.importorskip("onnxscript", reason="pip install 'fedshift[onnx]'")
    config = resolve({"experiment": "handwritten-masks"})
    arrays = {name: tensor.numpy() for name, tensor in setup.initial_model(config).state_dict().items()}
    assert programs.made(scorer.rebuilt(config, arrays, "the initial"), form)  # it compares them


@pytest.mark.long
def test_kept_maps_change_no_result(run_inline: InlineRun) -> None:
    """All maps of a frozen encoder, or that of a frozen first stage; their decoder trains."""
    for freeze in ("encoder", "stages:1"):
        keys = f"{SHORT} images.crop_padding=0 model.freeze={freeze} model.precompute_maps=float32 model.precompute="
        anew, kept = (run_inline("handwritten-masks", rounds=1, nodes=2, set=f"{keys}{way}") for way in ("off", "on"))
        one, other = (load_file(next(run.folder.glob("checkpoint/weights-*.safetensors"))) for run in (anew, kept))
        for name, array in one.items():
            np.testing.assert_allclose(other[name], array, rtol=0, atol=1e-5, err_msg=name)
        assert [line["accuracy"] for line in anew.rounds] == [line["accuracy"] for line in kept.rounds]


@pytest.mark.long
def test_noise_is_on_clipped_gradients_of_single_images_of_a_decoder(run_inline: InlineRun) -> None:
    for package in ("opacus", "dp_accounting"):
        pytest.importorskip(package, reason="fedshift[dp] is not installed")
    torch.manual_seed(0)
    model = networks.with_group_norm(networks.bare("unet:small", C, 8), 2)
    x, loss = torch.rand(4, 3, 8, 8, generator=rng(0)), MaskLoss(MaskOptions())
    y, weights = torch.randint(0, C, (4, 8, 8), generator=rng(1)), list(model.parameters())
    wanted = [torch.zeros_like(weight) for weight in weights]
    for image in range(4):
        alone = torch.autograd.grad(loss.of_each(model(x[image : image + 1])[1], y[image : image + 1])[0], weights)
        norm = torch.stack([gradient.norm() for gradient in alone]).norm()
        for total, gradient in zip(wanted, alone, strict=True):
            total += gradient * min(1.0, 0.5 / float(norm))
    with per_image.per_image(model) as images:
        images.clipped_sum(loss.of_each(model(x)[1], y), 0.5)
    torch.testing.assert_close([weight.grad for weight in weights], wanted, rtol=1e-3, atol=1e-5)
    keys = "privacy.name=dp-sgd privacy.noise_multiplier=0.5 model.bn=group"
    run = run_inline("handwritten-masks", rounds=1, nodes=2, set=f"{SHORT} {keys} dataset.domains=[texture,sketch]")
    assert run.rounds[0]["left_out"] == [] and set(run.results["privacy"]["epsilon"]) == {"0", "1"}


@pytest.mark.parametrize("lie", [(0, 0, 0, 1.5), (1, 0, 3, 9), (0, 0, 4, 9), (2, 0, 0, np.nan), (2, 0, 1, -2.0)])
def test_figures_that_cannot_be_are_refused(lie: tuple[int, int, int, float]) -> None:
    site = np.full((4, 1, 5), [0.5, 0.4, 0.6, 8, 2])
    _check(site, 8, "a")
    site[lie[:3]] = lie[3]
    with refused(Refused, "'a'"):
        _check(site, 8, "a")


def test_a_site_has_one_unit() -> None:
    site = np.full((4, 1, 5), [0.5, 0.4, 0.6, 8, 2])
    server: Any = SimpleNamespace(run=SimpleNamespace(num_classes=2), record=RECORD)
    answers: Any = [SimpleNamespace(part=SimpleNamespace(domain="a", start=0, drawn=8))]
    for unit, start in UNITS.items():
        given = Masks.numbers(server, RecordDict({RECORD: encode({start + "a": site})}), answers)["a"]
        assert given.unit == unit and np.array_equal(given.figures, site)
    both = RecordDict({RECORD: encode({start + "a": site for start in UNITS.values()})})
    with refused(Refused, "'a'", "pixels", "millimetres"):
        Masks.numbers(server, both, answers)


def test_a_run_learns_masks_and_shows_them_by_site_and_class(run_inline: InlineRun) -> None:
    few = f"{SHORT} dataset.domains=[scan,sketch] allocation.share=0.05"
    run = run_inline("handwritten-masks", rounds=1, nodes=2, method="fedbn", set=few)
    section = run.results["segmentation"]
    assert section["classes"] == ["digit"] and [site["domain"] for site in section["sites"]] == ["scan", "sketch"]
    for site in section["sites"]:
        dice = site["metrics"]["dice"][0]
        assert dice["low"] <= dice["value"] <= dice["high"] and dice["images"] > 0 and dice["patients"] is None
    assert section["mean"]["iou"][0] == pytest.approx(
        np.mean([s["metrics"]["iou"][0]["value"] for s in section["sites"]])
    )
    report.run(run.folder, [])
    page = (run.folder / "report.html").read_text()
    assert all(f"{site['domain']}: image, mask and prediction of the best" in page for site in section["sites"])


def test_a_volume_is_a_patient_and_distances_are_in_millimetres_where_all_are_known(
    tmp_path: Path, run_inline: InlineRun
) -> None:
    nibabel = pytest.importorskip("nibabel", reason="needs the extra medical")
    drawn = np.random.default_rng(0)
    for site, name, unit in (("ct", "{}.nii", 2), ("mr", "{}.nii.gz", 2), ("scan", "{}.png", 0)):
        for kind in ("images", "masks"):
            (tmp_path / site / kind).mkdir(parents=True)
        for number in range(10):
            outlined = drawn.integers(0, 2, (4, 4, 3), np.uint8).repeat(4, 0).repeat(4, 1)
            for kind, values in (("images", outlined * 200), ("masks", outlined)):
                file = tmp_path / site / kind / name.format(number)
                if not unit:
                    Image.fromarray(values[..., 0]).save(file)
                    continue
                made = nibabel.Nifti1Image(values, np.diag([0.5, 0.5, 3, 1]) if site == "ct" else np.eye(4))
                made.header.set_xyzt_units(unit)
                made.to_filename(file)
    keys = f"task=segmentation model.name=unet:small dataset.size=16 dataset.domains=[ct,mr,scan] {SHORT}"
    run = run_inline(dataset="folders", data_dir=str(tmp_path), nodes=3, rounds=1, set=keys)
    section = run.results["segmentation"]
    behind = {site["domain"]: site["metrics"]["dice"][0] for site in section["sites"]}
    assert {name: (dice["images"], dice["patients"]) for name, dice in behind.items()} == {
        "ct": (6, 2),
        "mr": (6, 2),
        "scan": (2, None),
    }
    assert [site["unit"] for site in section["sites"]] == ["mm", "mm", "px"]
    assert section["mean"]["hd95"] == section["mean"]["surface_dice"] == [None] and section["mean"]["dice"] != [None]


@pytest.mark.long
@pytest.mark.parametrize("method", sorted(FITS))
def test_each_method_that_fits_learns_masks(method: str, run_inline: InlineRun) -> None:
    """All pixels digit, the best of a model without training, come to 45 nowhere."""
    two = f"dataset.domains=[texture,sketch] {registry.get(method).short}"
    run = run_inline("handwritten-masks", rounds=10, nodes=2, method=method, set=two)
    assert all(dice > 45 for dice in run.results["domains"].values()), run.results["domains"]

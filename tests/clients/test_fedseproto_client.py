"""FedSeProto on a node: Eq. 9 to 15 against NumPy, phases, switches, what travels and what stays."""

import functools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support import (
    INDEX,
    ROUND,
    SEED,
    C,
    D,
    Float,
    as64,
    barred_images,
    batch,
    check_accepted,
    fedavg,
    fit,
    gradients,
    image_set,
    in_phase,
    new_client,
    normalised,
    same,
    shared,
    terms_in,
    weights,
)
from torch import Tensor

from fedshift_clients.methods.fedseproto import Decoder, FedSeProtoClient, SideEncoder
from fedshift_clients.models.networks import build
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.node import MODEL_PART
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedseproto import FedSeProtoParams
from fedshift_core.seeding import torch_seed
from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy

OFF: dict[str, Any] = {"schedule": "joint", "use_kd": False, "use_mi": False, "use_proto": False}
SHARED = ("encoder.", "semantic.", "classifier.")
client = partial(new_client, FedSeProtoClient)


def global_prototypes(d: int = D) -> dict[str, NDArray[Any]]:
    """Knowledge as the server sends it: class 1 has none, and they are not in the order of the classes."""
    c_g = np.random.default_rng(1).normal(size=(3, d)).astype(np.float32)
    return {"prototypes": c_g, "labels": np.array([3, 0, 2])}


def started(params: dict[str, Any] | None = None, *, phase: int = 2) -> FedSeProtoClient:
    """A client in phase 2, which is always the last one, or in phase 1."""
    return in_phase(client(params, global_prototypes()), place=0 if phase == 1 else -1)


# --- the slow version of Eq. 10 to 15 --------------------------------------------------------------


def linear(layer: torch.nn.Module, h: Float) -> Float:
    return h @ as64(layer.weight).T + as64(layer.bias)  # type: ignore[arg-type]


def noise_of(number: int, *, batches: int = 1, index: int = INDEX, server_round: int = ROUND) -> list[Float]:
    """Noise of the round's batches as the node draws it: z^s, then z^d."""
    rng = torch.Generator()
    rng.manual_seed(torch_seed(SEED, "fedseproto-noise", index, server_round))
    return [as64(torch.randn(2, number, D, generator=rng)) for _ in range(batches)]


def softmax(row: Float) -> Float:
    e = np.exp(row - row.max())
    return e / e.sum()


def slow_terms(made: FedSeProtoClient, given: Batch, noise: Float) -> dict[str, float]:
    """Eq. 15 sample by sample in float64, from z on."""
    p, model, y = made.params, made.model, given.y.tolist()
    b = len(y)
    with torch.no_grad():
        z = as64(model.encoder(given.x))
    mean = [linear(side.mean, z) for side in (model.semantic, model.domain)]
    codes, divergence, over = list(mean), 0.0, 1 if p.reduction == "sum" else D
    for i, side in enumerate((model.semantic, model.domain)):
        if p.mi_form == "gaussian":
            log_var = linear(side.log_variance, z)  # type: ignore[arg-type]
            codes[i] = mean[i] + np.sqrt(np.exp(log_var)) * noise[i]
            divergence += float((0.5 * (mean[i] ** 2 + np.exp(log_var) - log_var - 1)).sum()) / b / over
        elif p.mi_form == "l2":
            divergence += float((0.5 * mean[i] ** 2).sum()) / b / over
        else:
            m, v = mean[i].mean(axis=0), mean[i].var(axis=0)
            divergence += float((0.5 * (m**2 + v - np.log(v + 1e-6) - 1)).sum()) / over
    with torch.no_grad():
        decoded = as64(model.decoder(torch.from_numpy(np.concatenate(codes, axis=1).astype(np.float32))))
    cfg = made.setup.images
    image = as64(given.x) * np.array(cfg.std)[:, None, None] + np.array(cfg.mean)[:, None, None]
    ce = kd = mse = 0.0
    proto = []
    for i in range(b):
        ce += -math.log(softmax(linear(model.classifier, codes[0])[i])[y[i]]) / b
        t, s, d = (softmax(linear(model.classifier, h)[i] / p.kd_temperature) for h in (z, *mean))
        s1, s2 = float((t * np.log(t / s)).sum()), float((t * np.log(t / d)).sum())
        kd += math.log(1 + math.exp(s1 - s2)) / b
        mse += float(((image[i] - decoded[i]) ** 2).mean()) / b
        place = {3: 0, 0: 1, 2: 2}.get(y[i])  # class 1 has no prototype: left out
        if place is not None:
            proto.append(float(((mean[0][i] - global_prototypes()["prototypes"][place]) ** 2).sum()) / over)
    return {
        "ce": ce,
        "kd": p.alpha * kd,
        "mi": p.beta * (divergence + mse),
        "proto": p.lambda_proto * sum(proto) / len(proto),
    }


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"alpha": 3.0, "beta": 0.7, "lambda_proto": 0.2},
        {"kd_temperature": 2.5},
        {"mi_form": "batch_moment"},
        {"mi_form": "l2"},
        {"mi_stopgrad": True},
        {"reduction": "sum"},
        {"reduction": "sum", "mi_form": "batch_moment"},
        {"reduction": "sum", "mi_form": "l2", "beta": 0.7},
        {"schedule": "joint"},
        {"schedule": "phase1_first_round_only"},
    ],
)
def test_terms_against_numpy(params: dict[str, Any]) -> None:
    made = started(params)
    for first, noise in enumerate(noise_of(8, batches=2)):  # the generator runs on from batch to batch
        expected = slow_terms(made, batch(first=first), noise)
        terms = made.terms_of(batch(first=first))
        assert list(terms) == list(expected)
        for name, value in expected.items():
            assert float(terms[name].detach()) == pytest.approx(value, rel=1e-4), name


def test_phase_1_is_the_cross_entropy_of_the_general_features() -> None:
    made, given = started(phase=1), batch()
    with torch.no_grad():
        logits = linear(made.model.classifier, as64(made.model.encoder(given.x)))
    expected = np.mean([-math.log(softmax(logits[i])[k]) for i, k in enumerate(given.y.tolist())])
    terms = made.terms_of(given)
    assert list(terms) == ["ce_base"]
    assert float(terms["ce_base"].detach()) == pytest.approx(float(expected), rel=1e-5)


def test_prediction_goes_through_the_mean_of_the_semantic_features() -> None:
    made = started()
    with torch.no_grad():
        z = as64(made.model.encoder(batch().x))
        features, logits = made.forward(batch().x)
    z_s = linear(made.model.semantic.mean, z)
    np.testing.assert_allclose(features.numpy(), z_s, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(logits.numpy(), linear(made.model.classifier, z_s), rtol=1e-4, atol=1e-6)


# --- the decoder -----------------------------------------------------------------------------------


def slow_up(h: Float, layer: torch.nn.Module) -> Float:
    """Transposed convolution of kernel 4, stride 2, padding 1, by spreading each value over its window."""
    weight, bias = as64(layer.weight), as64(layer.bias)  # type: ignore[arg-type]
    width_in, side, _ = h.shape
    out = np.zeros((weight.shape[1], 2 * side + 2, 2 * side + 2))
    for c in range(width_in):
        for row in range(side):
            for column in range(side):
                out[:, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4] += h[c, row, column] * weight[c]
    return out[:, 1:-1, 1:-1] + bias[:, None, None]


def test_decoder_against_loops() -> None:
    torch.manual_seed(0)
    decoder = Decoder(6, 16)
    codes = torch.randn(2, 6)
    with torch.no_grad():
        images = decoder(codes)
    for i in range(2):
        h = linear(decoder.fc, as64(codes[i])).reshape(128, 4, 4)
        for layer in decoder.up:
            h = slow_up(np.maximum(h, 0), layer)
        np.testing.assert_allclose(images[i].numpy(), 1 / (1 + np.exp(-h)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "widths"),
    [
        (16, [64, 3]),
        (28, [64, 32, 3]),
        (32, [64, 32, 3]),
        (33, [64, 32, 16, 3]),
        (64, [64, 32, 16, 3]),
        (128, [64, 32, 16, 16, 3]),
    ],
)
def test_decoder_covers_images_of_any_size(size: int, widths: list[int]) -> None:
    decoder = Decoder(2 * 3, size)
    assert [layer.out_channels for layer in decoder.up] == widths
    images = decoder(torch.randn(2, 6))
    assert images.shape == (2, 3, size, size)
    assert images.dtype == torch.float32
    assert ((images > 0) & (images < 1)).all()


@pytest.mark.parametrize("value", [1e4, -1e4])
def test_variance_stays_within_bounds(value: float) -> None:
    side = SideEncoder(3, gaussian=True)
    code = side(torch.full((2, 3), value), torch.ones(2, 3))
    assert code.log_variance is not None
    assert float(code.log_variance.detach().abs().max()) <= 10
    assert code.sample.isfinite().all()


# --- switches --------------------------------------------------------------------------------------


def values_and_gradients(params: dict[str, Any]) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Each term of the second batch, and its gradient with respect to each part of the model."""
    made = started(params)
    made.terms_of(batch(first=7))
    content = {}
    for name, (value, grads) in gradients(made, batch()).items():
        parts: dict[str, list[Tensor]] = {}
        for of, grad in grads.items():
            parts.setdefault(of.split(".")[0], []).append(grad.flatten())
        content[name] = (value, {part: torch.cat(each) for part, each in parts.items()})
    return content


@functools.cache
def by_default(mi_form: str) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Return what each row of switches is held against."""
    return values_and_gradients({"mi_form": mi_form})


@pytest.mark.parametrize(
    ("params", "term"),
    [
        ({"use_kd": False}, "kd"),
        ({"alpha": 0.0}, "kd"),
        ({"alpha": 2.0}, "kd"),
        ({"kd_temperature": 3.0}, "kd"),
        ({"kd_form": "printed"}, "kd"),
        ({"kl_direction": "student_teacher"}, "kd"),
        ({"use_mi": False}, "mi"),
        ({"beta": 0.0}, "mi"),
        ({"beta": 0.5}, "mi"),
        ({"use_proto": False}, "proto"),
        ({"lambda_proto": 0.0}, "proto"),
        ({"lambda_proto": 5.0}, "proto"),
        ({"proto_reduction": "class_mean"}, "proto"),
    ],
)
@pytest.mark.parametrize("mi_form", ["l2", "batch_moment"])
def test_switch_changes_exactly_the_term_it_names(params: dict[str, Any], term: str, mi_form: str) -> None:
    default = by_default(mi_form)
    switched = values_and_gradients({"mi_form": mi_form} | params)
    assert set(default) == {"ce", "kd", "mi", "proto"}
    off = term not in switched
    assert off == any(value in (False, 0.0) for value in params.values())
    assert set(switched) == set(default) - ({term} if off else set())
    for name, (value, grads) in switched.items():
        before, grads_before = default[name]
        equal = value == before and all(torch.equal(grads[part], grads_before[part]) for part in grads)
        assert equal is (name != term), name


@pytest.mark.parametrize("params", [{"use_kd": False}, {"kd_form": "printed"}, {"use_proto": False}, {"alpha": 3.0}])
def test_switch_with_sampled_codes(params: dict[str, Any]) -> None:
    default, switched = values_and_gradients({}), values_and_gradients(params)
    term = "proto" if "use_proto" in params else "kd"
    for name, (value, _) in switched.items():
        assert (value == default[name][0]) is (name != term), name


@pytest.mark.parametrize("mi_form", ["gaussian", "batch_moment", "l2"])
def test_reduction_changes_the_divergence_and_the_distance_alone(mi_form: str) -> None:
    """D times as much of both; the reconstruction, a mean by its name, stays, and so do cross-entropy and KD."""
    mean, summed = (values_and_gradients({"mi_form": mi_form, "beta": 1.0, "reduction": of}) for of in ("mean", "sum"))
    for name in ("ce", "kd"):
        assert summed[name][0] == mean[name][0]
        assert all(torch.equal(summed[name][1][part], grad) for part, grad in mean[name][1].items())
    torch.testing.assert_close(summed["proto"][1]["semantic"], D * mean["proto"][1]["semantic"])
    torch.testing.assert_close(summed["mi"][1]["decoder"], mean["mi"][1]["decoder"])  # only the reconstruction moves it
    if mi_form != "gaussian":  # where nothing is drawn, the divergence is all but the reconstruction
        made = started({"mi_form": mi_form, "beta": 1.0})
        made.terms_of(batch(first=7))
        z = made.model.encoder(batch().x)
        decoded = made.model.decoder(torch.cat([made.model.semantic(z).mean, made.model.domain(z).mean], dim=1))
        image = batch().x * made._std + made._mean
        error = float((image - decoded).square().mean().detach())
        assert summed["mi"][0] - error == pytest.approx(D * (mean["mi"][0] - error), rel=1e-3)


@pytest.mark.parametrize("params", [{"use_mi": False}, {"beta": 0.0}, {"mi_form": "l2"}])
def test_without_gaussian_codes_nothing_is_sampled(params: dict[str, Any]) -> None:
    """The cross-entropy then sees the mean; distillation and prototypes always do."""
    default, switched = values_and_gradients({}), values_and_gradients(params)
    assert ("mi" in switched) is ("mi_form" in params)
    assert switched["ce"][0] != default["ce"][0]
    assert switched["kd"][0] == default["kd"][0]
    assert switched["proto"][0] == default["proto"][0]
    made = started(params)
    assert made.model.semantic.log_variance is None
    assert torch.equal(made.terms_of(batch())["ce"], made.terms_of(batch())["ce"])


def test_mi_stopgrad_keeps_mi_out_of_the_general_encoder_and_changes_no_value() -> None:
    default, stopped = values_and_gradients({}), values_and_gradients({"mi_stopgrad": True})
    for name in default:
        assert stopped[name][0] == pytest.approx(default[name][0], rel=1e-6)
    assert default["mi"][1]["encoder"].any()
    assert not stopped["mi"][1]["encoder"].any()
    for part in ("semantic", "domain", "decoder"):
        torch.testing.assert_close(stopped["mi"][1][part], default["mi"][1][part])
    for name in ("ce", "kd", "proto"):
        torch.testing.assert_close(stopped[name][1]["encoder"], default[name][1]["encoder"])


MOVES = {
    "ce": {"encoder", "semantic"},
    "kd": {"encoder", "semantic", "domain"},
    "mi": {"encoder", "semantic", "domain", "decoder"},
    "proto": {"encoder", "semantic"},
}


def test_what_each_term_moves_while_the_head_is_frozen() -> None:
    for name, (value, grads) in values_and_gradients({}).items():
        assert value > 0
        assert {part for part, grad in grads.items() if grad.any()} == MOVES[name]
        assert all(grad.isfinite().all() for grad in grads.values())


def test_in_a_joint_schedule_the_head_learns_from_the_cross_entropy_alone() -> None:
    """A4: else it could make the distillation small by itself."""
    for name, (_, grads) in values_and_gradients({"schedule": "joint"}).items():
        moved = {part for part, grad in grads.items() if grad.any()}
        assert moved == MOVES[name] | ({"classifier"} if name == "ce" else set())


def test_phase_1_moves_encoder_and_head_alone() -> None:
    made = started(phase=1)
    made.terms_of(batch())["ce_base"].backward()  # type: ignore[no-untyped-call]
    moved = {name.split(".")[0] for name, weight in made.model.named_parameters() if weight.grad is not None}
    assert moved == {"encoder", "classifier"}


# --- phases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "server_round", "phases"),
    [
        ("two_phase_each_round", 1, [1, 1, 2]),
        ("two_phase_each_round", 5, [1, 1, 2]),
        ("phase1_first_round_only", 1, [1, 1, 2]),
        ("phase1_first_round_only", 5, [2, 2, 2]),
        ("joint", 1, [2, 2, 2]),
        ("joint", 5, [2, 2, 2]),
    ],
)
def test_schedule(schedule: str, server_round: int, phases: list[int]) -> None:
    made = client({"schedule": schedule, "phase1_epochs": 2}, epochs=3)
    content: dict[int, set[int]] = {}
    terms_of = made.terms_of

    def watched(given: Batch) -> dict[str, Tensor]:
        terms = terms_of(given)
        phase = 1 if "ce_base" in terms else 2
        content.setdefault(given.epoch, set()).add(phase)
        learns = made.model.classifier.weight.requires_grad
        assert learns is (phase == 1 or schedule == "joint")
        assert made.model.classifier.bias.requires_grad is learns
        return terms

    made.terms_of = watched  # type: ignore[method-assign]
    fit(made, server_round)
    assert content == {epoch: {phase} for epoch, phase in enumerate(phases)}


def test_head_is_what_phase_1_made_of_it() -> None:
    """Two epochs of which the second has a frozen head: the same head as after one epoch of FedAvg."""
    made, plain = client(), fedavg(epochs=1)
    fit(made)
    fit(plain)
    assert torch.equal(made.model.classifier.weight, plain.model.classifier.weight)
    assert torch.equal(made.model.classifier.bias, plain.model.classifier.bias)
    assert not torch.equal(made.model.encoder[0].weight, plain.model.encoder[0].weight)  # type: ignore[index]


def test_later_rounds_leave_the_head_alone_if_phase_1_belongs_to_the_first() -> None:
    made = client({"schedule": "phase1_first_round_only"})
    before = weights(made)
    fit(made, 1)
    after_one = weights(made)
    fit(made, 2)
    assert not np.array_equal(after_one["classifier.weight"], before["classifier.weight"])
    assert np.array_equal(weights(made)["classifier.weight"], after_one["classifier.weight"])
    assert not np.array_equal(weights(made)["encoder.0.weight"], after_one["encoder.0.weight"])


def test_frozen_batchnorm_stays_frozen_and_the_head_learns() -> None:
    made = client(model="cnn_bn", bn="freeze")
    before = weights(made)
    fit(made)
    after = weights(made)
    assert np.array_equal(after["encoder.1.weight"], before["encoder.1.weight"])
    assert np.array_equal(after["encoder.1.running_mean"], before["encoder.1.running_mean"])
    assert not np.array_equal(after["classifier.weight"], before["classifier.weight"])


@pytest.mark.parametrize("schedule", ["two_phase_each_round", "phase1_first_round_only"])
def test_a_round_without_a_phase_2_is_refused(schedule: str) -> None:
    model = ModelConfig(name="cnn")
    for epochs, phase1, fine in ((1, 1, False), (2, 2, False), (2, 1, True), (1, 2, False)):
        train = TrainConfig(epochs=epochs, batch_size=8, lr=0.1)
        params = FedSeProtoParams.model_validate({"schedule": schedule, "phase1_epochs": phase1})
        if fine:
            FedSeProtoClient.check_run(params, model, train, ImageConfig())
            continue
        with pytest.raises(ConfigError, match=rf"phase1_epochs={phase1} .*train.epochs={epochs} .*schedule=joint"):
            FedSeProtoClient.check_run(params, model, train, ImageConfig())
    short = TrainConfig(epochs=1, batch_size=8, lr=0.1)
    FedSeProtoClient.check_run(FedSeProtoParams(schedule="joint"), model, short, ImageConfig())


# --- knowledge -------------------------------------------------------------------------------------


@pytest.mark.parametrize("knowledge", [{}, {"unrelated": np.zeros(1)}])
def test_first_round_has_no_prototype_term(knowledge: dict[str, NDArray[Any]]) -> None:
    _, metrics = fit(client(knowledge=knowledge))
    assert set(terms_in(metrics)) == {"ce_base", "ce", "kd", "mi"}
    assert all(np.isfinite(value) for value in metrics.values())


def test_later_rounds_have_every_term() -> None:
    _, metrics = fit(client(knowledge=global_prototypes()), ROUND)
    assert set(terms_in(metrics)) == {"ce_base", "ce", "kd", "mi", "proto"}
    assert all(np.isfinite(value) and value > 0 for value in metrics.values())


def test_batch_whose_class_has_no_prototype() -> None:
    terms = started().terms_of(batch(y=[1] * 8))
    assert float(terms["proto"].detach()) == 0
    sum(terms.values()).backward()  # type: ignore[union-attr, no-untyped-call]


@pytest.mark.parametrize("mi_form", ["gaussian", "batch_moment", "l2"])
def test_batch_of_one(mi_form: str) -> None:
    made = started({"mi_form": mi_form})
    terms = made.terms_of(batch(b=1))
    assert set(terms) == {"ce", "kd", "mi", "proto"}
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(term.isfinite() for term in terms.values())
    assert all(w.grad is None or w.grad.isfinite().all() for w in made.model.parameters())


@pytest.mark.parametrize("mi_form", ["gaussian", "batch_moment", "l2"])
def test_dead_encoder(mi_form: str) -> None:
    """All features zero: codes are the biases, which is defined everywhere."""
    made = started({"mi_form": mi_form})
    torch.nn.init.zeros_(made.model.encoder[7].weight)  # type: ignore[index, arg-type]
    torch.nn.init.constant_(made.model.encoder[7].bias, -1.0)  # type: ignore[index, arg-type]
    terms = made.terms_of(batch())
    torch.stack(list(terms.values())).sum().backward()  # type: ignore[no-untyped-call]
    assert all(term.isfinite() for term in terms.values())
    assert all(w.grad is None or w.grad.isfinite().all() for w in made.model.parameters())


@pytest.mark.parametrize("mi_form", ["gaussian", "batch_moment", "l2"])
def test_node_with_a_single_image_trains(mi_form: str) -> None:
    made = client({"mi_form": mi_form}, global_prototypes(), train_set=image_set(1))
    arrays, metrics = fit(made, ROUND)
    assert all(np.isfinite(array).all() for array in arrays)
    assert all(np.isfinite(value) for value in metrics.values())
    assert made.contribution()["counts"].tolist() == [1, 0, 0, 0]


# --- what a node contributes (Eq. 12) --------------------------------------------------------------


def test_contribution_is_the_class_mean_of_semantic_features_in_evaluation_mode() -> None:
    """Not augmented, not sampled, running statistics in BatchNorm, weights as they are after training."""
    made = client(model="cnn_bn")
    fit(made)
    got = made.contribution()
    train_set = made.train_set
    made.model.eval()
    with torch.no_grad():
        z = as64(made.model.encoder(normalised(train_set, made.setup.images)))
    z_s = linear(made.model.semantic.mean, z)
    assert set(got) == {"prototypes", "counts"}
    assert got["counts"].tolist() == [7, 7, 6, 0]
    for k in range(C - 1):
        np.testing.assert_allclose(got["prototypes"][k], z_s[train_set.y == k].mean(axis=0), rtol=1e-3, atol=1e-5)
    assert not got["prototypes"][3].any()


@pytest.mark.parametrize("params", [{}, OFF, {"mi_form": "batch_moment"}, {"schedule": "joint"}])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_contribution_is_what_the_server_accepts(params: dict[str, Any], precision: str) -> None:
    made = client(params, global_prototypes(), precision=precision)
    arrays, metrics = fit(made, ROUND)
    check_accepted(made, FedSeProtoStrategy)
    assert all(np.isfinite(array).all() and array.dtype == np.float32 for array in arrays)
    assert all(np.isfinite(value) for value in metrics.values())


# --- the collapse of Fig. 4 -------------------------------------------------------------------------


@pytest.mark.parametrize(("params", "collapses"), [({"reduction": "mean"}, False), ({"reduction": "sum"}, True)])
def test_a_divergence_that_is_summed_collapses_the_features_where_beta_is_large(
    params: dict[str, Any], collapses: bool
) -> None:
    """Section 4.3: "If beta is overly large, the model learns two meaningless features"; with means 1 is not large."""
    learning = {"beta": 1.0, "semantic_start": "identity", "use_kd": False, "schedule": "joint"}
    images = barred_images(24)
    made = client(learning | params, train_set=images, epochs=12, batch_size=12, lr=0.01)
    fit(made)
    prototypes = made.contribution()["prototypes"][: C - 1]
    apart = float(np.linalg.norm(prototypes - prototypes.mean(axis=0)))
    correct, _ = made.score(images)
    assert (correct == len(images) // 3 and apart < 1e-4) if collapses else (correct == len(images) and apart > 1)


# --- what travels ----------------------------------------------------------------------------------


def test_domain_encoder_and_decoder_never_travel() -> None:
    made = client()
    assert {name.split(".")[0] for name in made.shared_names} == {"encoder", "semantic", "classifier"}
    assert {name for name in made.model.state_dict() if name not in made.shared_names} == {
        name for name in made.model.state_dict() if name.startswith(("domain.", "decoder."))
    }
    assert not FedSeProtoClient.personal(made.model, made.setup.model, made.params)


def test_local_batchnorm_stays_too_and_makes_models_personal() -> None:
    made = client(model="cnn_bn", bn="local")
    assert not any(name.startswith(("encoder.1.", "domain.", "decoder.")) for name in made.shared_names)
    assert FedSeProtoClient.personal(made.model, made.setup.model, made.params)


@pytest.mark.parametrize("name", ["cnn2", "cnn3"])
def test_with_different_networks_only_prototypes_travel(name: str) -> None:
    made = client(model=name, per_node=["cnn2", "cnn3"], knowledge=global_prototypes(512), epochs=2)
    assert made.shared_names == []
    assert FedSeProtoClient.heterogeneous
    assert FedSeProtoClient.personal(made.model, made.setup.model, made.params)
    arrays, metrics = fit(made, ROUND)
    assert arrays == []
    assert "proto" in terms_in(metrics)
    check_accepted(made, FedSeProtoStrategy)
    assert set(made.memory) == {MODEL_PART + n for n in made.model.state_dict()}


def test_private_parts_go_on_where_they_were_and_shared_parts_are_overwritten() -> None:
    """A16."""
    made = client()
    start = shared(made)
    initial = weights(made)
    fit(made)
    trained = weights(made)
    for part in ("domain.mean.weight", "decoder.fc.weight", "decoder.up.0.weight"):
        assert not np.array_equal(trained[part], initial[part])
        assert np.array_equal(made.memory[MODEL_PART + part], trained[part])
    later = client()
    later.memory = made.memory
    later._load(start)
    loaded = weights(later)
    for name in loaded:
        assert np.array_equal(loaded[name], (initial if name.startswith(SHARED) else trained)[name]), name


def test_backbone_starts_as_that_of_fedavg_and_the_parts_as_in_any_other_form() -> None:
    plain, default = build("cnn", C, 0).state_dict(), client().model.state_dict()
    assert all(torch.equal(default[name], tensor) for name, tensor in plain.items())
    for params in (OFF, {"mi_form": "l2"}, {"use_mi": False}):
        other = client(params).model.state_dict()
        assert all(torch.equal(default[name], tensor) for name, tensor in other.items())
        assert not any("log_variance" in name for name in other)


def test_semantic_encoder_that_starts_as_identity_predicts_as_fedavg_does() -> None:
    made, plain = client({"semantic_start": "identity"}), fedavg()
    with torch.no_grad():
        (z_s, logits), (z, wanted) = made.forward(batch().x), plain.forward(batch().x)
    torch.testing.assert_close(z_s, z)
    torch.testing.assert_close(logits, wanted)
    default = client().model.state_dict()
    changed = {n for n, t in made.model.state_dict().items() if not torch.equal(t, default[n])}
    assert changed == {"semantic.mean.weight", "semantic.mean.bias"}


def test_building_a_model_leaves_the_global_generator_as_it_was() -> None:
    state = torch.get_rng_state()
    client()
    assert torch.equal(torch.get_rng_state(), state)


# --- determinism, and the way back to FedAvg -------------------------------------------------------


def test_noise_depends_on_the_node_and_on_the_round() -> None:
    drawn = [noise_of(4)[0], noise_of(4, index=INDEX + 1)[0], noise_of(4, server_round=ROUND + 1)[0]]
    made = started()
    result = made._draw_noise(4)
    assert result is not None
    assert np.array_equal(as64(result), drawn[0])
    assert not np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])


def test_switched_off_it_is_fedavg_with_one_more_layer_bit_for_bit() -> None:
    made = client(OFF, global_prototypes())
    plain = fedavg(network=client(OFF).model)
    for server_round in (1, 2):
        (_, metrics), (_, expected) = fit(made, server_round), fit(plain, server_round)
        assert metrics == expected
        assert set(terms_in(metrics)) == {"ce"}
        trained, wanted = weights(made), weights(plain)
        assert all(np.array_equal(trained[name], wanted[name]) for name in made.shared_names)


@pytest.mark.parametrize("term", ["use_kd", "use_mi", "use_proto"])
def test_each_term_changes_what_is_shared(term: str) -> None:
    off = shared_after(OFF)
    on = shared_after(OFF | {term: True, "mi_form": "l2"})
    assert not same(off, on)


def shared_after(params: dict[str, Any]) -> list[NDArray[Any]]:
    return fit(client(params, global_prototypes()), ROUND)[0]

"""FedCode on a node: SAIN, the terms of Eq. 16 against NumPy, every switch against the term it names."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from support import (
    ROUND,
    C,
    D,
    Float,
    batch,
    begun,
    check_accepted,
    features_of,
    fit,
    gradients,
    image_set,
    new_client,
    normalised,
    same,
    shared,
    terms_in,
)
from torch import Tensor, nn

from fedshift_clients.adapt.finetune import Finetune
from fedshift_clients.adapt.params import FinetuneParams
from fedshift_clients.methods.fedcode import SAIN, FedCodeClient, with_sain
from fedshift_clients.models.networks import Blueprint, bare, build
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedcode import FedCodeParams
from fedshift_core.wire.names import DOMAINS, SERVER_ROUND
from fedshift_strategies.methods.fedcode import FedCodeStrategy

J = 3  # clusters of style prototypes
OFF: dict[str, Any] = {"use_semcl": False, "use_stycl": False, "use_fdr": False}
TERMS = ["ce", "semcl", "stycl", "fdr"]


def client(
    params: dict[str, Any] | None = None, known: Arrays | None = None, label: int | None = 1, **options: Any
) -> FedCodeClient:
    """A client, and from round 2 on what the server sent: prototypes and, unless it is new, its pseudo-label."""
    fields = {} if known is None or label is None else {"pseudo-label": label}
    return new_client(FedCodeClient, params, known, scalars=fields, **options)


def knowledge(width: int = D) -> Arrays:
    """As the server sends it: class 1 has no prototype, and they are not in the order of the classes."""
    rng = np.random.default_rng(1)
    return {
        "prototypes": rng.uniform(size=(3, width)).astype(np.float32),
        "labels": np.array([3, 0, 2]),
        "style-prototypes": rng.uniform(size=(J, width)).astype(np.float32),
    }


def started(params: dict[str, Any] | None = None, known: Arrays | None = None, label: int | None = 1) -> FedCodeClient:
    return begun(client(params, knowledge() if known is None else known, label))


# --- SAIN (Eqs 5-7) --------------------------------------------------------------------------------


def slow_sain(block: SAIN, f: Float) -> Float:
    a, a0, b, b0 = (t.detach().numpy().astype(np.float64) for t in block.parameters())
    out = np.zeros_like(f)
    for i, sample in enumerate(f):
        style = np.zeros_like(sample)
        for c, plane in enumerate(sample):
            mean = plane.sum() / plane.size
            deviation = math.sqrt(((plane - mean) ** 2).sum() / plane.size + 1e-5)
            style[c] = plane - (plane - mean) / deviation
        pooled = style.mean(axis=(1, 2))
        hidden = np.maximum(a @ pooled + a0, 0)
        w = 1 / (1 + np.exp(-(b @ hidden + b0)))
        out[i] = w[:, None, None] * style
    return out


@pytest.mark.parametrize(("channels", "hidden"), [(64, 4), (32, 2), (8, 1), (512, 32)])
def test_sain_against_loops(channels: int, hidden: int) -> None:
    block = SAIN(channels)
    assert [tuple(p.shape) for p in block.parameters()] == [
        (hidden, channels),
        (hidden,),
        (channels, hidden),
        (channels,),
    ]
    f = 3 * torch.randn(3, channels, 5, 4, generator=torch.Generator().manual_seed(0)) + 1
    got = block(f).detach().numpy()
    np.testing.assert_allclose(got, slow_sain(block, f.numpy().astype(np.float64)), rtol=1e-3, atol=1e-5)
    assert not list(block.buffers())  # nothing remembers other images


def test_sain_by_hand() -> None:
    # One channel, values 1 and 3: mean 2, deviation 1, normed -1 and 1, so style is 2 and 2: contrast of one unit is
    # what the norm takes. Values 0 and 8: mean 4, deviation 4, normed -1 and 1, style 1 and 7.
    block = SAIN(1)
    with torch.no_grad():
        for p in block.parameters():
            p.zero_()  # w = sigmoid(0) = 1/2
    f = torch.tensor([[1.0, 3.0], [0.0, 8.0]]).reshape(2, 1, 1, 2)
    got = block(f).detach().reshape(2, 2)
    torch.testing.assert_close(got, torch.tensor([[1.0, 1.0], [0.5, 3.5]]), atol=1e-4, rtol=0)


def test_sain_sees_each_sample_alone() -> None:
    block, f = SAIN(16), torch.randn(5, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(f)[2], block(f[2:3])[0])
    before = block(f)
    block.eval()
    assert torch.equal(block(f), before)


@pytest.mark.parametrize("value", [0.0, 2.5, 1e4])
def test_sain_of_a_flat_map_or_of_one_pixel_is_the_map(value: float) -> None:
    block = SAIN(16)
    for size in (1, 4):
        f = torch.full((2, 16, size, size), value, requires_grad=True)
        out = block(f)
        (grad,) = torch.autograd.grad(out.sum(), f)
        assert out.isfinite().all()
        assert grad.isfinite().all()
        assert ((out >= 0) & (out <= value)).all()


def test_sain_is_float32_inside_autocast() -> None:
    block, f = SAIN(16), torch.randn(2, 16, 4, 4, generator=torch.Generator().manual_seed(0))
    plain = block(f)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(block(f), plain)
        assert block(f.bfloat16()).dtype == torch.bfloat16


def plain_sain(block: SAIN, f: torch.Tensor) -> torch.Tensor:
    """Return Eqs 5-7 as they are written, in float64, for autograd to differentiate."""
    a, a0, b, b0 = (p.double() for p in block.parameters())
    mean = f.mean(dim=(2, 3), keepdim=True)
    deviation = ((f - mean) ** 2).mean(dim=(2, 3), keepdim=True).add(1e-5).sqrt()
    style = f - (f - mean) / deviation
    w = torch.sigmoid(torch.relu(style.mean(dim=(2, 3)) @ a.T + a0) @ b.T + b0)
    return w[:, :, None, None] * style


@pytest.mark.parametrize(("b", "channels", "size"), [(3, 8, 5), (2, 64, 1), (9, 64, 32), (1, 16, 4)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [True, False])
def test_gradients_of_sain_are_those_of_its_equations(
    b: int, channels: int, size: int, kind: torch.dtype, last: bool
) -> None:
    rng = torch.Generator().manual_seed(0)
    block = SAIN(channels)
    f = (3 * torch.randn(b, channels, size, size, generator=rng) + 1).to(kind)
    f = f.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format).requires_grad_()
    weights = torch.randn(f.shape, generator=rng).to(kind)
    kept = f.detach().clone()
    wanted = f.detach().double().requires_grad_()
    got = torch.autograd.grad((block(f) * weights).sum(), [f, *block.parameters()])
    slow = torch.autograd.grad((plain_sain(block, wanted) * weights).sum(), [wanted, *block.parameters()])
    assert torch.equal(f.detach(), kept)
    assert [g.dtype for g in got] == [kind] + 4 * [torch.float32]
    bound = 1e-4 if kind == torch.float32 else 2e-2
    for mine, theirs in zip(got, slow, strict=True):
        scale = float(theirs.abs().max()) + 1e-3
        torch.testing.assert_close(mine.double() / scale, theirs.double() / scale, rtol=0, atol=bound)


@pytest.mark.parametrize(
    ("name", "blocks"), [("resnet10", 12), ("resnet18", 20), ("cnn_bn", 2), ("cnn", 2), ("cnn2", 2), ("cnn3", 3)]
)
def test_where_sain_stands(name: str, blocks: int) -> None:
    """ResNet-10 has a BatchNorm in the stem, two a block and three in shortcuts: 1 + 4 * 2 + 3 = 12."""
    plain, styled = bare(name, C).encoder, with_sain(bare(name, C).encoder)
    normed = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not [m for m in styled.modules() if isinstance(m, nn.BatchNorm2d)]
    values = [m for m in styled.modules() if isinstance(m, SAIN)]
    assert len(values) == blocks
    convolutions = [m for m in plain.modules() if isinstance(m, nn.Conv2d)]
    widths = [m.num_features for m in normed] or [m.out_channels for m in convolutions]
    assert [m.excite.out_features for m in values] == widths
    x = batch(2).x
    assert styled(x).shape == plain(x).shape
    assert styled(x).isfinite().all()


def test_sain_keeps_the_activation_that_is_within_a_norm() -> None:
    """As timm's BatchNormAct2d has it."""
    norm = nn.BatchNorm2d(4)
    within = type("BatchNormAct2d", (nn.BatchNorm2d,), {})(4)
    within.drop, within.act = nn.Identity(), nn.ReLU()
    kinds = [type(m).__name__ for m in with_sain(nn.Sequential(norm, within)).children()]
    assert kinds == ["SAIN", "Sequential"]
    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    assert (with_sain(nn.Sequential(within))(x) >= 0).all() and (with_sain(nn.Sequential(norm))(x) < 0).any()


def test_sain_follows_the_convolution_that_had_no_norm() -> None:
    styled = with_sain(bare("cnn", C).encoder)
    kinds = [type(m).__name__ for m in styled.modules() if not list(m.children()) or isinstance(m, SAIN)]
    linear = ["Linear", "Linear"]  # of squeeze-and-excitation
    block = ["Conv2d", "SAIN", *linear, "ReLU", "MaxPool2d"]
    assert kinds == [*block, *block, "Flatten", "Linear", "ReLU"]


# --- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "cnn_bn", "resnet10"])
@pytest.mark.parametrize("use_sain", [True, False])
def test_the_semantic_encoder_and_the_head_start_as_in_fedavg(name: str, use_sain: bool) -> None:
    mine, plain = client({"use_sain": use_sain}, model=name).model.state_dict(), build(name, C, 0).state_dict()
    assert [key for key in mine if not key.startswith("style_encoder.")] == list(plain)
    assert all(torch.equal(mine[key], value) for key, value in plain.items())


def test_style_starts_alike_on_all_nodes_and_not_as_the_semantic_encoder() -> None:
    plan = Blueprint(ModelConfig(name="cnn"), C, 32, 0)
    state = torch.get_rng_state()
    one, other = (FedCodeClient.build_model(plan, FedCodeParams()).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one[key], other[key]) for key in one)
    without = FedCodeClient.build_model(plan, FedCodeParams(use_sain=False)).state_dict()
    assert not torch.equal(without["style_encoder.0.weight"], without["encoder.0.weight"])
    assert {key.split(".", 1)[1] for key in without if key.startswith("style_encoder.")} == {
        key.split(".", 1)[1] for key in without if key.startswith("encoder.")
    }


@pytest.mark.parametrize("share_head", [True, False])
@pytest.mark.parametrize("bn", ["average", "local", "freeze"])
def test_what_travels(share_head: bool, bn: str) -> None:
    made = client({"share_head": share_head}, model="resnet10", bn=bn)
    plain = build("resnet10", C, 0).state_dict()
    norm = {name for name in plain if ".bn" in name or "shortcut.1" in name or "stem.1" in name}
    expected = [
        name for name in plain
        if (share_head or not name.startswith("classifier")) and (bn != "local" or name not in norm)
    ]  # fmt: skip
    assert made.shared_names == expected
    personal = FedCodeClient.personal(made.model, made.setup.model, made.params)
    assert personal is (not share_head or bn == "local")


def test_style_and_head_stay_on_the_node() -> None:
    made = client(None, knowledge())
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    arrays, _ = fit(made, ROUND)
    assert len(arrays) == len(made.shared_names)
    kept = {name.removeprefix("model/") for name in made.memory}
    assert kept == {name for name in before if name.split(".")[0] in ("style_encoder", "classifier")}
    for name in kept:
        assert not np.array_equal(made.memory["model/" + name], before[name].numpy())


# --- the terms of Eq. 16 ---------------------------------------------------------------------------


def cosine(a: Float, b: Float) -> float:
    return float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b))


def slow_terms(made: FedCodeClient, given: Batch, p: FedCodeParams, j: int = 1) -> dict[str, float]:
    known = {name: array.astype(np.float64) for name, array in made.knowledge.items()}
    g = dict(zip(made.knowledge["labels"].tolist(), known["prototypes"], strict=True))
    style = known["style-prototypes"]
    z_c, z_s = features_of(made.model, given.x), features_of(made.model, given.x, "style_encoder")
    with torch.no_grad():
        logits = made.model.classifier(torch.from_numpy(z_c.astype(np.float32))).numpy().astype(np.float64)

    def form(anchor: Float, positive: Float, negatives: list[Float]) -> float:
        top = math.exp(cosine(anchor, positive) / p.tau)
        return -math.log(top / (top + sum(math.exp(cosine(anchor, n) / p.tau) for n in negatives)))

    by_name: dict[str, list[float]] = {name: [] for name in TERMS}
    for i, k in enumerate(given.y.tolist()):
        by_name["ce"].append(-math.log(math.exp(logits[i, k]) / np.exp(logits[i]).sum()))
        by_name["fdr"].append(p.beta * abs(cosine(z_s[i], z_c[i])))
        against_meaning = [z_c[i]] * p.style_in_negatives + [known["prototypes"].mean(axis=0)] * p.center_in_negatives
        others = [style[other] for other in range(J) if other != j]
        by_name["stycl"].append(p.alpha * form(z_s[i], style[j], others + against_meaning))
        if k in g:
            against_style = [z_s[i]] * p.style_in_negatives + [style.mean(axis=0)] * p.center_in_negatives
            others = [g[other] for other in g if other != k]
            by_name["semcl"].append(p.alpha * form(z_c[i], g[k], others + against_style))
    return {name: sum(values) / len(values) for name, values in by_name.items()}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"tau": 0.1, "alpha": 3.0, "beta": 2.5},
        {"style_in_negatives": False},
        {"center_in_negatives": False},
        {"style_in_negatives": False, "center_in_negatives": False},
        {"negatives_stop_grad": True},
        {"use_sain": False},
    ],
)
def test_terms_against_numpy(params: dict[str, Any]) -> None:
    made, given = started(params), batch()
    terms = made.loss(given)
    assert list(terms) == TERMS
    for name, expected in slow_terms(made, given, made.params).items():
        assert float(terms[name].detach()) == pytest.approx(expected, rel=1e-4), name


@pytest.mark.parametrize("label", range(J))
def test_the_pseudo_label_says_which_style_prototype_draws(label: int) -> None:
    made, given = started(label=label), batch()
    assert float(made.loss(given)["stycl"].detach()) == pytest.approx(
        slow_terms(made, given, made.params, label)["stycl"], rel=1e-4
    )


# --- rounds and knowledge --------------------------------------------------------------------------


def test_round_1_has_no_contrast() -> None:
    _, metrics = fit(client(), 1)
    assert terms_in(metrics) == ["ce", "fdr"]


def test_a_node_without_a_pseudo_label_trains_without_stycl() -> None:
    """It joined late: the others have prototypes already, but its own style is not among them yet."""
    assert list(started(label=None).loss(batch())) == ["ce", "semcl", "fdr"]


def test_one_cluster() -> None:
    known = knowledge()
    known["style-prototypes"] = known["style-prototypes"][:1]
    for params in ({}, {"style_in_negatives": False, "center_in_negatives": False}):
        terms = started(params, known, label=0).loss(batch())
        assert list(terms) == TERMS
        assert all(term.isfinite() for term in terms.values())
    assert float(terms["stycl"].detach()) == pytest.approx(0, abs=1e-4)  # no other style is left


def test_batch_of_classes_without_a_prototype() -> None:
    terms = started().loss(batch(y=[1] * 8))
    assert float(terms["semcl"].detach()) == 0
    assert all(term.isfinite() for term in terms.values())


def test_last_batch_of_one_sample() -> None:
    terms = started().loss(batch(b=1))
    assert list(terms) == TERMS
    assert all(term.isfinite() for term in terms.values())


def test_dead_features_give_no_nan() -> None:
    made = started()
    with torch.no_grad():
        for part in (made.model.encoder, made.model.get_submodule("style_encoder")):
            last = [m for m in part.modules() if isinstance(m, nn.Linear)][-1]
            last.weight.zero_()
            last.bias.fill_(-1)
    total = torch.stack(list(made.loss(batch()).values())).sum()
    grads = torch.autograd.grad(total, list(made.model.parameters()), allow_unused=True, materialize_grads=True)
    assert total.isfinite()
    assert all(grad.isfinite().all() for grad in grads)


# --- switches --------------------------------------------------------------------------------------


def values_and_gradients(params: dict[str, Any]) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Each term of a batch, and its gradient with respect to all weights, by name."""
    return gradients(started(params), batch())


@functools.cache
def by_default() -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Return what each row of switches is held against."""
    return values_and_gradients({})


def equal(a: tuple[float, dict[str, Tensor]], b: tuple[float, dict[str, Tensor]]) -> bool:
    return a[0] == b[0] and set(a[1]) == set(b[1]) and all(torch.equal(a[1][name], b[1][name]) for name in a[1])


@pytest.mark.parametrize(
    ("params", "changed"),
    [
        ({"use_semcl": False}, {"semcl"}),
        ({"use_stycl": False}, {"stycl"}),
        ({"use_fdr": False}, {"fdr"}),
        ({"beta": 0.0}, {"fdr"}),
        ({"beta": 3.0}, {"fdr"}),
        ({"fdr_form": "literal"}, {"fdr"}),
        ({"alpha": 3.0}, {"semcl", "stycl"}),
        ({"alpha": 0.0}, {"semcl", "stycl"}),
        ({"tau": 0.2}, {"semcl", "stycl"}),
        ({"style_in_negatives": False}, {"semcl", "stycl"}),
        ({"center_in_negatives": False}, {"semcl", "stycl"}),
        ({"share_head": True}, set()),
        ({"proto_source": "last_epoch"}, set()),
        ({"global_model": "average_heads"}, set()),
    ],
)
def test_switch_changes_exactly_the_terms_it_names(params: dict[str, Any], changed: set[str]) -> None:
    default, switched = by_default(), values_and_gradients(params)
    off = changed if any(value in (False, 0.0) for name, value in params.items() if "negatives" not in name) else set()
    assert list(switched) == [name for name in TERMS if name not in off]
    for name, result in switched.items():
        assert equal(result, default[name]) is (name not in changed), name
        assert (result[0] == default[name][0]) is (name not in changed), name


def test_sain_switch_changes_only_what_looks_at_style() -> None:
    default, switched = values_and_gradients({}), values_and_gradients({"use_sain": False})
    assert switched["ce"][0] == default["ce"][0]
    for name in TERMS[1:]:
        assert switched[name][0] != default[name][0]


def test_stop_gradient_changes_gradients_and_no_value() -> None:
    default, stopped = values_and_gradients({}), values_and_gradients({"negatives_stop_grad": True})
    moves = {"semcl": ("encoder", "style_encoder"), "stycl": ("style_encoder", "encoder")}
    for name in TERMS:
        assert stopped[name][0] == default[name][0]
        assert equal(stopped[name], default[name]) is (name not in moves)
    for name, (own, other) in moves.items():
        for part, live in ((own, True), (other, False)):
            grads = [grad for weight, grad in stopped[name][1].items() if weight.split(".")[0] == part]
            assert any(grad.any() for grad in grads) is live
            before = [grad for weight, grad in default[name][1].items() if weight.split(".")[0] == part]
            assert any(grad.any() for grad in before)


def test_sum_abs_equals_abs_cos_on_features_that_are_not_negative() -> None:
    default, other = values_and_gradients({}), values_and_gradients({"fdr_form": "sum_abs"})
    assert other["fdr"][0] == pytest.approx(default["fdr"][0], rel=1e-5)


def test_which_part_each_term_moves() -> None:
    result = values_and_gradients({})
    for name, parts in {
        "ce": {"encoder", "classifier"},
        "semcl": {"encoder", "style_encoder"},
        "stycl": {"encoder", "style_encoder"},
        "fdr": {"encoder", "style_encoder"},
    }.items():
        assert {weight.split(".")[0] for weight, grad in result[name][1].items() if grad.any()} == parts


def test_a_shared_head_needs_no_mean_of_heads() -> None:
    with pytest.raises(ValidationError, match="global_model=average_heads needs share_head=false"):
        FedCodeParams(share_head=True, global_model="average_heads")


# --- what a node contributes (Eqs 2 and 8) ---------------------------------------------------------


@pytest.mark.parametrize(("model", "size", "width", "use_sain"), [("cnn", 32, 64, False), ("resnet10", 8, 512, True)])
def test_prototypes_are_means_in_evaluation_mode(model: str, size: int, width: int, use_sain: bool) -> None:
    """Not augmented, running statistics in BatchNorm, weights as they are after training."""
    train_set = image_set(size=size)
    made = client({"use_sain": use_sain}, knowledge(width=width), model=model, train_set=train_set, epochs=1)
    fit(made, ROUND)
    got, x = made.contribution(), normalised(train_set, made.setup.images)
    made.model.eval()
    semantic, style = (features_of(made.model, x, part) for part in ("encoder", "style_encoder"))
    assert set(got) == {"prototypes", "counts", "style-prototype"}
    assert got["counts"].tolist() == [7, 7, 6, 0]
    for k in range(C - 1):
        np.testing.assert_allclose(got["prototypes"][k], semantic[train_set.y == k].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert not got["prototypes"][3].any()
    np.testing.assert_allclose(got["style-prototype"], style.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_prototypes_of_the_last_epoch() -> None:
    made = started({"proto_source": "last_epoch"})
    for epoch in range(2):  # the first one is forgotten
        made.start_epoch(epoch)
        batches = [batch(6, 10 * epoch + i, [0, 1, 2, 0, 1, 1]) for i in range(2)]
        for given in batches:
            made.loss(given)
    got = made.finish_round(ROUND)
    y = np.concatenate([given.y.numpy() for given in batches])
    semantic, style = (
        np.concatenate([features_of(made.model, given.x, part) for given in batches])
        for part in ("encoder", "style_encoder")
    )
    assert got["counts"].tolist() == [4, 6, 2, 0]
    for k in range(C - 1):
        np.testing.assert_allclose(got["prototypes"][k], semantic[y == k].mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["style-prototype"], style.mean(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["after_training", "last_epoch"])
def test_source_of_the_prototypes_does_not_change_training(source: str) -> None:
    arrays, metrics = fit(client({"proto_source": source}, knowledge()), ROUND)
    wanted, expected = fit(client(None, knowledge()), ROUND)
    assert same(arrays, wanted)
    assert metrics == expected


ABLATIONS: list[dict[str, Any]] = [
    {},
    {"use_semcl": False},
    {"use_stycl": False},
    {"use_fdr": False},
    {"use_stycl": False, "use_fdr": False, "style_in_negatives": False},
    {"use_semcl": False, "use_stycl": False},
    {"alpha": 0.0},
    {"proto_source": "last_epoch", "use_stycl": False, "use_fdr": False, "style_in_negatives": False},
    {"global_model": "average_heads"},
    {"global_model": "average_heads", **OFF},
    {"share_head": True},
    OFF,
]


@pytest.mark.parametrize("params", ABLATIONS)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_contribution_is_what_the_server_accepts(params: dict[str, Any], precision: str) -> None:
    made = client(params, knowledge(), epochs=1, precision=precision)
    arrays, metrics = fit(made, ROUND)
    check_accepted(made, FedCodeStrategy, **params)
    assert bool(made.contribution()) is (made.params.contrasts or made.params.global_model != "off")
    assert all(np.isfinite(array).all() for array in arrays)
    assert metrics["loss"] == pytest.approx(sum(value for name, value in metrics.items() if name.startswith("loss/")))


# --- scoring under the mean of the heads (A13) -----------------------------------------------------


def heads() -> Arrays:
    rng = np.random.default_rng(3)
    return {
        "head-weight": rng.normal(size=(C, D)).astype(np.float32),
        "head-bias": rng.normal(size=C).astype(np.float32),
    }


def test_the_head_goes_up_for_the_mean_and_only_then() -> None:
    made = client({"global_model": "average_heads"}, knowledge())
    fit(made, ROUND)
    assert np.array_equal(made.contribution()["head-weight"], made.model.classifier.weight.detach().numpy())
    assert np.array_equal(made.contribution()["head-bias"], made.model.classifier.bias.detach().numpy())
    assert not [name for name in made.shared_names if name.startswith("classifier")]


def test_global_score_is_that_of_the_encoder_under_the_mean_head() -> None:
    test = image_set(40)
    made = client({"global_model": "average_heads"}, heads())
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    scores = made.score_test(test)
    assert all(torch.equal(value, before[name]) for name, value in made.model.state_dict().items())
    head = heads()
    logits = features_of(made.model, normalised(test, made.setup.images)) @ head["head-weight"].T + head["head-bias"]
    assert scores.others == {"global": int((logits.argmax(axis=1) == test.y).sum())}
    assert (scores.correct, scores.loss_sum) == made.score(test)


@pytest.mark.parametrize(("params", "known"), [({}, heads()), ({"global_model": "average_heads"}, {})])
def test_no_global_score_without_the_mean_head(params: dict[str, Any], known: Arrays) -> None:
    assert client(params, known).score_test(image_set()).others == {}


def test_evaluation_reports_the_global_score() -> None:
    made = client({"global_model": "average_heads"}, heads())
    _, _, metrics = made.evaluate(shared(made), {DOMAINS: ["a"], SERVER_ROUND: 3})
    assert metrics["other-correct/global/a"] == made.score_test(image_set()).others["global"]


def test_the_global_score_stands_next_to_that_before_an_adaptation() -> None:
    made = client({"global_model": "average_heads"}, heads(), adaptation=Finetune(FinetuneParams(epochs=1)))
    scores = made.score_test(image_set())
    plain = client({"global_model": "average_heads"}, heads()).score_test(image_set())
    assert scores.others == plain.others | {"before-fine-tuning": plain.correct}


# --- from round to round ----------------------------------------------------------------------------


def test_private_parts_are_carried_to_the_next_round() -> None:
    made = client(None, knowledge())
    start = shared(made)
    made.fit(start, {SERVER_ROUND: ROUND})
    _, _, carried = made.fit(start, {SERVER_ROUND: ROUND + 1})
    fresh = client(None, knowledge())
    _, _, metrics = fresh.fit(start, {SERVER_ROUND: ROUND + 1})
    assert carried != metrics

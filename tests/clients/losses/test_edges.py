"""Every loss term at its edges: features of length zero, tiny and huge ones, one sample, bfloat16, no target."""

from collections.abc import Callable

import pytest
import torch
from support import drawn, gradient, labels
from torch import Tensor

from fedshift_clients import losses
from fedshift_clients.losses.contrast import instance_contrast, supervised_contrast
from fedshift_clients.losses.prototypes import nearness, prototype_distance
from fedshift_clients.methods import (
    fedccrl,
    fedcode_terms,
    fedmd,
    fedpac,
    fedpall,
    fedplvm,
    fedrcl,
    fedsa,
    fedseproto,
    fedsr,
    fpl,
    i2pfl,
    moon,
)  # fmt: skip
from fedshift_clients.modules import f2dc_terms

B, C = 6, 5  # features are as wide as there are classes, so that they serve as logits, too
Y, G, Z = labels(0, B, C), drawn(1, C, C), drawn(2, B, C)
CLASSES, EVERY, NONE = torch.arange(C), torch.ones(C, dtype=torch.bool), torch.zeros(C, dtype=torch.bool)


def y(x: Tensor) -> Tensor:
    """Return as many labels as there are features."""
    return Y[: len(x)]


def z(x: Tensor) -> Tensor:
    """Return as many other features, in the format of these."""
    return Z[: len(x)].to(x.dtype)


Term = Callable[[Tensor], Tensor]
CONTRASTS: dict[str, Term] = {
    "collaboration": lambda x: fedpall.collaboration(x, y(x), G.to(x.dtype), EVERY, 0.5),
    "collaboration, released": lambda x: fedpall.collaboration(x, y(x), G.to(x.dtype), EVERY, 0.5, "released"),
    "correction": lambda x: fedplvm.correction(x, y(x), G.to(x.dtype), EVERY),
    "instance": lambda x: instance_contrast(x, z(x), 0.07),
    "penalty": lambda x: fedrcl.divergence_penalty(fedrcl.cosines_of(x), y(x), 0.05, -1.0),
    "hard contrast": lambda x: fedrcl.hard_contrast(fedrcl.cosines_of(x), y(x), 0.05, 2),
    "model contrast": lambda x: moon.model_contrast(x, z(x), -z(x), 0.1),
    "prototypes": lambda x: losses.prototype_contrast(x, y(x), G.to(x.dtype), CLASSES, 0.07),
    "semantic": lambda x: fedcode_terms.semantic_contrast(x, y(x), G, CLASSES, 0.5, style=z(x), centre=G[0]),
    "separability": lambda x: f2dc_terms.separability(x, z(x), 0.06),
    "sparse": lambda x: fedplvm.sparse_contrast(x, y(x), G.to(x.dtype), CLASSES, 0.07, 0.25),
    "style": lambda x: fedcode_terms.style_contrast(x, 1, G, 0.5, semantic=z(x), centre=G[0]),
    "style, cosine": lambda x: fedcode_terms.decoupling(x, z(x), "abs_cos"),
    "style, magnitudes": lambda x: fedcode_terms.decoupling(x, z(x), "sum_abs"),
    "supervised": lambda x: supervised_contrast(x, z(x), y(x), 0.07),
    "two copies": lambda x: fedccrl.aligned(x, z(x), y(x), 0.1),
}
DISTANCES: dict[str, Term] = {
    "alignment": lambda x: i2pfl.prototype_alignment(x, y(x), G, EVERY, level="sample", reduction="mse_mean"),
    "alignment, classes": lambda x: i2pfl.prototype_alignment(
        x, y(x), G, EVERY, level="class_mean", reduction="class_sum"),
    "anchors": lambda x: fedsa.anchor_distance(x, y(x), G),
    "consistency": lambda x: fpl.unbiased_consistency(x, y(x), G, EVERY),
    "cross-entropy": lambda x: losses.cross_entropy(x, y(x)),
    "digestion": lambda x: fedmd.digestion(x, z(x)),
    "distillation": lambda x: fedseproto.distillation(
        z(x), x, -z(x), temperature=2.0, form="corrected", direction="teacher_student"),
    "distillation, printed": lambda x: fedseproto.distillation(
        z(x), x, -z(x), temperature=2.0, form="printed", direction="student_teacher"),
    "divergence": lambda x: fedccrl.divergence([x, z(x)]),
    "gaussian": lambda x: fedseproto.gaussian_kl(x, x.clamp(-10, 10)),
    "mask": lambda x: f2dc_terms.soft_mask(100 * x, None, 0.1).sum(),
    "length": lambda x: fedsr.length(x, "squared"),
    "margin": lambda x: fedsa.margin_contrast(x, y(x), G, torch.tensor(1.0)),
    "means": lambda x: fedpac.alignment(x, y(x), G),
    "moments": fedseproto.moment_kl,
    "nearness": lambda x: -nearness(x, G, EVERY).sum(),
    "prototype": lambda x: prototype_distance(x, y(x), G, EVERY, reduction="sum"),
    "semantic prototype": lambda x: fedseproto.prototype_distance(x, y(x), G, EVERY, reduction="class_mean"),
    "squares": fedseproto.squared_norm,
}  # fmt: skip
TERMS = CONTRASTS | DISTANCES


@pytest.mark.parametrize("b", [1, B])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 100.0])
@pytest.mark.parametrize("name", TERMS)
def test_values_and_gradients_are_finite(name: str, scale: float, b: int) -> None:
    x = scale * drawn(5, b, C)
    if scale == 100:
        x[0] = z(x)[0]  # a feature that lies on another
    value, slope = TERMS[name](x), gradient(TERMS[name], x)
    assert value.shape == () and value.isfinite() and slope.isfinite().all()
    assert float(value) >= -1e-6 or name in ("separability", "two copies")  # which have other bounds


@pytest.mark.parametrize("name", CONTRASTS)
def test_lengths_of_features_do_not_matter(name: str) -> None:
    x = drawn(6, B, C)
    assert float(CONTRASTS[name](1e3 * x)) == pytest.approx(float(CONTRASTS[name](x)), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", [name for name in TERMS if "collaboration" not in name])  # is called outside autocast
def test_autocast_changes_no_bit_and_bfloat16_is_computed_in_float32(name: str) -> None:
    x = drawn(7, B, C)
    plain = TERMS[name](x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, narrow = TERMS[name](x), TERMS[name](x.bfloat16())
    assert torch.equal(inside, plain)
    assert narrow.dtype == torch.float32


WITHOUT: dict[str, Term] = {
    "alignment": lambda x: i2pfl.prototype_alignment(x, y(x), G, NONE, level="sample", reduction="mse_mean"),
    "consistency": lambda x: fpl.unbiased_consistency(x, y(x), G, NONE),
    "correction": lambda x: fedplvm.correction(x, y(x), G, NONE),
    "prototype": lambda x: prototype_distance(x, y(x), G, NONE, reduction="mse_mean"),
    "prototypes": lambda x: losses.prototype_contrast(x, y(x), G, CLASSES + C, 0.07),
    "no prototypes": lambda x: losses.prototype_contrast(x, y(x), G[:0], CLASSES[:0], 0.07),
    "semantic": lambda x: fedcode_terms.semantic_contrast(x, y(x), G, CLASSES + C, 0.5, style=z(x)),
    "semantic prototype": lambda x: fedseproto.prototype_distance(x, y(x), G, NONE, reduction="sample_mean"),
    "sparse": lambda x: fedplvm.sparse_contrast(x, y(x), G, CLASSES + C, 0.07, 0.25),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_without_any_target_there_is_nothing_to_learn(name: str) -> None:
    x = drawn(8, B, C)
    assert float(WITHOUT[name](x)) == 0
    assert torch.equal(gradient(WITHOUT[name], x), torch.zeros(B, C))

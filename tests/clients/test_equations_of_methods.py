"""Every method's terms: equations, each held against slow loops in its own file, of the model's features."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from method_cases import CASES
from support import INDEX, ROUND, SEED, C, batch, normalised
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients import losses
from fedshift_clients.losses.prototypes import prototype_distance
from fedshift_clients.losses.styles import blended
from fedshift_clients.methods import copa, fedcode_terms, fedpac, fedpall, fedplvm, fedsa, fedseproto, fpl, i2pfl
from fedshift_clients.training.batches import Batch
from fedshift_core.seeding import generator, torch_seed

Terms = dict[str, Tensor]


def sent(made: Any, *names: str) -> list[Tensor]:
    """Return arrays that the server sent."""
    return [torch.from_numpy(made.knowledge[name]) for name in names]


def by_class(made: Any) -> tuple[Tensor, Tensor]:
    """Return the global prototypes in the rows of their classes, and which classes have one."""
    prototypes, classes = sent(made, "prototypes", "labels")
    rows, present = torch.zeros(C, prototypes.shape[1]), torch.zeros(C, dtype=torch.bool)
    rows[classes], present[classes] = prototypes, True
    return rows, present


def of_copa(made: Any, given: Batch, z: Tensor) -> Terms:
    weights, biases = sent(made, "heads/weight", "heads/bias")
    heads = [{"weight": weights[m], "bias": biases[m]} for m in (0, 2)]  # the node's own is 1, which classifies
    own = F.cross_entropy(z @ weights[1].T + biases[1], given.y)
    others = copa.others_loss(made.model.classifier, heads, z, given.y)
    return {"ce": own, "others": made.params.lambda_others * others}


def of_fedcode(made: Any, given: Batch, z: Tensor) -> Terms:
    p, style = made.params, made.model.style_encoder(given.x)
    g, classes, styles = sent(made, "prototypes", "labels", "style-prototypes")
    centres = (styles.mean(0), g.mean(0)) if p.center_in_negatives else (None, None)
    others = (style, z) if p.style_in_negatives else (None, None)
    return {
        "semcl": p.alpha
        * fedcode_terms.semantic_contrast(z, given.y, g, classes, p.tau, style=others[0], centre=centres[0]),
        "stycl": p.alpha * fedcode_terms.style_contrast(style, 1, styles, p.tau, semantic=others[1], centre=centres[1]),
        "fdr": p.beta * fedcode_terms.decoupling(style, z, p.fdr_form),
    }


def of_fedpac(made: Any, given: Batch, z: Tensor) -> Terms:
    rows, present = by_class(made)
    own, _ = made.model(normalised(made.train_set, made.setup.images))  # of the received body
    for k in (~present).nonzero().flatten():
        rows[k] = own[torch.from_numpy(made.train_set.y) == k].mean(0)
    return {"align": made.params.lambda_align * fedpac.alignment(z, given.y, rows)}


def of_fedpall(made: Any, given: Batch, z: Tensor) -> Terms:
    names = [name for name in made.knowledge if "amplifier" in name]
    amplifier = dict(zip((name.removeprefix("amplifier/") for name in names), sent(made, *names), strict=True))
    return {
        "adv": made.params.lambda_adv * fedpall.confusion(fedpall.amplifier(z, amplifier)),
        "con": made.params.lambda_con * fedpall.collaboration(z, given.y, *by_class(made), made.params.tau),
    }


def of_fedplvm(made: Any, given: Batch, z: Tensor) -> Terms:
    p, (prototypes, classes) = made.params, sent(made, "prototypes", "labels")
    means, counts = losses.class_means(prototypes, classes, C)
    return {
        "sparse": p.lambda_proto * fedplvm.sparse_contrast(z, given.y, prototypes, classes, p.tau, p.alpha),
        "correct": p.lambda_proto * fedplvm.correction(z, given.y, means, counts > 0),
    }


def of_fedproc(made: Any, given: Batch, z: Tensor) -> Terms:
    share, entropy = 0.75, F.cross_entropy(made.model.classifier(z), given.y)
    contrast = losses.prototype_contrast(z, given.y, *sent(made, "prototypes", "labels"), made.params.tau)
    return {"ce": (1 - share) * entropy, "gpc": share * contrast}


def of_fedproto(made: Any, given: Batch, z: Tensor) -> Terms:
    distance = prototype_distance(z, given.y, *by_class(made), reduction=getattr(made.params, "reduction", "mse_mean"))
    return {"proto": made.params.lambda_proto * distance}


def of_fedsa(made: Any, given: Batch, z: Tensor) -> Terms:
    p, (anchors,) = made.params, sent(made, "anchors")
    margin = fedsa.margin_contrast(z, given.y, anchors, fedsa.mean_gap(anchors))
    return {
        "calibration": p.lambda_calibration * fedsa.calibration(made.model.classifier, anchors),
        "anchor": p.lambda_anchor * fedsa.anchor_distance(z, given.y, anchors),
        "margin": p.lambda_margin * margin,
    }


def of_fedseproto(made: Any, given: Batch, z: Tensor) -> Terms:
    """From z^s, which is what the model classifies by, on: the noise of the node is drawn for z^s, then for z^d."""
    p, model, z = made.params, made.model, made.model.encoder(given.x)
    rng = torch.Generator().manual_seed(torch_seed(SEED, "fedseproto-noise", INDEX, ROUND))
    noise = torch.randn(2, *z.shape, generator=rng) if p.mi_form == "gaussian" else (None, None)
    semantic, domain = model.semantic(z, noise[0]), model.domain(z, noise[1])
    forms: dict[str, Callable[[Any], Tensor]] = {
        "gaussian": lambda code: fedseproto.gaussian_kl(code.mean, code.log_variance),
        "batch_moment": lambda code: fedseproto.moment_kl(code.mean),
        "l2": lambda code: fedseproto.squared_norm(code.mean),
    }
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (made.setup.images.mean, made.setup.images.std))
    decoded = model.decoder(torch.cat([semantic.sample, domain.sample], dim=1))
    logits = [model.classifier(code) for code in (z, semantic.mean, domain.mean)]
    distilled = fedseproto.distillation(*logits, temperature=p.kd_temperature, form=p.kd_form, direction=p.kl_direction)
    shift = (forms[p.mi_form](semantic) + forms[p.mi_form](domain)) * (z.shape[1] if p.reduction == "sum" else 1)
    distance = fedseproto.prototype_distance(
        semantic.mean, given.y, *by_class(made), reduction=p.proto_reduction, dimensions=p.reduction
    )
    return {
        "ce": F.cross_entropy(model.classifier(semantic.sample), given.y), "kd": p.alpha * distilled,
        "mi": p.beta * (shift + F.mse_loss(decoded, given.x * std + mean)),
        "proto": p.lambda_proto * distance,
    }  # fmt: skip


def of_fpl(made: Any, given: Batch, z: Tensor) -> Terms:
    prototypes, classes = sent(made, "prototypes", "labels")
    unbiased = fpl.unbiased_prototypes(prototypes, classes, C)
    return {
        "cpcl": losses.prototype_contrast(z, given.y, prototypes, classes, made.params.tau),
        "upcr": prototype_distance(z, given.y, *unbiased, reduction="mse_mean"),
    }


def of_i2pfl(made: Any, given: Batch, z: Tensor) -> Terms:
    p, number = made.params, len(given.y)
    mixed = z
    if p.intra_proto != "none_mixup":
        rng = torch.Generator().manual_seed(torch_seed(SEED, "i2pfl-mixup", INDEX, ROUND))
        partner = i2pfl.other_class_partner(given.y, torch.rand(number, number, generator=rng))
        gammas = generator(SEED, "i2pfl-mixup", INDEX, ROUND)
        drawn = gammas.beta(p.alpha, p.alpha, size=1 if p.gamma_per == "batch" else number)
        gamma = torch.tensor([max(g, 1 - g) if p.gamma_max else g for g in drawn]).float().expand(number)
        of_images = p.intra_proto == "input_mixup"
        a = given.x if of_images else z
        mixed = blended(a, a[partner], gamma)
        mixed = made.model.encoder(mixed) if of_images else mixed
    means, counts = losses.class_means(mixed, given.y, C)
    aligned = i2pfl.prototype_alignment(
        z, given.y, means, counts > 0, level=p.apa_level, reduction=p.apa_reduction, distance=p.apa_dist
    )
    contrast = losses.prototype_contrast(z, given.y, *sent(made, "prototypes", "labels"), p.tau)
    return {"apa": p.lambda1 * aligned, "gpcl": p.lambda2 * contrast}


EQUATIONS: list[tuple[str, Callable[[Any, Batch, Tensor], Terms], dict[str, Any]]] = [
    ("copa", of_copa, {"lambda_others": 0.5}),
    ("fedcode", of_fedcode, {"tau": 0.1, "alpha": 3.0, "beta": 2.5, "fdr_form": "literal"}),
    ("fedcode", of_fedcode, {"style_in_negatives": False, "fdr_form": "sum_abs"}),
    ("fedcode", of_fedcode, {"center_in_negatives": False, "use_sain": False}),
    ("fedpac", of_fedpac, {"lambda_align": 3.0}),
    ("fedpall", of_fedpall, {"lambda_adv": 0.3, "lambda_con": 0.7, "tau": 2.0}),
    ("fedplvm", of_fedplvm, {"lambda_proto": 3.0, "alpha": 0.5, "tau": 0.2}),
    ("fedproc", of_fedproc, {"tau": 0.1}),
    ("fedproto", of_fedproto, {"lambda_proto": 2.5}),
    ("fedproto", of_fedproto, {"reduction": "sum"}),
    ("fedsa", of_fedsa, {"lambda_calibration": 2.0, "lambda_anchor": 3.0, "lambda_margin": 5.0}),
    ("fedseproto", of_fedseproto, {"mi_form": "gaussian", "alpha": 3.0, "beta": 0.7, "lambda_proto": 0.2}),
    ("fedseproto", of_fedseproto, {"mi_form": "gaussian", "schedule": "joint", "reduction": "sum"}),
    (
        "fedseproto",
        of_fedseproto,
        {"mi_form": "batch_moment", "kd_temperature": 2.5, "kl_direction": "student_teacher"},
    ),
    ("fedseproto", of_fedseproto, {"kd_form": "printed", "proto_reduction": "class_mean", "reduction": "sum"}),
    ("fedtgp", of_fedproto, {}),
    ("fpl", of_fpl, {"tau": 0.2}),
    ("i2pfl", of_i2pfl, {"alpha": 2.0, "tau": 0.3, "lambda1": 3.0, "lambda2": 2.5}),
    ("i2pfl", of_i2pfl, {"gamma_per": "batch", "gamma_max": True}),
    ("i2pfl", of_i2pfl, {"apa_level": "class_mean", "apa_reduction": "class_sum", "intra_proto": "input_mixup"}),
    ("i2pfl", of_i2pfl, {"apa_dist": "l2", "intra_proto": "none_mixup"}),
]


@pytest.mark.parametrize(("method", "equations", "params"), EQUATIONS)
def test_terms_are_the_equations_times_their_weights(
    method: str, equations: Callable[[Any, Batch, Tensor], Terms], params: dict[str, Any]
) -> None:
    made, given = CASES[method].ready(params), batch()
    with torch.no_grad():
        z, logits = made.model(given.x)
        wanted = {"ce": F.cross_entropy(logits, given.y)} | equations(made, given, z)
    terms = made.terms_of(given)
    assert list(terms) == list(wanted)
    for name, value in terms.items():
        assert float(value.detach()) == pytest.approx(float(wanted[name]), rel=1e-4), name

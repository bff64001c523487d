"""FedCode on a node: SAIN, stopped gradients, contributions, the score under the mean of the heads."""

from typing import Any

import numpy as np
import pytest
import torch
from method_cases import drawn_rows, with_styles
from support import (
    ROUND,
    C,
    D,
    batch,
    begun,
    changed,
    drawn,
    features_of,
    fit,
    gradients,
    image_set,
    new_client,
    normalised,
    parts_of,
    weights,
)
from torch import nn

from fedshift_clients.adapt.finetune import Finetune
from fedshift_clients.adapt.params import FinetuneParams
from fedshift_clients.methods.fedcode import SAIN, FedCodeClient, with_sain
from fedshift_clients.models.networks import bare
from fedshift_core.arrays import Arrays


def client(
    params: dict[str, Any] | None = None, known: Arrays | None = None, label: int | None = 1, **options: Any
) -> FedCodeClient:
    """A client, and from round 2 on what the server sent: prototypes and, unless it is new, its pseudo-label."""
    fields = {} if known is None or label is None else {"pseudo-label": label}
    return new_client(FedCodeClient, params, known, scalars=fields, **options)


def started(params: dict[str, Any] | None = None, label: int | None = 1) -> FedCodeClient:
    return begun(client(params, with_styles(), label))


# --- SAIN (Eqs 5-7) --------------------------------------------------------------------------------


def plain_sain(block: SAIN, f: torch.Tensor) -> torch.Tensor:
    """Return Eqs 5-7 as they are written, in float64, for autograd to differentiate."""
    a, a0, b, b0 = (p.double() for p in block.parameters())
    mean = f.mean(dim=(2, 3), keepdim=True)
    deviation = ((f - mean) ** 2).mean(dim=(2, 3), keepdim=True).add(1e-5).sqrt()
    style = f - (f - mean) / deviation
    w = torch.sigmoid(torch.relu(style.mean(dim=(2, 3)) @ a.T + a0) @ b.T + b0)
    return w[:, :, None, None] * style


@pytest.mark.parametrize(
    ("b", "channels", "size", "kind", "last"),
    [(3, 8, 5, torch.float32, False), (2, 64, 1, torch.bfloat16, True), (9, 64, 32, torch.float32, True)],
)
def test_sain_and_its_gradients_are_those_of_its_equations(
    b: int, channels: int, size: int, kind: torch.dtype, last: bool
) -> None:
    block, f = SAIN(channels), (3 * drawn(0, b, channels, size, size) + 1).to(kind)
    f = f.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format).requires_grad_()
    weights, kept, wanted = drawn(1, *f.shape).to(kind), f.detach().clone(), f.detach().double().requires_grad_()
    bound = 1e-4 if kind == torch.float32 else 2e-2
    torch.testing.assert_close(block(f).double(), plain_sain(block, wanted), rtol=bound, atol=bound)
    got = torch.autograd.grad((block(f) * weights).sum(), [f, *block.parameters()])
    slow = torch.autograd.grad((plain_sain(block, wanted) * weights).sum(), [wanted, *block.parameters()])
    assert torch.equal(f.detach(), kept)
    assert [g.dtype for g in got] == [kind] + 4 * [torch.float32]
    for mine, theirs in zip(got, slow, strict=True):
        scale = float(theirs.abs().max()) + 1e-3
        torch.testing.assert_close(mine.double() / scale, theirs.double() / scale, rtol=0, atol=bound)


@pytest.mark.parametrize(("name", "blocks", "norm"), [("resnet10", 12, True), ("cnn_bn", 2, True), ("cnn3", 3, False)])
def test_where_sain_stands(name: str, blocks: int, norm: bool) -> None:
    """ResNet-10 has a BatchNorm in the stem, two a block and three in shortcuts: 1 + 4 * 2 + 3 = 12."""
    plain, styled = bare(name, C).encoder, with_sain(bare(name, C).encoder)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in styled.modules())
    if norm:
        wanted = [m.num_features for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
    else:
        wanted = [m.out_channels for m in plain.modules() if isinstance(m, nn.Conv2d)]
    assert [m.excite.out_features for m in styled.modules() if isinstance(m, SAIN)] == wanted and len(wanted) == blocks


# --- the model -------------------------------------------------------------------------------------


# --- rounds and knowledge --------------------------------------------------------------------------


# --- switches --------------------------------------------------------------------------------------


def test_stop_gradient_changes_gradients_and_no_value() -> None:
    default, stopped = (gradients(started(params), batch()) for params in ({}, {"negatives_stop_grad": True}))
    moves = {"ce": {"encoder", "classifier"}, "semcl": {"encoder"}, "stycl": {"style_encoder"}}
    for name, (value, grads) in stopped.items():
        assert value == default[name][0]
        parts = parts_of(weight for weight, grad in grads.items() if grad.any())
        assert parts == moves.get(name, {"encoder", "style_encoder"}), name


# --- what a node contributes (Eqs 2 and 8) ---------------------------------------------------------


@pytest.mark.parametrize("use_sain", [True, False])
def test_the_style_of_a_node_is_the_mean_of_its_images_in_evaluation_mode(use_sain: bool) -> None:
    made = client({"use_sain": use_sain}, with_styles(), model="cnn_bn", epochs=1)
    fit(made, ROUND)
    assert set(made.contribution()) == {"prototypes", "counts", "style-prototype"}
    style = features_of(made.model.eval(), normalised(made.train_set, made.setup.images), "style_encoder")
    np.testing.assert_allclose(made.contribution()["style-prototype"], style.mean(axis=0), rtol=1e-4, atol=1e-5)
    last = started({"proto_source": "last_epoch"})
    for epoch in range(2):  # the first one is forgotten
        last.start_epoch(epoch)
        last.loss(given := batch(6, epoch))
    style = features_of(last.model, given.x, "style_encoder").mean(axis=0)
    np.testing.assert_allclose(last.finish_round(ROUND)["style-prototype"], style, rtol=1e-4, atol=1e-5)


# --- scoring under the mean of the heads (A13) -----------------------------------------------------


HEAD: Arrays = {"head-weight": drawn_rows(C, D), "head-bias": drawn_rows(C)}


def test_global_score_is_that_of_the_encoder_under_the_mean_head() -> None:
    """Also next to that before an adaptation."""
    made, test = client({"global_model": "average_heads"}, HEAD), image_set(40)
    before, scores = weights(made), made.score_test(test)
    assert not changed(before, weights(made))
    logits = features_of(made.model, normalised(test, made.setup.images)) @ HEAD["head-weight"].T + HEAD["head-bias"]
    assert scores.others == {"global": int((logits.argmax(axis=1) == test.y).sum())}
    assert (scores.correct, scores.loss_sum) == made.score(test)
    assert client({}, HEAD).score_test(test).others == {}
    tuned = client({"global_model": "average_heads"}, HEAD, adaptation=Finetune(FinetuneParams(epochs=1)))
    assert tuned.score_test(test).others == scores.others | {"before-fine-tuning": scores.correct}

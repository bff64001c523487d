"""COPA's loss by frozen heads and its ensemble against slow versions."""

import numpy as np
import torch
from method_cases import check_term
from support import Float, as64, drawn, labels
from torch import nn

from fedshift_clients.methods import copa as terms
from fedshift_clients.models.networks import MLPHead

B, C, D, M = 6, 4, 5, 3


def probabilities(logits: Float) -> Float:
    exponentials = np.exp(logits)
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def test_loss_by_other_heads_against_numpy() -> None:
    z, y = drawn(1, B, D), labels(2, B, C)
    heads = [{"weight": drawn(10 + m, C, D), "bias": drawn(20 + m, C)} for m in range(M)]
    classifier = nn.Linear(D, C)

    def slow(features: Float) -> float:
        total = 0.0
        for head in heads:
            p = probabilities(features @ as64(head["weight"]).T + as64(head["bias"]))
            total += -sum(np.log(p[i, y[i]]) for i in range(B)) / B
        return float(total)

    check_term(lambda x: terms.others_loss(classifier, heads, x, y), slow, z)
    terms.others_loss(classifier, heads, z.requires_grad_(), y).backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is None for weight in classifier.parameters())


def test_heads_of_more_than_one_layer() -> None:
    z, own, other = drawn(1, B, D), MLPHead(D, C, D), MLPHead(D, C, D)
    assert torch.equal(terms.logits_by(own, other.state_dict(), z), other(z))
    assert not torch.equal(own(z), other(z))


def test_a_head_of_one_layer_can_be_traced_and_saved_as_a_program() -> None:
    z, own, other = drawn(1, B, D), nn.Linear(D, C), nn.Linear(D, C)
    head = {name: tensor.detach() for name, tensor in other.state_dict().items()}
    traced = torch.jit.trace(lambda x: terms.logits_by(own, head, x), z)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(2 * z), other(2 * z))


def test_ensemble_against_numpy() -> None:
    logits = 3 * drawn(5, M, B, C)
    mean = np.mean([probabilities(each) for each in as64(logits)], axis=0)
    result = as64(terms.ensemble(logits, "probabilities"))
    np.testing.assert_allclose(np.exp(result), mean, rtol=1e-5)
    np.testing.assert_allclose(as64(terms.ensemble(logits, "logits")), as64(logits).mean(axis=0), rtol=1e-5, atol=1e-6)
    assert terms.ensemble(200 * logits, "probabilities").isfinite().all()
    np.testing.assert_allclose(
        as64(terms.ensemble(logits[:1], "probabilities")), np.log(probabilities(as64(logits)[0])), rtol=1e-4, atol=1e-5
    )

"""FedDyn on a node: its one term against the two of the paper, and its state over rounds."""

from typing import Any

import numpy as np
import pytest
import torch
from support import batch as batch_of
from support import fit, new_client, shared

from fedshift_clients.methods.feddyn import MOVED, FedDynClient
from fedshift_clients.models.networks import batchnorm_names

ALPHA = 0.3


def client(**params: Any) -> FedDynClient:
    return new_client(FedDynClient, {"alpha": ALPHA} | params)


def parameters(of: FedDynClient) -> dict[str, np.ndarray[Any, Any]]:
    return {name: p.detach().numpy().astype(np.float64) for name, p in of.model.named_parameters()}


def test_three_rounds_against_the_papers_two_terms_and_state() -> None:
    """-<g_n, w> + alpha/2 ||w - w^t||^2, then g_n <- g_n - alpha (w_n - w^t), with the gradient of both by hand."""
    made = client()
    g = {name: np.zeros_like(p) for name, p in parameters(made).items()}
    for server_round in (1, 2, 3):
        given = [array + np.float32(0.01 * server_round) for array in shared(made)]  # the server moved on
        made.take(given)
        made.start_round(server_round)
        sent = parameters(made)
        with torch.no_grad():
            for i, p in enumerate(made.model.parameters()):
                p.add_(0.003 * (i + 1))
        w, term = parameters(made), made.loss(batch_of())["dyn"]
        grads = torch.autograd.grad(term, list(made.model.parameters()))
        for (name, _), grad in zip(made.model.named_parameters(), grads, strict=True):
            np.testing.assert_allclose(grad.numpy(), -g[name] + ALPHA * (w[name] - sent[name]), rtol=1e-4, atol=1e-6)
        printed = sum(-(g[n] * w[n]).sum() + ALPHA / 2 * ((w[n] - sent[n]) ** 2).sum() for n in w)
        constant = sum((g[n] ** 2).sum() / (2 * ALPHA) + (g[n] * sent[n]).sum() for n in w)
        assert float(term.detach()) == pytest.approx(printed + constant, rel=1e-4)
        made.take(given)
        arrays, _ = fit(made, server_round, given)
        trained = dict(zip(made.shared_names, arrays, strict=True))
        for name in g:
            g[name] -= ALPHA * (trained[name].astype(np.float64) - sent[name])
            np.testing.assert_allclose(-ALPHA * made.memory[MOVED + name], g[name], rtol=1e-4, atol=1e-6)


def test_what_stays_on_the_node_and_buffers_have_no_state() -> None:
    made = new_client(FedDynClient, {"alpha": ALPHA}, model="cnn_bn", bn="local")
    fit(made)
    kept = {name.removeprefix(MOVED) for name in made.memory if name.startswith(MOVED)}
    assert kept == {name for name, _ in made.model.named_parameters()} - batchnorm_names(made.model)


def test_the_servers_word_for_a_nodes_own_alpha_goes_before_the_runs() -> None:
    sent, own = client(), client(alpha=3 * ALPHA)
    sent.scalars = {"alpha": 3 * ALPHA}
    assert np.array_equal(fit(sent)[0][0], fit(own)[0][0])
    assert not np.array_equal(fit(client())[0][0], fit(own)[0][0])

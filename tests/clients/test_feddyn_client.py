"""FedDyn on a node: its one term against the two of the paper, and its state over rounds."""

from typing import Any

import numpy as np
import pytest
import torch
from support import Float, as64, fit, gradients, new_client, shared
from support import batch as batch_of

from fedshift_clients.methods.feddyn import MOVED, FedDynClient

ALPHA = 0.3


def client(**params: Any) -> FedDynClient:
    return new_client(FedDynClient, {"alpha": ALPHA} | params)


def parameters(of: FedDynClient) -> dict[str, Float]:
    return {name: as64(p) for name, p in of.model.named_parameters()}


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
        w, (term, slopes) = parameters(made), gradients(made, batch_of())["dyn"]
        for n, slope in slopes.items():
            np.testing.assert_allclose(slope, -g[n] + ALPHA * (w[n] - sent[n]), rtol=1e-4, atol=1e-6)
        printed = sum(-(g[n] * w[n]).sum() + ALPHA / 2 * ((w[n] - sent[n]) ** 2).sum() for n in w)
        constant = sum((g[n] ** 2).sum() / (2 * ALPHA) + (g[n] * sent[n]).sum() for n in w)
        assert term == pytest.approx(printed + constant, rel=1e-4)
        fit(made, server_round, given)
        for n, trained in parameters(made).items():
            g[n] -= ALPHA * (trained - sent[n])
            np.testing.assert_allclose(-ALPHA * made.memory[MOVED + n], g[n], rtol=1e-4, atol=1e-6)


def test_the_servers_word_for_a_nodes_own_alpha_goes_before_the_runs() -> None:
    sent, own = client(), client(alpha=3 * ALPHA)
    sent.scalars = {"alpha": 3 * ALPHA}
    assert np.array_equal(fit(sent)[0][0], fit(own)[0][0])
    assert not np.array_equal(fit(client())[0][0], fit(own)[0][0])

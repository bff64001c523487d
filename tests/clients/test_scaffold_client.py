"""SCAFFOLD on a node: gradients taken apart from the steps that it made, both options, what it keeps and sends."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import check_knowledge, drawn, fedavg, fit, image_set, new_client, new_strategy, normalised, same, shared
from torch import Tensor
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.methods import scaffold as equations
from fedshift_clients.methods.scaffold import CHANGE, CONTROL, SERVERS, ScaffoldClient
from fedshift_clients.training.batches import Batch
from fedshift_core.errors import FedShiftError
from fedshift_core.wire.records import encode
from fedshift_strategies.methods.scaffold import ScaffoldStrategy

PLAIN: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0}
BATCHES = 6  # of two epochs: twenty images in batches of eight


class Watched(ScaffoldClient):
    """Notes the gradient of plain cross-entropy, and the whole one, at each step."""

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        weights = list(self.model.parameters())
        plain = DomainClient.loss(self, batch)["ce"]
        whole = super().loss(batch)["ce"]
        assert float(plain.detach()) == float(whole.detach())  # the correction is in the gradient alone
        for kept, loss in ((self.plain, plain), (self.whole, whole)):
            kept.append(flat(torch.autograd.grad(loss, weights, retain_graph=True)))
        return {"ce": whole}


def flat(tensors: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([tensor.detach().reshape(-1).numpy().astype(np.float64) for tensor in tensors])


def client(**options: Any) -> Watched:
    made = new_client(Watched, {"option": options.pop("option", "II")}, **PLAIN | options)
    made.plain, made.whole = [], []
    return made


def number(of: ScaffoldClient) -> int:
    return sum(p.numel() for p in of.model.parameters())


def controls(of: ScaffoldClient) -> tuple[Any, Any]:
    """Return the control variates of the server and the node, which has them now."""
    c, c_i = (0.1 * drawn(seed, number(of)).numpy() for seed in (1, 2))
    of.knowledge, of.memory = {SERVERS: c}, {CONTROL: c_i.copy()}
    return c, c_i


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.3)])
def test_a_local_round_by_option_ii(momentum: float, decay: float) -> None:
    """Each step's gradient is g - c_i + c, and c_i+ the (weighted) mean of the gradients g of the round."""
    made = client(momentum=momentum, lr_decay=0.5, weight_decay=decay)
    given, (c, c_i) = shared(made), controls(made)
    arrays, _ = fit(made, 3, given)
    assert made.steps == len(made.plain) == BATCHES
    np.testing.assert_allclose(made.whole, np.array(made.plain) - c_i + c, atol=1e-5)
    if decay:
        return
    v, y = np.zeros_like(c), flat(map(torch.from_numpy, given))
    counted = np.zeros(BATCHES)  # how often each step's gradient is in the way from x to y
    for k, plain in enumerate(made.plain):
        v = momentum * v + plain - c_i + c
        y = y - 0.05 * 0.25 * v  # the rate of round 3
        counted[: k + 1] += momentum ** np.arange(k, -1, -1)
    np.testing.assert_allclose(flat(map(torch.from_numpy, arrays)), y, atol=1e-5)
    assert equations.steps_of_gradients(BATCHES, momentum) == pytest.approx(counted.sum())
    wanted = np.average(made.plain, axis=0, weights=counted)
    np.testing.assert_allclose(made.memory[CONTROL], wanted, rtol=1e-3, atol=2e-4)
    np.testing.assert_allclose(made.contribution()[CHANGE], made.memory[CONTROL] - c_i, atol=1e-6)


def test_option_i_is_the_gradient_over_all_images_where_the_round_began() -> None:
    made = client(option="I")
    for p in made.model.parameters():
        p.requires_grad_(True)
    logits = made.model(normalised(made.train_set, made.setup.images))[1]
    loss = F.cross_entropy(logits, torch.from_numpy(made.train_set.y))
    wanted = flat(torch.autograd.grad(loss, list(made.model.parameters())))
    fit(made)
    np.testing.assert_allclose(made.memory[CONTROL], wanted, rtol=1e-3, atol=1e-5)
    assert not np.allclose(made.memory[CONTROL], np.mean(made.plain, axis=0), atol=1e-3)


def test_the_server_takes_one_number_for_each_parameter_that_travels() -> None:
    made = new_client(ScaffoldClient, model="cnn_bn", bn="local")
    arrays, _ = fit(made)
    server = new_strategy(ScaffoldStrategy, classes=4, width=64)
    server._global = encode(dict(zip(made.shared_names, arrays, strict=True)))
    check_knowledge(server, made.contribution())
    assert made.contribution()[CHANGE].size == sum(a.size for a in arrays) < number(made)


def test_a_copy_that_is_tuned_ahead_of_a_score_has_no_half_of_a_correction() -> None:
    """c is not sent for a score: without it the copy is FedAvg's, with it that of the next round."""
    made, other, plain = client(), client(), fedavg(**PLAIN)
    controls(other)
    given = shared(plain)
    for corrected, wanted in ((False, plain), (True, other)):
        controls(made)
        made.knowledge, made.server_round = made.knowledge if corrected else {}, 2
        made.take(given)
        made.train_ahead()
        assert same(shared(made), fit(wanted, 3, given)[0])


def test_control_variates_of_another_model_are_refused() -> None:
    made = new_client(ScaffoldClient, knowledge={SERVERS: np.zeros(7, np.float32)}, train_set=image_set(4))
    with refused(FedShiftError, (7,)):
        fit(made)

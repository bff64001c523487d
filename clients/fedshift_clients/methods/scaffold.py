"""SCAFFOLD client [Karimireddy et al., 2020].

Paper: "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", Sai Praneeth Karimireddy, Satyen Kale,
Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, Ananda Theertha Suresh, ICML 2020;
https://arxiv.org/abs/1910.06378 (algorithm 1). Reference code: none of the authors; compared with that of
alpemreacar/FedDyn, commit 48a19fa (``train_SCAFFOLD``).

Symbols: x the weights that were received, y the local ones, g their gradient, eta the learning rate, K the local steps,
c the server's control variate, c_i the node's.

    y <- y - eta (g - c_i + c);   c_i+ = (I) gradient at x, or (II) c_i - c + (x - y) / (K eta);   sends c_i+ - c_i

Deviations: (1) with momentum, K of option II is the sum of the weights with which gradients entered y
(:func:`steps_of_gradients`): the paper's nodes take plain SGD steps; (2) option I takes the gradient of
cross-entropy over all of the node's images, not augmented, in evaluation mode; (3) private parts (``model.bn = local``)
and buffers have no control variate; (4) a round at the rate 0 (``train.schedule_end=0``) keeps c_i by option II.
"""

from collections.abc import Iterable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.losses.common import shifted
from fedshift_clients.methods.fedprox import HeldToReceived
from fedshift_clients.training.arrays import view
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.scaffold import ScaffoldParams
from fedshift_core.wire.names import CE


def steps_of_gradients(steps: int, momentum: float) -> float:
    r"""Return how many gradients long the way of K steps of SGD with momentum mu is.

    In :math:`x-y=\eta\sum_kv_k,\;v_k=\mu v_{k-1}+g_k` the gradient of step j has the weight
    :math:`\eta(1-\mu^{K-j+1})/(1-\mu)`; this is the sum of these weights over eta:

    .. math:: \frac1{1-\mu}\Big(K-\mu\frac{1-\mu^K}{1-\mu}\Big)

    K without momentum, so that :math:`(x-y)/(\eta K)` is the mean gradient; with it a weighted mean.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def next_control(c_i: Tensor, c: Tensor, x: Tensor, y: Tensor, lr: float, steps: float) -> Tensor:
    r"""Return the node's next control variate by option II: :math:`c_i-c+\frac1{K\eta}(x-y)`.

    It is c_i where the rate is 0, or rounds to it: steps of no length tell no gradient.

    Args:
        c_i: The node's control variate, (P,).
        c: The server's, (P,).
        x: The weights that the node received, (P,).
        y: Those that local training left, (P,).
        lr: The rate of the steps, eta.
        steps: Their number, K.
    """
    length = steps * lr
    return c_i if length < torch.finfo(x.dtype).tiny else c_i - c + (x - y) / length


CONTROL = "control"  # c_i in a node's memory, (P,): all parameters that travel, in their order
SERVERS = "c"  # c among what the server sends, (P,); nothing stands for zeros
CHANGE = "delta-c"  # what a node contributes, (P,)


class ScaffoldClient(HeldToReceived[ScaffoldParams]):
    """Cross-entropy, whose gradient is corrected by c - c_i."""

    remembers_shared = True

    @classmethod
    def check_run(cls, params: ScaffoldParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse steps from which option II cannot tell the gradients."""
        if params.control and params.option == "I" and train.sampler != "shuffle":
            raise ConfigError(
                f"train.sampler={train.sampler}: method.option=I takes the gradient of all images alike, not of those "
                "that are drawn; take method.option=II, or train.sampler=shuffle"
            )
        if params.control and params.option == "II" and train.optimizer != "sgd":
            raise ConfigError(
                f"train.optimizer={train.optimizer}: method.option=II reads gradients off the steps of sgd; take "
                "method.option=I, or train.optimizer=sgd"
            )

    def start_round(self, server_round: int) -> None:
        """Set up the correction c - c_i by weight; option I takes the gradient at x.

        A round ahead of a score has none where c did not come, which is not sent for a score.
        """
        super().start_round(server_round)
        self._x = _flat(self._held_to.values())
        self._correction: list[Tensor] = []
        if not self.params.control or (server_round != self.server_round and SERVERS not in self.knowledge):
            return
        self._c, self._c_i = self._control(self.knowledge.get(SERVERS)), self._control(self.memory.get(CONTROL))
        parts = torch.split(self._c - self._c_i, [weight.numel() for weight in self._weights.values()])
        self._correction = [part.view(w.shape) for part, w in zip(parts, self._weights.values(), strict=True)]
        self._gradient = self._gradient_at_x() if self.params.option == "I" else None

    def loss(self, batch: Batch) -> Terms:
        """Return cross-entropy, whose gradient has the correction; its value has not."""
        terms = super().loss(batch)
        if self._correction:
            terms[CE] = shifted(terms[CE], list(self._weights.values()), self._correction)
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Keep c_i+ and contribute how it changed."""
        if not self.params.control:
            return {}
        new = self._gradient
        if new is None:
            cfg = self.setup.train
            lr = cfg.lr * cfg.lr_factor(server_round, self.setup.rounds)
            steps = steps_of_gradients(self.steps, cfg.momentum)
            y = _flat(weight.detach() for weight in self._weights.values())
            new = next_control(self._c_i, self._c, self._x, y, lr, steps)
        self.memory[CONTROL] = new.cpu().numpy()
        return {CHANGE: (new - self._c_i).cpu().numpy()}

    def _control(self, array: NDArray[Any] | None) -> Tensor:
        """Return a control variate on the device, zeros where there is none yet.

        Raises:
            FedShiftError: If it is not of this model.
        """
        if array is None:
            return torch.zeros_like(self._x)
        control = view(array)
        if control.shape != self._x.shape or control.dtype != self._x.dtype:
            raise FedShiftError(
                f"a control variate of shape {tuple(control.shape)}, this node's model has {self._x.numel()} parameters"
            )
        return control.to(self._x.device)

    def _gradient_at_x(self) -> Tensor:
        """Return the gradient of cross-entropy over all images of the node at the received weights, (P,)."""
        self.model.eval()
        learned = {name: weight for name, weight in self._weights.items() if weight.requires_grad}
        total = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        for x, y in self.plain_batches(self.train_set):
            loss = self.cross_entropy(self.forward(x)[1], y) * len(y) / len(self.train_set)
            gradients = torch.autograd.grad(loss, [*learned.values()], allow_unused=True, materialize_grads=True)
            for name, grad in zip(learned, gradients, strict=True):
                total[name] += grad
        return _flat(total.values())


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Return tensors as one row, (P,)."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])

"""FedALA client [Zhang et al., 2023].

Paper: "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", Jianqing Zhang, Yang Hua, Hao Wang,
Tao Song, Zhengui Xue, Ruhui Ma, Haibing Guan; AAAI 2023, https://arxiv.org/abs/2212.01197 (equations 4 to 6, algorithm
1). Reference code: TsingZ0/FedALA at commit a7a9b21 (``system/utils/ALA.py``).

Symbols: w^t global weights, w_n the node's own after its last local training, W_n element-wise weights of the
aggregation, eta their learning rate.

Deviations: (1) the images are drawn at random (the code: neighbours in the order of the file); (2) epochs until
convergence have a limit; (3) W_n moves in rounds in which the node trains (the code: in all, nodes that only listen
included), and is learned again, from where it was, for each score; (4) of a network with BatchNorm the statistics are
the global ones, as the lower layers.
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.common import keep, kept, put
from fedshift_clients.models.networks import SplitModel, set_training
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.arrays import Arrays
from fedshift_core.methods.fedala import FedALAParams
from fedshift_core.wire.names import CLASSIFIER
from fedshift_datasets.base import ImageSet


def mixed(local: Tensor, received: Tensor, weights: Tensor) -> Tensor:
    r"""Return :math:`\hat w=w+(g-w)\odot W`: the local tensor where W is 0, the global one where it is 1."""
    return local + (received - local) * weights


def learned(weights: Tensor, gradient: Tensor, local: Tensor, received: Tensor, eta: float) -> Tensor:
    r"""Return :math:`\mathrm{clip}_{[0,1]}\big(W-\eta\,\nabla_{\hat w}\mathcal L\odot(g-w)\big)`, one step of W.

    Args:
        weights: W.
        gradient: Of the loss with respect to the mixed tensor.
        local: w.
        received: g.
        eta: The learning rate of W.
    """
    return torch.clamp(weights - eta * (gradient * (received - local)), 0, 1)


OWN, WEIGHTS = "own/", "weights/"  # prefixes in a node's memory: of its model after training, of W
TIMES = "times"  # in a node's memory: how often it has trained
CALM = 0.1  # standard deviation of the last losses below which W counts as converged, as in the code
LAST = 10  # how many losses those are


class FedALAClient(DomainClient[FedALAParams]):
    """Mixes the received weights with its own, element by element, then trains and scores as FedAvg's client."""

    remembers_shared = True  # the top of it, and as many weights W

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedALAParams) -> bool:
        """Each node scores its own mixture."""
        return params.eta > 0 or super().personal(model, config, params)

    @classmethod
    def scores_as_sent(cls, params: FedALAParams) -> bool:
        """The mixture is made anew of a node's own model and images."""
        return not params.eta

    def received(self) -> None:
        """Put the mixture into the model; before a node's first training all weights are the global ones.

        Of the parameters that travel it is the uppermost ones, from below; the output layer is the top.
        """
        named = [
            (name, parameter)
            for name, parameter in self.model.named_parameters()
            if name in self.shared_names and name.startswith(("encoder.", CLASSIFIER))
        ]
        output = (CLASSIFIER + "weight", CLASSIFIER + "bias")  # a hidden layer of the head is listed after it
        named.sort(key=lambda entry: entry[0] in output)
        self._top = dict(named[-self.params.layers :])
        self._weights = {name: torch.ones_like(tensor) for name, tensor in self._top.items()}
        if self.params.eta > 0 and TIMES in self.memory:
            self._mix(int(self.memory[TIMES]))

    def finish_round(self, server_round: int) -> Arrays:
        """Keep the top of the trained model, and W; contribute nothing."""
        if self.params.eta > 0:
            keep(self, OWN, self._top)
            keep(self, WEIGHTS, self._weights)
            self.memory[TIMES] = np.array(int(self.memory.get(TIMES, 0)) + 1)
        return {}

    def _mix(self, times: int) -> None:
        """Learn W further on a sample of the node's images, and leave the mixture in the model."""
        device, epoch_losses = self.setup.device, list[float]()
        local = {name: tensor.to(device) for name, tensor in kept(self, OWN, self._top).items()}
        self._weights = {name: tensor.to(device) for name, tensor in kept(self, WEIGHTS, self._top).items()}
        with self.kept_weights(), self.own_draws("dropout-ala", times):
            set_training(self.model, freeze_batchnorm=self.setup.model.bn == "freeze")
            self.model.requires_grad_(False)
            for tensor in self._top.values():
                tensor.requires_grad_(True)
            self._fill(local)
            self.start_modules(times, "ala-")
            images = self._sample(times)
            for epoch in itertools.count(1):
                loss = self._epoch(images, local, times)
                # The first aggregation of a node goes on until its loss is calm.
                if times > 1 or epoch >= self.params.most_epochs:
                    break
                epoch_losses.append(float(loss))
                if len(epoch_losses) > LAST and np.std(epoch_losses[-LAST:]) < CALM:
                    break
        self._fill(local)

    def _sample(self, times: int) -> ImageSet:
        """Return the images on which W is learned, at least one. A node that trained as often draws the same."""
        held = self.train_set
        order = torch.randperm(len(held), generator=self.torch_rng("ala-images", times)).numpy()
        return held.select(order[: max(1, int(self.params.share * len(held)))])

    def _epoch(self, images: ImageSet, local: dict[str, Tensor], times: int) -> Tensor:
        """Let W learn from each image once, the same batches in each epoch; return the last batch's loss."""
        received = self.received_weights
        order, unused = self.torch_rng("ala-order", times), self.torch_rng("ala-unused", times)
        for batch in self.training_batches(images, self.setup.train.batch_size, 0, (order, unused, unused)):
            loss = self.cross_entropy(self.forward(batch.x)[1], batch.y)
            gradients = torch.autograd.grad(loss, list(self._top.values()))
            for name, gradient in zip(self._top, gradients, strict=True):
                self._weights[name] = learned(
                    self._weights[name], gradient, local[name], received[name], self.params.eta
                )
            self._fill(local)
        return loss.detach()

    def _fill(self, local: dict[str, Tensor]) -> None:
        """Put the mixture by the present W into the model."""
        received, weights = self.received_weights, self._weights
        put(self.model, {name: mixed(local[name], received[name], weights[name]) for name in self._top})

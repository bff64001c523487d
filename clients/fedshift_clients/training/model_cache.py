"""What a process keeps from client to client: the model, the optimiser, memory for batches, images on the device.

In simulation one process plays many nodes, one message after another. Building and initialising a network, and
asking the system for its memory again, would be paid at every message. Nothing that a client learned may pass to
the next one.
"""

import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training import optimizers
from fedshift_clients.training.arrays import cloned, view
from fedshift_clients.training.model_parts import ModelParts
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ImageConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_datasets.base import ImageSet


class Workbench:
    """A model with all that training it needs, used by one client at a time.

    Attributes:
        model: On ``device``, as it was initialised.
        state: Its weights and buffers, by state-dict name; all that changes them does so in place.
        initial: Their values at the start.
        begun: The digest of what the server sent to begin from; empty where that is the seed alone.
        images: The images that lie on the device.
        pipeline: Turns them into what the network sees.
        frozen: What the frozen beginning of the model makes of images (``model.precompute``); None where it is
            computed anew for each batch.
    """

    def __init__(
        self,
        model: SplitModel,
        device: torch.device,
        train: TrainConfig,
        images: ImageConfig,
        layout: torch.memory_format = torch.channels_last,
    ) -> None:
        """Make one; ``layout`` is that of the batches, and of the model's weights already."""
        self.model = model
        self.state: dict[str, Tensor] = dict(model.state_dict())  # once: a walk through all modules
        self.initial = cloned(self.state)
        self.begun = ""
        self.images = DeviceImages(device)
        self.pipeline = Pipeline(images, device, layout)
        self.frozen: FrozenFeatures | None = None
        self._train = train
        self._trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]  # once, likewise
        self._parts: ModelParts | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    def clear(self) -> None:
        """Make room for the next client: the model is as it was at the start."""
        if self._parts is None:
            self._parts = ModelParts(self.model)  # with modules, frozen parts and their hooks
        self._put_back()
        with torch.no_grad():
            for name, tensor in self.state.items():
                if self.frozen is None or name not in self.model.frozen:
                    tensor.copy_(self.initial[name])
        for parameter, trained in self._trained:
            parameter.requires_grad_(trained)
            parameter.grad = None

    def check(self, model: nn.Module) -> None:
        """Refuse a client's model in which weights or layers were replaced: what is sent is not what was trained.

        Raises:
            FedShiftError: With the name of what was replaced.
        """
        change = self._put_back() if model is self.model else "self.model is another model"
        if change:
            raise FedShiftError(
                f"{change} since the model was built: weights change in place (under torch.no_grad(): "
                "weight.copy_(new)), layers are made in build_model; what is not the model's is kept on the client"
            )

    def _put_back(self) -> str:
        """Put the parts of the model that are not in their place back; return the first, or an empty text."""
        assert self._parts is not None  # a client cleared the bench before
        change = self._parts.change()
        if change:
            self._parts.restore()
            self._optimizer = None  # it may be over other weights
        return change

    def begin(self, start: Arrays, digest: str) -> None:
        """Put values in the place of initial ones, by state-dict name, for this client and those to come."""
        with torch.no_grad():
            for name, array in start.items():
                self.initial[name].copy_(view(array))
                self.state[name].copy_(self.initial[name])
        self.begun = digest
        if self.frozen is not None:
            self.frozen.renew()

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the configured optimiser over all that is not frozen, with nothing left of what it did before.

        It passes over parameters without a gradient, which a method may freeze in between.
        """
        if self._optimizer is None:
            frozen = self.model.frozen
            learning = [weight for name, weight in self.model.named_parameters() if name not in frozen]
            self._optimizer = optimizer_of(self._train, learning)
        self._optimizer.state.clear()
        return self._optimizer


def optimizer_of(train: TrainConfig, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser that a run asks for, at its rate before any schedule."""
    # foreach: all weights in a few calls; the same bits on a CPU (fused: not with frozen parts)
    if train.optimizer == "sgd":
        return optimizers.sgd(
            weights, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay, foreach=True
        )
    kind = optimizers.adam if train.optimizer == "adam" else optimizers.adamw
    return kind(weights, lr=train.lr, weight_decay=train.weight_decay, foreach=True)


@dataclass(frozen=True)
class _Held:
    """Images and labels on the device, and what owns the arrays that they are copies of."""

    owners: tuple["weakref.ref[NDArray[Any]]", ...]
    x: Tensor
    y: Tensor

    def lives(self) -> bool:
        """Tell whether the arrays are still there: while they are, nobody else's lie at their address."""
        return all(owner() is not None for owner in self.owners)


def _owner(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array that owns an array's memory, or is the last to know who does."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class DeviceImages:
    """Image sets on the device, each moved there once as a whole while they fit, and kept while their arrays are.

    On a CPU the tensors are the arrays themselves.
    """

    #: Of the device's memory that is free when a set comes, so much at most may be taken by it.
    SHARE: ClassVar[float] = 0.5

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: OrderedDict[tuple[int, ...], _Held] = OrderedDict()

    def get(self, images: ImageSet, *, labels_only: bool = False) -> tuple[Tensor, Tensor]:
        """Return images (N, H, W, 3), uint8, and targets on the device. Images that do not fit are on the CPU.

        Targets are labels (N,), or those of pixels (N, H, W), uint8, of images that have them.

        With ``labels_only`` there are no images, (0,): pixels that nobody looks at are not read.
        """
        y = view(targets := images.targets)
        if labels_only:
            return torch.empty(0, dtype=torch.uint8), y.to(self._device)
        x = view(images.x)
        if self._device.type == "cpu":
            return x, y
        key = (images.x.ctypes.data, targets.ctypes.data, *images.x.shape, *images.x.strides)
        if key not in self._held or not self._held[key].lives():
            self._held = OrderedDict((key, held) for key, held in self._held.items() if held.lives())
            if not self._make_room(x.nbytes):
                return x, y.to(self._device)
            owners = weakref.ref(_owner(images.x)), weakref.ref(_owner(targets))
            self._held[key] = _Held(owners, x.to(self._device), y.to(self._device))
        self._held.move_to_end(key)
        return self._held[key].x, self._held[key].y

    def _make_room(self, wanted: int) -> bool:
        while wanted > self.SHARE * self._free():
            if not self._held:
                return False
            self._held.popitem(last=False)  # the one that was not used for the longest time
        return True

    def _free(self) -> float:
        """Return how many bytes the device has left for us, those that PyTorch keeps for us too."""
        if self._device.type != "cuda":
            return float("inf")
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)

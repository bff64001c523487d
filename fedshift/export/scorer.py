"""The classification function of a method's client, as a module of its own.

It is the client's own ``predict`` (logits, nearness of prototypes, a network with modules), on a client that has no
images. One observed pass shows which weights and arrays of the server it needs: what only training
needs (a decoder, an encoder of style) is private to nodes and leaves none of them.
"""

from collections.abc import ItemsView, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import loading, setup
from fedshift_clients.base import ClientSetup, DomainClient, RoundInputs
from fedshift_clients.models import weights
from fedshift_clients.training.node import MODEL_PART
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import largest, shown
from fedshift_datasets.base import ImageSet

KNOWLEDGE = weights.KNOWLEDGE  # prefix of a server's array among saved weights


def classes_of(config: RunConfig) -> tuple[str, ...]:
    """Return the names of a run's classes, in the order of the scores."""
    return config.dataset.known().classes


def facts_of(config: RunConfig) -> dict[str, Any]:
    """Return what ``model.json`` says of a model's classes, images and network."""
    cfg, images = config.dataset, config.images
    return {
        "task": config.task,
        "classes": classes_of(config),
        "size": cfg.pixels,
        "resize": cfg.resize,
        "window": cfg.window,
        "exif": cfg.exif,
        "mean": images.mean,
        "std": images.std,
        "network": config.model.name,
    }


@dataclass(frozen=True)
class Needs:
    """The arrays that a client classifies with.

    Attributes:
        weights: All state-dict names of each module whose weights or buffers are used.
        knowledge: Names of the server's arrays.
    """

    weights: tuple[str, ...]
    knowledge: tuple[str, ...]


class Scorer(nn.Module):
    """Classifies images as the run scores them, in float32.

    Attributes:
        model: The network.
        size: Height and width of the images in pixels.
    """

    def __init__(self, client: DomainClient, knowledge: Sequence[str], size: int) -> None:
        super().__init__()
        self.model, self.size, self._client = client.model, size, client
        images = client.setup.images
        self.register_buffer("mean", torch.tensor(images.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(images.std).view(1, 3, 1, 1))
        self._places = {name: f"knowledge_{place}" for place, name in enumerate(knowledge)}
        for name, place in self._places.items():
            self.register_buffer(place, torch.from_numpy(np.array(client.knowledge[name])))
        vars(client)["tensor"] = self._tensor  # replaces the client's own, so that buffers move with the module

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (B, C) of images (B, 3, H, W), float32, 0 to 1."""
        return self._client.predict(self._normalised(images))

    def passed(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of images (B, 3, H, W), float32, 0 to 1."""
        return self._client.forward(self._normalised(images))

    def _normalised(self, images: Tensor) -> Tensor:
        return (images - self.get_buffer("mean")) / self.get_buffer("std")

    def _tensor(self, name: str) -> Tensor | None:
        place = self._places.get(name)
        return None if place is None else self.get_buffer(place)


def bare_client(config: RunConfig, index: int = 0) -> DomainClient:
    """Return a node's client without images, around a model with the run's initial weights, on the CPU.

    Args:
        config: The run's, with the node's own network.
        index: The node's.
    """
    network, size = config.model, config.dataset.pixels
    none = ImageSet(np.zeros((0, size, size, 3), np.uint8), np.zeros(0, np.int64))
    train = config.train.model_copy(update={"precision": "float32"})
    about = ClientSetup(config.seed, index, torch.device("cpu"), network, train, config.images, rounds=config.rounds)
    made: DomainClient = config.declared.client_class()(
        model=setup.initial_model(config, network),
        setup=about,
        params=config.params(),
        train_set=none,
        test_set=lambda _: none,
        modules=setup.modules(config),
    )
    return made


class _RecordingDict(dict[str, Any]):
    """A dict that records which keys were read."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and record its key."""
        self.read.add(key)
        return super().get(key, default)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """Return all keys and values, and record all keys."""
        self.read.update(self)
        return super().items()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """Return all values, and record all keys."""
        self.read.update(self)
        return super().values()


class _Used(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the memory that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        self.places |= {tensor.untyped_storage().data_ptr() for tensor in tensors}
        return func(*args, **(kwargs or {}))


def needs(client: DomainClient) -> Needs:
    """Return the arrays that a client classifies with, from one pass over an image of zeros.

    Args:
        client: With the server's knowledge, as when it scores.

    Raises:
        FedShiftError: If it reads the server's scalars for this node, or the node's state other than its model.
    """
    kept, size = client.inputs, client.train_set.x.shape[1]
    knowledge, scalars = _RecordingDict(client.knowledge), _RecordingDict(client.scalars)
    memory = _RecordingDict(client.memory)
    client.prepare(RoundInputs(knowledge, scalars, memory, kept.statistics))
    client.model.eval()
    try:
        client.received()
        with torch.no_grad(), _Used() as used:
            client.predict(torch.zeros(2, 3, size, size))
    finally:
        client.prepare(kept)
    if personal := scalars.read or memory.read:
        what = "scalars that the server sends to each node" if scalars.read else "further parts that the node keeps"
        names = ", ".join(sorted(personal)[:3])
        raise FedShiftError(f"{type(client).__name__} classifies by {what} ({names}): it cannot be saved")
    state = client.model.state_dict()
    modules = {_owner(name) for name, tensor in state.items() if tensor.untyped_storage().data_ptr() in used.places}
    weights = tuple(name for name in state if _owner(name) in modules)
    return Needs(weights, tuple(sorted(knowledge.read & client.knowledge.keys())))


def needs_of(config: RunConfig, knowledge: Arrays, index: int = 0) -> Needs:
    """Return the arrays that the client of a node, by default the first, classifies with, as :func:`needs`."""
    client = bare_client(config, index)
    client.prepare(RoundInputs(knowledge))
    return needs(client)


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def rebuilt(config: RunConfig, arrays: Arrays, whose: str, index: int = 0) -> Scorer:
    """Build the scorer of saved arrays.

    Args:
        config: The run's, with the model's own network.
        arrays: The weights that :class:`Needs` names and, under ``knowledge/NAME``, the server's arrays.
        whose: The source of the arrays, for messages.
        index: The node's.

    Raises:
        FedShiftError: If a name, a shape, a type or a number does not fit the network, or one is not taken by it.
    """
    client = bare_client(config, index)
    knowledge = knowledge_in(arrays)
    client.prepare(RoundInputs(knowledge))
    weights = {name: array for name, array in arrays.items() if not name.startswith(KNOWLEDGE)}
    _check_arrays(arrays, client, whose)
    needed, state = needs(client), client.model.state_dict()
    if strange := sorted({*weights} ^ {*needed.weights} | {*knowledge} ^ {*needed.knowledge}):
        raise FedShiftError(f"{whose} arrays do not fit the network: {shown(', '.join(strange[:3]))}")
    # Weights that do not classify keep their initial values; no file contains them.
    complete = {name: weights.get(name, tensor.numpy()) for name, tensor in state.items()}
    # A client takes what never changes once, and from then on neither with the weights nor with its private parts.
    client.begin({name: complete[name] for name in client.shared_frozen}, "")
    shared = {name: complete[name] for name in client.shared_names}
    private = {MODEL_PART + name: array for name, array in complete.items() if name not in shared}
    client.prepare(RoundInputs(knowledge, memory=private))
    loading.load(shared, client, whose)
    # What trains may come from elsewhere: a head that the server trained, erasers of a node.
    taken, frozen = client.model.state_dict(), {name: weights[name] for name in weights if name in client.shared_frozen}
    if left := [name for name, array in frozen.items() if not np.array_equal(taken[name].numpy(), array)]:
        raise FedShiftError(f"{whose} arrays are not all taken by the network: {shown(', '.join(left[:3]))}")
    client.prepare(RoundInputs(knowledge))
    client.model.eval().requires_grad_(False)
    return Scorer(client, needed.knowledge, config.dataset.pixels).eval()


def knowledge_in(arrays: Arrays) -> Arrays:
    """Return the server's arrays among those of a saved model, by their own names."""
    return {name.removeprefix(KNOWLEDGE): array for name, array in arrays.items() if name.startswith(KNOWLEDGE)}


def _check_arrays(arrays: Arrays, client: DomainClient, whose: str) -> None:
    """Check shapes, types and numbers of weights against a network's, and numbers and labels of a method's own arrays.

    Raises:
        FedShiftError: With the first that differs.
    """
    state = client.model.state_dict()
    for name, array in arrays.items():
        actual = f"shape {array.shape} and type {array.dtype}"
        if (tensor := state.get(name)) is not None:
            expected = f"shape {tuple(tensor.shape)} and type {str(tensor.dtype).removeprefix('torch.')}"
            if actual != expected:
                raise FedShiftError(f"{whose} {name} has {actual}, the network has {expected}")
        elif array.dtype.kind in "iu" and array.size and not 0 <= array.min() <= array.max() < client.model.num_classes:
            raise FedShiftError(f"{whose} {name} holds labels outside the classes")
        if not np.isfinite(largest(array)):
            raise FedShiftError(f"{whose} {name} holds numbers that are not finite")

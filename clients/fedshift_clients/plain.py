"""A method's node in one's own Flower ClientApp: from a model, images and labels to answers to Flower's messages.

    client = node(FedProtoClient, SplitModel(encoder, 64, 10), images, labels, train={"lr": 0.05}, share_weights=True)
    return train(client, msg, context)          # or evaluate(...)

The server's strategy is that of :mod:`fedshift_strategies` with the method's name, or Flower's FedAvg where the method
has none. What the node keeps to itself lies in ``context.state``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedshift_clients.base import ClientSetup, DomainClient, RoundInputs
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arguments import as_arguments
from fedshift_core.errors import ConfigError, RequestError
from fedshift_core.wire.names import ARRAYS, CONFIG, DOMAINS, KNOWLEDGE, LOSS, METRICS, NUM_EXAMPLES, SERVER_ROUND
from fedshift_core.wire.records import decode, encode
from fedshift_core.wire.scores import DomainScore
from fedshift_datasets.base import ImageSet

Client = TypeVar("Client", bound=DomainClient)
MEMORY = "fedshift-memory"  # the record of context.state with what a node keeps between messages
TEST = "test"
Settings = Mapping[str, Any]
EMPTY: Settings = MappingProxyType({})
TRAIN: Settings = {"epochs": 1, "batch_size": 32, "lr": 0.01, "precision": "float32"}


def node(
    kind: type[Client],
    model: SplitModel,
    images: NDArray[np.uint8],
    labels: NDArray[Any],
    *,
    test: tuple[NDArray[np.uint8], NDArray[Any]] | None = None,
    index: int = 0,
    seed: int = 0,
    rounds: int = 1,
    device: str = "cpu",
    train: Settings = EMPTY,
    augment: Settings = EMPTY,
    **params: Any,
) -> Client:
    """Make the client of a method.

    Args:
        kind: Its class, such as ``fedshift_clients.methods.fedproto.FedProtoClient``.
        model: The network, encoder and classifier.
        images: The node's training images, (N, H, W, 3) or grey (N, H, W), uint8.
        labels: Their classes, (N,), integers from 0.
        test: Images and labels to score; none where the node scores nothing.
        index: The node's number; with the seed and the round it fixes all that is drawn.
        seed: Of what is drawn.
        rounds: Rounds of the run, for schedules.
        device: Where the model computes.
        train: Keys of a run's section ``train``; by default one epoch at 0.01 in batches of 32.
        augment: Keys of a run's section ``images``.
        params: The method's own parameters.

    Raises:
        ConfigError: If a key or value is not allowed, images and labels do not go together, or the method needs a
            network, or knowledge of other nodes, that only a run of FedShift has.
    """
    own = as_arguments(kind.params_model, params, kind.__name__)
    if getattr(kind.build_model, "__func__", None) is not getattr(DomainClient.build_model, "__func__", None):
        raise ConfigError(f"{kind.__name__} adds parts to a network of its own, so it needs a run of FedShift")
    if kind.uses_public or kind.uses_statistics or kind.needs_image_styles(own):
        raise ConfigError(f"{kind.__name__} needs what only a run of FedShift tells nodes of other images")
    training = as_arguments(TrainConfig, {**TRAIN, **train}, "train")
    pipeline = as_arguments(ImageConfig, augment, "augment")
    setup = ClientSetup(seed, index, torch.device(device), ModelConfig(name="own"), training, pipeline, rounds)
    kind.check_run(own, setup.model, setup.train, setup.images)
    held = _image_set(images, labels, model.num_classes, "images")
    tests = held.select(slice(0, 0)) if test is None else _image_set(*test, model.num_classes, "test")
    return kind(model.to(setup.device), setup, own, held, lambda domain: tests)


def train(client: DomainClient, msg: Message, context: Context) -> Message:
    """Answer a message to train: weights, what the method's nodes contribute, the number of images and the loss."""
    parameters, config = _given(client, msg, context)
    weights, number, metrics = client.fit(parameters, config)
    context.state[MEMORY] = encode(client.memory)
    content = RecordDict(
        {
            ARRAYS: encode(dict(zip(client.shared_names, weights, strict=True))),
            METRICS: MetricRecord({NUM_EXAMPLES: number, LOSS: float(metrics[LOSS])}),
        }
    )
    if contribution := client.contribution():
        content[KNOWLEDGE] = encode(contribution)
    return Message(content, reply_to=msg)


def evaluate(client: DomainClient, msg: Message, context: Context) -> Message:
    """Answer a message to evaluate: loss, accuracy from 0 to 1, and the number of test images."""
    parameters, config = _given(client, msg, context)
    loss, number, metrics = client.evaluate(parameters, {**config, DOMAINS: [TEST]})
    score = DomainScore.from_numbers(metrics, TEST, ())
    numbers = MetricRecord({NUM_EXAMPLES: number, LOSS: loss, "accuracy": score.correct / max(number, 1)})
    return Message(RecordDict({METRICS: numbers}), reply_to=msg)


def _given(client: DomainClient, msg: Message, context: Context) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """Hand the client what came with a message, and return the weights in its order, with the round."""
    config, arrays = msg.content[CONFIG], _arrays(msg.content, ARRAYS)
    assert isinstance(config, ConfigRecord)
    if strange := sorted({*arrays} ^ {*client.shared_names}):
        raise RequestError(
            f"the arrays that came are not those of the model that travel: {', '.join(strange[:3])}; let the server "
            "begin with {name: state_dict[name] for name in client.shared_names}"
        )
    scalars = {name: value for name, value in config.items() if isinstance(value, int | float | str)}
    client.prepare(RoundInputs(_arrays(msg.content, KNOWLEDGE), scalars, _arrays(context.state, MEMORY)))
    return [arrays[name] for name in client.shared_names], {SERVER_ROUND: scalars[SERVER_ROUND]}


def _arrays(content: RecordDict, name: str) -> dict[str, NDArray[Any]]:
    record = content.get(name)
    return decode(record) if isinstance(record, ArrayRecord) else {}


def _image_set(images: NDArray[np.uint8], labels: NDArray[Any], classes: int, whose: str) -> ImageSet:
    if images.dtype != np.uint8 or images.shape[3:] not in ((), (3,)) or images.ndim not in (3, 4):
        raise ConfigError(
            f"{whose}: found {images.dtype} of shape {images.shape}, expected uint8 of shape (N, H, W, 3) or (N, H, W)"
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise ConfigError(
            f"{whose}: found labels {labels.dtype} of shape {labels.shape}, expected integers of shape ({len(images)},)"
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ConfigError(f"{whose}: found labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    coloured = images if images.ndim == 4 else np.repeat(images[..., None], 3, axis=3)
    return ImageSet(coloured, labels.astype(np.int64))

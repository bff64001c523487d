"""Tasks: what is learnt of images. The room of a task (``fedshift_app/tasks``) states what others ask of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Start:
    """What ``fedshift init`` proposes for a user's images.

    Attributes:
        found: Tells whether images lie there with what the task learns (``module:function(source)``).
        line: Of the file, which turns the task on.
        network: The network; empty: one that goes by the size of images.
        why: Why this one.
        optimizer: Lines of the section ``train``.
        methods: To compare first.
    """

    found: str = ""
    line: str = ""
    network: str = ""
    why: str = ""
    optimizer: str = "  lr: 0.01\n  momentum: 0.9\n"
    methods: tuple[str, ...] = ("fedavg", "fedbn", "fedproto", "i2pfl")  # of different kinds, with any BatchNorm


@dataclass(frozen=True)
class Task:
    """A task; the defaults are those of classification.

    Attributes:
        score: The name of what tables show by domain, in percent.
        kind: Its name on a model card (``pipeline_tag``).
        figures: Of a model card, by the name of a site's figure in ``model.json``, its type and name.
        piece: What of an image gets a class.
        target: What is known of an image.
        model: What a model card calls its model.
        option: The option of ``fedshift predict`` that is its own, on the card.
        dataset: Keys of the section ``dataset`` that it sets.
        score_of_each: Returns the scores (N,) of predictions (N, ...), targets (N, ...) and the number of classes
            (``module:function``, tensors); empty: an image is right or wrong.
        predictions: Class of what ``fedshift predict`` makes of scores (``module:Class``); empty: a class an image.
        start: What ``fedshift init`` proposes.
    """

    score: str = "top-1 accuracy"
    kind: str = "image-classification"
    figures: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: {
            "accuracy": ("accuracy", "top-1 accuracy (%)"),
            "balanced_accuracy": ("balanced_accuracy", "balanced accuracy (%)"),
            "macro_f1": ("f1", "macro-F1 (%)"),
        }
    )
    piece: str = "image"
    target: str = "label"
    model: str = "An image classifier"
    option: str = ""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    score_of_each: str = ""
    predictions: str = ""
    start: Start = Start()


CLASSIFICATION = Task()

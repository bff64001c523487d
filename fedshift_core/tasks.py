"""Tasks: what is learnt of images. The room of a task (``fedshift_app/tasks``) states what others ask of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """A task; the defaults are those of classification.

    Attributes:
        score: The name of what tables show by domain, in percent.
        metric: The type of that score on a model card, and its name in ``report.json``.
        kind: Its name on a model card (``pipeline_tag``).
        piece: What of an image gets a class.
        target: What is known of an image; in the plural the option of ``fedshift predict`` that writes predictions.
        dataset: Keys of the section ``dataset`` that it sets.
        score_of_each: Returns the scores (N,) of predictions (N, ...), targets (N, ...) and the number of classes
            (``module:function``, tensors); empty: an image is right or wrong.
        predictions: Class of what ``fedshift predict`` makes of scores (``module:Class``); empty: a class an image.
        found: Tells whether a user's images lie somewhere with its targets (``module:function(source)``).
        line: What turns it on in the file of ``fedshift init``.
        network: Proposed there; empty: one that goes by the size of images.
        why: Why this one.
        optimizer: Proposed lines of the section ``train``.
        methods: Proposed to compare.
    """

    score: str = "top-1 accuracy"
    metric: str = "accuracy"
    kind: str = "image-classification"
    piece: str = "image"
    target: str = "label"
    dataset: Mapping[str, Any] = field(default_factory=dict)
    score_of_each: str = ""
    predictions: str = ""
    found: str = ""
    line: str = ""
    network: str = ""
    why: str = ""
    optimizer: str = "  lr: 0.01\n  momentum: 0.9\n"
    methods: tuple[str, ...] = ("fedavg", "fedbn", "fedproto", "i2pfl")  # of different kinds, with any BatchNorm


CLASSIFICATION = Task()

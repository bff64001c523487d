"""Opens a run for the figures of papers: its test images, and its models with their features."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import fedshift as fs
from fedshift.export.scorer import Scorer
from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.node import loading
from fedshift_app.run import checkpoints
from fedshift_clients.base import DomainClient

Images = tuple[Tensor, NDArray[np.int64]]


def show(main: Callable[[], Path]) -> None:
    """Print the file that a script writes, or its error in a line."""
    try:
        print(main())
    except fs.FedShiftError as error:
        sys.exit(f"error: {error}")


def test_images(run: fs.Run, most: int) -> dict[str, Images]:
    """Return test images of each domain, the same for every run: float32 (N, 3, H, W) from 0 to 1; their classes."""
    client = _client(run, None, trains=False)
    sets = {domain: client.test_set(domain) for domain in run.config["dataset"]["domains"]}
    mixed = {domain: np.random.default_rng(0).permutation(len(images))[:most] for domain, images in sets.items()}
    return {
        domain: (torch.from_numpy(images.x[mixed[domain]]).permute(0, 3, 1, 2).float() / 255, images.y[mixed[domain]])
        for domain, images in sets.items()
    }


def model_of(run: fs.Run, *, node: int | None = None, server_round: int | None = None) -> Scorer:
    """Return the model after a kept round, by default the last; of a node, right after one more local round.

    ``scorer(images)`` gives scores, ``scorer.passed(images)`` features and logits, ``scorer.model`` is the network.
    """
    if node is None:
        return run.model(round=server_round).scorer
    client = _client(run, node, trains=True)
    client.train_ahead()
    client.model.eval()
    return Scorer(client, tuple(client.knowledge), int(client.train_set.x.shape[1]))


def classes_of(run: fs.Run) -> tuple[str, ...]:
    """Return the names of a run's classes."""
    return reading.read(run.folder).classes


def kept_rounds(run: fs.Run) -> list[int]:
    """Return the rounds whose checkpoints are kept, the first one first."""
    return sorted(checkpoints.rounds(run.folder / checkpoints.FOLDER))


def features_of(scorer: Scorer, images: Tensor) -> NDArray[np.float64]:
    """Return the features of images, (N, D)."""
    with torch.inference_mode():
        return np.concatenate([scorer.passed(part)[0].double().numpy() for part in images.split(100)])


def _client(run: fs.Run, index: int | None, *, trains: bool) -> DomainClient:
    """Return a simulated node's client with the last weights; None for the first node."""
    record = reading.read(run.folder)
    if record.checkpoint is None or record.deployed:
        raise fs.ConfigError(f"{run.folder}: this figure needs a simulated run with a checkpoint")
    nodes = {node.index: node for node in record.nodes}
    if index is not None and index not in nodes:
        raise fs.ConfigError(f"--node: the run has the nodes {min(nodes)} to {max(nodes)}, found {index}")
    node = nodes[min(nodes) if index is None else index]
    # Images pass the whole network: maps of what is precomputed would be missing.
    whole = record.config.model.model_copy(update={"precompute": False})
    config = record.config.model_copy(update={"model": whole})
    client = predictions.client_of(replace(record, config=config), config, node.domain, node, trains=trains)
    loading.load(record.checkpoint.weights, client, "the checkpoint's", record.checkpoint.server_round)
    return client

"""What the head's update of one round says of a node's only image of a class: its feature, and that the class is there.

    python benchmarks/head_update.py                  # the table of docs/deploy/policy.md
    python benchmarks/head_update.py --trials 5 --epochs 5

Images are drawn: a pattern of the class with noise. A real node's app trains FedAvg in one round on 57 of them: seven
of each of eight classes, one of the ninth, none of the tenth. The server takes the update of the ninth class's row less
that of the tenth's for the lone image's feature, and takes the class to be there where its bias rose above the tenth's.
It sends the run's first weights, or a head of zeros with low scores of both classes. ``left out`` is the same node
without the lone image; ``masked`` the sum over this node and four that hold seven images of all ten classes.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from numpy.typing import NDArray

from fedshift_app import client_app
from fedshift_app.config.registry import table
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import setup, state_folder
from fedshift_app.run import build
from fedshift_core.arrays import Arrays
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode

CLASSES, EACH, LONE, ABSENT = 10, 7, 8, 9
OTHERS = 4  # nodes of a sum, in addition to the one that is looked at
SIZE = 32
WEIGHT, BIAS = "classifier.weight", "classifier.bias"
Images = NDArray[np.uint8]


class Read(NamedTuple):
    """Cosines with the feature of the lone image and with those of the others, and whether the class is seen."""

    lone: float
    others: float
    there: bool


def drawn(rng: np.random.Generator, patterns: NDArray[np.float64], labels: NDArray[np.int64]) -> Images:
    """Return an image of each label."""
    noisy = patterns[labels] + rng.normal(0, 40, (len(labels), SIZE, SIZE, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def change(config: RunConfig, weights: Arrays, images: Images, labels: NDArray[np.int64], folder: Path) -> Arrays:
    """Return how a real node's training changes the weights."""
    folder.mkdir()
    classes = np.array([str(label) for label in range(CLASSES)])
    for split in ("train", "test"):
        np.savez(folder / f"scan_{split}.npz", x=images, y=labels, classes=classes)
    context = make_context(1, {"domain": "scan", "data-dir": str(folder), "policy": "open"}, {})
    entries = {
        names.RUN: config.model_dump_json(), names.RUN_ID: f"{abs(hash(folder)):032x}"[:32], names.NODE_INDEX: 0,
        names.ENGINE: setup.DEPLOYMENT, names.SERVER_ROUND: 1,
    }  # fmt: skip
    content = {"arrays": encode(weights), "knowledge": ArrayRecord(), "config": ConfigRecord(entries)}
    reply = client_app.app(Message(RecordDict(content), 1, MessageType.TRAIN), context)
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    trained = decode(reply.content.array_records[names.ARRAYS])
    return {name: trained[name].astype(np.float64) - weights[name] for name in (WEIGHT, BIAS)}


def features(config: RunConfig, weights: Arrays, images: Images) -> NDArray[np.float64]:
    """Return the features (N, D) of images under some weights."""
    model: Any = setup.initial_model(config)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
    model.eval()
    with torch.no_grad():
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        return np.asarray(model.encoder((x - 0.5) / 0.5).flatten(1), np.float64)


def trial(config: RunConfig, seed: int, folder: Path, *, chosen: bool) -> dict[str, Read]:
    """Return what is read of the node alone, without the lone image, and of a sum."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (CLASSES, 4, 4, 3))
    patterns = coarse.repeat(SIZE // 4, axis=1).repeat(SIZE // 4, axis=2)
    labels = np.append(np.repeat(np.arange(LONE), EACH), LONE)
    images = drawn(rng, patterns, labels)
    weights = {name: array.copy() for name, array in decode(build.prepare(config, setup.DEPLOYMENT)[0]).items()}
    if chosen:
        weights[WEIGHT][:], weights[BIAS][:] = 0, 0
        weights[BIAS][[LONE, ABSENT]] = -60
    of_image = features(config, weights, images)

    def read(update: Arrays) -> Read:
        row = update[WEIGHT][LONE] - update[WEIGHT][ABSENT]
        norms = np.linalg.norm(of_image, axis=1) * np.linalg.norm(row)
        cosines = of_image @ row / np.maximum(norms, 1e-30)
        return Read(float(cosines[-1]), float(cosines[:-1].mean()), bool(update[BIAS][LONE] > update[BIAS][ABSENT]))

    own = change(config, weights, images, labels, folder / "own")
    total = dict(own)
    for other in range(OTHERS):
        of_other = np.repeat(np.arange(CLASSES), EACH)
        more = change(config, weights, drawn(rng, patterns, of_other), of_other, folder / f"other-{other}")
        total = {name: total[name] + more[name] for name in total}
    without = change(config, weights, images[:-1], labels[:-1], folder / "without")
    return {"trained on": read(own), "left out": read(without), "masked": read(total)}


def rows(trials: int, epochs: int) -> list[tuple[str, ...]]:
    """Return the table's rows: means over trials."""
    lines = []
    for chosen, head in ((False, "the run's first"), (True, "chosen by the server")):
        found: dict[str, list[Read]] = {}
        for seed in range(trials):
            given = f"dataset.domains=[scan,sketch] model.name=cnn train.epochs={epochs} train.precision=float32"
            config = resolve({"rounds": 1, "seed": seed, "set": given})
            with tempfile.TemporaryDirectory() as folder:
                os.environ[state_folder.STATE_DIR] = f"{folder}/state"
                for case, each in trial(config, seed, Path(folder), chosen=chosen).items():
                    found.setdefault(case, []).append(each)
        for case, reads in found.items():
            lone, others, there = np.mean([[*read] for read in reads], axis=0)
            lines.append((head, case, f"{lone:.2f}", f"{others:.2f}", "-" if case == "masked" else f"{there:.0%}"))
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    identify_process()
    head = (
        "head that is sent",
        "lone image",
        "cosine with its feature",
        "with the others'",
        "it is the nearest",
        "class seen",
    )
    print(table(head, rows(given.trials, given.epochs)))


if __name__ == "__main__":
    main()

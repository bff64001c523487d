"""What the running statistics of BatchNorm cost a finished run, by method and domain.

    python benchmarks/batchnorm.py runs/sweep-pacs-small-* [--data-dir DIR] [--images 1000]

Every node takes the last weights of its run and is scored on the test images of its domain three times: with the
running means and variances that the run ended with; with such of the training images of all nodes, mixed; and with such
of its own training images. They are taken in one pass, without labels, and nothing else is changed. With
``model.bn=average`` a run ends with averages of what the nodes' statistics were while they trained.

Numbers are top-1 accuracy in percent, means over the nodes of a domain, then over runs; AVG is the mean over domains.
With ``--images`` at most so many test images of a domain are looked at, the same for all runs: chosen at random, once.
Methods that adapt to the test images, or train before they are scored, are left out. The last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clients.base import DomainClient
from datasets.base import ImageSet
from fedshift_app.comparing import runs as comparing
from fedshift_app.config import registry
from fedshift_app.node import setup
from fedshift_app.report import reading, views
from fedshift_wire.errors import FedShiftError
from fedshift_wire.names import DOMAINS

#: Whose images the statistics are of, and what the printed table calls them.
STATISTICS = {"run": "of the run", "all": "of all nodes' images", "own": "of the node's images"}
#: Accuracy by domain, by the statistics.
Scores = dict[str, dict[str, float]]


def take_statistics(client: DomainClient, images: ImageSet) -> int:
    """Set running mean and variance of each BatchNorm to those of some images, not augmented.

    They are the means over batches of ``images.eval_batch``. PyTorch's ``update_bn`` puts all of a model into training
    mode, in which F2DC draws noise.

    Returns:
        The number of BatchNorms.
    """
    client.model.eval()
    norms = [module for module in client.model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    with torch.no_grad():
        for x, _ in client.plain_batches(images):
            client.forward(x)
    client.model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum  # the clients of a process train one and the same model
    return len(norms)


def score(folder: Path, data_dir: Path | None, most: int | None = None) -> tuple[str, Scores]:
    """Return the method of a run and its accuracies, on at most so many test images of a domain.

    Raises:
        FedShiftError: If the run has no checkpoint or no BatchNorm, adapts or trains first, or its images are not here.
    """
    record = reading.read(folder)
    if record.checkpoint is None or record.deployed:
        raise FedShiftError("there is no checkpoint, or the images are on the nodes")
    method = str(record.config.method["name"])
    if not setup.scores_images_alone(record.config):
        raise FedShiftError("the method adapts to the test images")
    if record.config.adapt["name"] != registry.NONE:  # it takes statistics of its own
        raise FedShiftError("the method trains before it is scored")
    config, nodes = views.with_data(record.config, data_dir), record.checkpoint.nodes
    held = [views.client_of(record, config, node.domain, node).train_set for node in nodes]
    everything = ImageSet(np.concatenate([images.x for images in held]), np.concatenate([images.y for images in held]))
    mixed = everything.select(np.random.default_rng(config.seed).permutation(len(everything)))
    found: dict[str, dict[str, list[float]]] = {name: {} for name in STATISTICS}
    for node in nodes:
        client = views.client_of(record, config, node.domain, node)
        weights = setup.in_order(record.checkpoint.weights, client, "the checkpoint's")
        test = client.test_set(node.domain)
        test = test.select(np.sort(np.random.default_rng(0).permutation(len(test))[:most]))
        client.evaluate(weights, {DOMAINS: []})  # which loads them, and the node's private parts
        for name, images in {"run": None, "all": mixed, "own": client.train_set}.items():
            if images is not None and not take_statistics(client, images):
                raise FedShiftError(f"{config.model.name} has no BatchNorm")
            found[name].setdefault(node.domain, []).append(100 * client.score_test(test).correct / len(test))
    return method, {
        name: {domain: statistics.fmean(scores) for domain, scores in by_domain.items()}
        for name, by_domain in found.items()
    }


def main() -> None:
    """Score all runs and print a line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders that hold some")
    parser.add_argument("--data-dir", type=Path, help="where the images are now")
    parser.add_argument("--images", type=int, help="the most test images of a domain to look at (default: all)")
    given = parser.parse_args()
    if given.images is not None and given.images < 1:
        parser.error(f"--images {given.images}: at least 1")
    torch.set_num_threads(1)  # as a simulated node has
    by_method: dict[str, list[Scores]] = {}
    try:
        finished, _ = comparing.read(given.runs)
    except FedShiftError as error:
        parser.error(str(error))
    for run in finished:
        try:
            method, scores = score(run.place, given.data_dir, given.images)
        except FedShiftError as error:
            print(f"left out {run.name}: {error}", file=sys.stderr)
        else:
            by_method.setdefault(method, []).append(scores)
    if not by_method:
        raise SystemExit("error: no finished run with BatchNorm")
    order = list(registry.METHODS)
    means: dict[str, Scores] = {}
    for method, runs in sorted(by_method.items(), key=lambda item: order.index(item[0])):
        means[method] = {
            name: {domain: statistics.fmean(one[name][domain] for one in runs) for domain in runs[0][name]}
            for name in STATISTICS
        }
    domains = list(dict.fromkeys(domain for one in means.values() for domain in one["run"]))
    print("| method | statistics | runs |", " | ".join(domains), "| AVG |")
    print("| --- | --- |", " | ".join(["--:"] * (len(domains) + 2)), "|")
    for method, by_name in means.items():
        for name, by_domain in by_name.items():
            numbers = [f"{by_domain[d]:.1f}" if d in by_domain else "-" for d in domains]
            average = f"{statistics.fmean(by_domain.values()):.1f}"
            print("|", " | ".join([method, STATISTICS[name], str(len(by_method[method])), *numbers, average]), "|")
    print(json.dumps({"name": "batchnorm", "accuracy": means}))


if __name__ == "__main__":
    main()

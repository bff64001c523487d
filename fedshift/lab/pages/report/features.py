"""Features of one node's model and of earlier rounds, for figures of the papers.

The node's model has trained one more local round. Only simulated runs have these features: in a deployment the nodes
are other machines.
"""

import shlex
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedshift.lab.pages.report import predictions
from fedshift.lab.pages.report.analysis import Floats, Ints
from fedshift.run.reading import Record
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run import checkpoints
from fedshift_app.run.checkpoints import Damaged
from fedshift_clients.base import DomainClient
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.seeding import generator
from fedshift_strategies.federation.roster import Node

NODE_IMAGES = 600  # test images of all domains together for one node's model
ROUND_IMAGES = 120  # test images of each domain for the model of each kept round
LONGEST = 60.0  # seconds of a local round; a longer round runs only for a node that the user names


class NotOfThisRun(FedShiftError):  # noqa: N818 (a property of the run, not a malfunction)
    """A run like this has no such figure, because of its method, nodes or number of rounds."""


@dataclass(frozen=True)
class Seen:
    """The features of a sample of test images.

    Attributes:
        features: (N, D).
        y: Classes, (N,).
        domain_of: Index of the domain of each, (N,).
    """

    features: Floats
    y: Ints
    domain_of: Ints


def chosen_node(record: Record, requested: int | None) -> Node | None:
    """Return the requested node, by default the first node of the first domain with nodes.

    Before the first full round the nodes are unknown, and the result is None.

    Raises:
        ConfigError: If the run has no node with this index.
    """
    nodes = record.nodes
    if not nodes:
        return None
    if requested is None:
        return min(nodes, key=lambda node: (record.config.dataset.domains.index(node.domain), node.index))
    matching = [node for node in nodes if node.index == requested]
    if not matching:
        raise ConfigError(f"node: the run has the nodes {nodes[0].index} to {nodes[-1].index}, found {requested}")
    return matching[0]


def with_last_weights(record: Record, config: RunConfig, node: Node) -> DomainClient:
    """Return a node's client with the model that it would score: last weights and private parts.

    Raises:
        NotOfThisRun: If the nodes of the run are other machines.
    """
    _check_simulated(record)
    client = predictions.client_of(record, config, node.domain, node)
    _load(client, record)
    return client


def after_local_training(record: Record, config: RunConfig, node: Node, *, named: bool) -> DomainClient:
    """Return a node's client that has trained one more local round from the last weights.

    Raises:
        NotOfThisRun: If the run does not allow it, or it takes too long and the user has not ``named`` the node.
    """
    _check_simulated(record)
    if not record.config.rounds:
        raise NotOfThisRun("it needs a round of local training, and the run has rounds=0")
    if not named and (seconds := _local_seconds(record)) > LONGEST:
        raise NotOfThisRun(
            f"a local round takes up to {seconds:.0f} s, which a report takes only for a node that is named",
            remedy=f"with it: fedshift report {shlex.quote(str(record.folder))} node={node.index}",
        )
    client = predictions.client_of(record, config, node.domain, node, trains=True)
    _load(client, record)
    client.train_ahead()
    return client


def at_kept_rounds(record: Record, config: RunConfig, node: Node) -> dict[int, Seen]:
    """Return the features of the same test images at each round with a kept checkpoint.

    Raises:
        NotOfThisRun: If the run has no such global model, or fewer than two readable checkpoints.
    """
    _check_simulated(record)
    if setup.is_personal(config, setup.initial_model(config)):
        raise NotOfThisRun("the nodes' own parts of earlier rounds are not kept, and without them there is no model")
    folder = record.folder / checkpoints.FOLDER
    by_round: dict[int, Seen] = {}
    for server_round in reversed(checkpoints.rounds(folder)):
        try:
            then = replace(record, checkpoint=checkpoints.load(folder, server_round))
        except Damaged:
            continue  # the report names a damaged last checkpoint; an earlier one is left out
        client = predictions.client_of(then, config, node.domain, node)
        _load(client, then)
        by_round[server_round] = look(client, config, ROUND_IMAGES)
    if len(by_round) < 2:
        raise NotOfThisRun("it needs the checkpoints of two rounds")
    return by_round


def look(client: DomainClient, config: RunConfig, most: int) -> Seen:
    """Return the features of up to ``most`` test images of each domain, the same for all models."""
    client.model.eval()
    features, y, where = [], [], []
    for place, domain in enumerate(config.dataset.domains):
        test = client.test_set(domain)
        order = generator(config.seed, f"report-closer-{domain}").permutation(len(test))[:most]
        images = test.select(order)
        with torch.inference_mode():
            features += [client.forward(x)[0].cpu().numpy() for x, _ in client.plain_batches(images)]
        y.append(images.y)
        where.append(np.full(len(images), place))
    return Seen(np.concatenate(features).astype(np.float64), np.concatenate(y), np.concatenate(where))


def _check_simulated(record: Record) -> None:
    if record.deployed:
        raise NotOfThisRun("the nodes of the run are other machines")


def _local_seconds(record: Record) -> float:
    """Return the largest duration of a local round, estimated from the last round.

    Inline, nodes train one after the other; in a simulation, in parallel.
    """
    last = record.lines[-1]
    return float(last["seconds"]) / (len(last["nodes"]) if record.engine == "inline" else 1)


def _load(client: DomainClient, record: Record) -> None:
    """Load the weights of the record's checkpoint and the private parts into the client's model (``setup.load``)."""
    assert record.checkpoint is not None
    setup.load(record.checkpoint.weights, client, "the checkpoint's", record.checkpoint.server_round)

"""Predictions and features of the last weights, from the client code that scores a run.

A method may adapt before it scores (FedICON, FedAvg-FT), predict by prototypes (FedProto), or carry modules (F2DC):
so predictions and features are recorded during the client's own scoring.
"""

import shlex
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.run.html.confusion import Ints
from fedshift.run.reading import Record
from fedshift_app.config.sections import RunConfig
from fedshift_app.features.class_balance import node as class_balance
from fedshift_app.features.class_balance.server import totals
from fedshift_app.features.statistics.server import SiteStatistics
from fedshift_app.node import loading, setup, state_store
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.node.data import Place
from fedshift_app.node.state_store import StateStore
from fedshift_app.run import build as run_build
from fedshift_app.run import checkpoints, initial_model
from fedshift_clients.base import DomainClient, RoundInputs
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import DataError, FedShiftError
from fedshift_core.plural import plural
from fedshift_core.wire.names import DOMAINS, DRAWN, SERVER_ROUND
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io.layout import check_data_dir
from fedshift_datasets.listing import joined
from fedshift_strategies.federation.context import Ask
from fedshift_strategies.federation.roster import Node


@dataclass(frozen=True)
class View:
    """The predictions and features of a model on a domain's test images.

    Attributes:
        domain: The domain.
        node: The node whose client scored them.
        anew: Whether the node has no private parts of this run, so that initial ones were used.
        total: The number of test images of the domain.
        y: True classes of the scored images, (N,).
        predicted: Predicted classes, (N,); of pixels (N, H, W).
        features: (N, D); none of pixels, (N, 0).
        images: The scored images.
    """

    domain: str
    node: Node
    anew: bool
    total: int
    y: Ints
    predicted: Ints
    features: NDArray[np.float64]
    images: ImageSet

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy in percent on the images that were scored."""
        return 100 * int((self.y == self.predicted).sum()) / len(self.y)


@dataclass(frozen=True)
class Sight:
    """The predictions on the test images, as far as they could be scored.

    Attributes:
        views: By domain.
        missing: Reasons why domains are missing, by domain.
        nothing: Reason why no domain could be scored; empty otherwise.
        personal: Whether each domain was scored with the private parts of one of its nodes.
        alone: Whether the prediction of an image is independent of other images.
    """

    views: dict[str, View] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    nothing: str = ""
    personal: bool = False
    alone: bool = True

    def missing_text(self, without: Container[str] = ()) -> str:
        """Return a sentence for each missing domain, but for those that are shown another way."""
        return " ".join(f"{name} is not shown: {why}." for name, why in self.missing.items() if name not in without)


def look(record: Record, data_dir: Path | None, limit: int | None) -> Sight:
    """Score the test images with the weights of the last checkpoint.

    Args:
        record: The run.
        data_dir: The folder of the images; None for that of the configuration.
        limit: Largest number of images of a domain, drawn with the run's seed; None for all.

    Raises:
        DataError: If ``data_dir`` is given, but is no folder or holds none of the test images.
    """
    if record.lacking:
        return Sight(nothing=f"the model's code is not here: {record.lacking}")
    config = record.config
    personal = setup.is_personal(config, setup.initial_model(config))
    if data_dir is not None:
        if not (record.deployed and personal):  # else no folder would help
            check_data_dir(data_dir)
        config = config.with_values("dataset", data_dir=str(data_dir))
    if record.checkpoint is None:
        return Sight(nothing="there is no checkpoint that can be read")
    command = f"fedshift report {shlex.quote(str(record.folder))} data-dir=DIR"
    if record.deployed and personal:
        return Sight(nothing="the test images and the private parts of the models are on the nodes", personal=True)
    if record.deployed and data_dir is None:
        return Sight(nothing=f"the test images are on the nodes. Where you have them in a folder: {command}")
    views: dict[str, View] = {}
    missing: dict[str, str] = {}
    elsewhere = True  # another folder would help
    threads = torch.get_num_threads()
    try:
        for domain in config.dataset.domains:
            try:
                views[domain] = _view(record, config, domain, limit)
            except FedShiftError as error:
                missing[domain] = str(error).replace("\n", "; ")
                elsewhere &= isinstance(error, DataError)
    finally:
        torch.set_num_threads(threads)
    if views:
        return Sight(views, missing, "", personal, setup.scores_images_alone(config))
    reasons = "; ".join(dict.fromkeys(missing.values()))
    if data_dir is not None and elsewhere:
        raise DataError(f"data-dir {data_dir}: the test images cannot be scored there: {reasons}")
    advice = f". Where they are in another folder: {command}" if elsewhere else ""
    return Sight(nothing=f"the test images cannot be scored here: {reasons}{advice}", personal=personal)


def _view(record: Record, config: RunConfig, domain: str, limit: int | None) -> View:
    """Return a view, of the whole network where what it computes once cannot be kept here."""
    try:
        return _scored(record, config, domain, limit)
    except DataError:
        if not config.model.precompute:
            raise
        return _scored(record, config.with_values("model", precompute=False), domain, limit)


def _scored(record: Record, config: RunConfig, domain: str, limit: int | None) -> View:
    assert record.checkpoint is not None
    chosen = _who(record, domain)
    client = client_of(record, config, domain, chosen)
    total = len(client.test_set(domain))
    if total == 0:
        raise FedShiftError(f"{domain} has no test images")
    drawn = total if limit is None else min(limit, total)
    with _watched(client) as seen:
        request = {SERVER_ROUND: record.checkpoint.server_round, DOMAINS: [domain], DRAWN: [drawn]}
        client.evaluate(loading.in_order(record.checkpoint.weights, client, "the checkpoint's"), request)
    # Scores before an adaptation come first.
    images = seen.images[0] if len(seen.images) == 1 else joined(seen.images)
    images = images.select(slice(len(images) - drawn, None))
    y, predicted = images.y, np.concatenate(seen.predicted)[-drawn:]
    features = np.concatenate(seen.features)[-drawn:].astype(np.float64)
    anew = bool(record.checkpoint.memory) and not client.memory
    return View(domain, chosen, anew, total, y, predicted, features, images)


def _who(record: Record, domain: str) -> Node:
    """Return the first node of a domain that has private parts, or its first node; of a held-out domain, of all nodes.

    Raises:
        FedShiftError: If no node of the domain has trained the private parts of its model, unless such models count.
    """
    assert record.checkpoint is not None
    trained, config = record.checkpoint.memory, record.config
    held = [n for n in record.checkpoint.nodes if n.domain == domain] or record.checkpoint.nodes
    chosen = next((n for n in held if n.index in trained), held[0])
    counts = chosen.index in trained or config.evaluate.untrained == "count"
    if not counts and setup.has_own_parts(config, setup.initial_model(config)):
        raise FedShiftError(f"no node of {domain} has trained yet, and parts of its model are its own")
    return chosen


def client_of(record: Record, config: RunConfig, domain: str, chosen: Node, *, trains: bool = False) -> DomainClient:
    """Return a node's client restored from the last checkpoint, with private parts and knowledge.

    Args:
        record: The run, which has a checkpoint.
        config: Its configuration, with the folder of the images on this machine.
        domain: In a deployment, the domain whose images the client reads, as the node's own images are elsewhere.
        chosen: The node.
        trains: Whether the client is prepared for the next local round; otherwise for scoring.

    Raises:
        FedShiftError: If the images cannot be read on this machine.
    """
    assert record.checkpoint is not None
    threads = config.train.threads or 1  # as for a simulated node, so that the numbers equal those of the run
    if record.deployed:  # each domain's images are in the layout of a node's own folder
        where = Place(domain, chosen.partition_id, -1, config.dataset.source(), False, threads)
    else:
        number = int(record.config_file["nodes"])
        where = Place(chosen.domain, chosen.partition_id, number, config.dataset.source(), True, threads)
    client = setup.make_client(config, where, chosen.index)
    folder = record.folder / checkpoints.FOLDER
    if start := node_payload.of_run(folder):
        node_payload.check(start, client)
        client.begin(start, digest(start))
    _, federation = run_build.prepare(config, record.engine, initial_model.plain(config), start)
    strategy = run_build.strategy_of(config, federation, lambda *_: None)
    run_build.restore(strategy, record.checkpoint)
    ask = Ask(record.checkpoint.server_round + trains, trains)
    memory: Arrays = {}
    if not record.deployed:
        base = record.folder / checkpoints.FOLDER / checkpoints.NODES_FOLDER
        # The state as a resumed run would find it: the state of an unfinished round does not count.
        resumed_after = (*record.resumed_after, record.checkpoint.server_round)
        _, memory = StateStore(state_store.simulated(base, chosen.partition_id), resumed_after).recall()
    knowledge, scalars = dict(strategy.knowledge_for(chosen, ask)), dict(strategy.tell(chosen, ask))
    client.prepare(RoundInputs(knowledge, scalars, memory))
    if config.train.asks_federation:
        class_balance.weigh(client, totals(record.nodes, config.federation.max_images))
    if config.statistics.share == "nodes" and (statistics := strategy.features.of(SiteStatistics)) is not None:
        client.federation_images = statistics.of_all
    return client


class _Seen(NamedTuple):
    """The records of a client's scorings in order."""

    images: list[ImageSet]
    predicted: list[Ints]
    features: list[NDArray[np.float32]]


@contextmanager
def _watched(client: DomainClient) -> Iterator[_Seen]:
    """Record prediction and features of each image that ``client`` scores by its own rule, not by one it is given."""
    seen = _Seen([], [], [])
    latest: list[Tensor] = []
    forward, score = client.forward, client.score

    def watching_forward(x: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = forward(x)
        latest.append(features)
        return features, logits

    def watching_predict(x: Tensor) -> Tensor:
        latest.clear()
        logits = client.classify(x)
        if not latest:  # an adaptation had predicted before: take the features of the current model
            watching_forward(x)
        if len(latest) != 1:
            raise RuntimeError(
                f"{type(client).__name__}.predict must call forward once, found {plural(len(latest), 'call')}"
            )
        seen.predicted.append(logits.argmax(dim=1).cpu().numpy())
        features = latest[0].detach().cpu().numpy()
        seen.features.append(features if logits.ndim == 2 else features[:, :0])
        return logits

    def watching_score(images: ImageSet, predict: Callable[[Tensor], Tensor] | None = None) -> tuple[float, float]:
        if predict is None:
            seen.images.append(images)
        return score(images, predict or watching_predict)

    own = vars(client)  # hides the methods of the class for this object only
    own |= {"forward": watching_forward, "score": watching_score}
    try:
        yield seen
    finally:
        del own["forward"], own["score"]

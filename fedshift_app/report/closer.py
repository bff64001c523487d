"""A closer look at a run, for figures of the papers.

One node's model on all domains, the model at earlier rounds, and what F2DC's modules make of a map; of simulated runs
only: elsewhere the nodes are other machines.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from clients.base import DomainClient
from clients.models.stages import feature_stages
from clients.modules.f2dc import F2DCModel, Insertion
from datasets.base import ImageSet
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.report import views
from fedshift_app.report.analysis import Floats, Ints
from fedshift_app.report.reading import Record
from fedshift_app.run import checkpoints
from fedshift_app.run.checkpoints import Damaged
from fedshift_wire.errors import ConfigError, FedShiftError
from fedshift_wire.seeding import generator
from strategies.federation.roster import Node

NODE_IMAGES = 600  # of all domains together, that one node's model looks at
ROUND_IMAGES = 120  # of each domain, that the model of each kept round looks at
LONGEST = 60.0  # seconds of a local round; what takes longer is done only for a node that is named
MAPS = ("f~", "f+", "f-", "f*")


class NotOfThisRun(FedShiftError):  # noqa: N818 (a property of the run, not a malfunction)
    """A figure is none of a run like this: its method, its nodes or its length do not have it."""


@dataclass(frozen=True)
class Seen:
    """What an encoder makes of a sample of test images.

    Attributes:
        features: (N, D).
        y: Classes, (N,).
        domain_of: Index of the domain of each, (N,).
    """

    features: Floats
    y: Ints
    domain_of: Ints


@dataclass(frozen=True)
class Decoupled:
    """Grad-CAM of the maps of F2DC's last insertion for one image.

    Attributes:
        domain: The image's.
        image: (H, W, 3), uint8.
        predicted: The class by the fused map.
        heats: Of f~, f+, f- and f*, (H, W) each, 0 to 1.
        peaks: Their highest values, as shares of that of f~.
    """

    domain: str
    image: NDArray[np.uint8]
    predicted: int
    heats: tuple[Floats, ...]
    peaks: tuple[float, ...]


def chosen_node(record: Record, asked: int | None) -> Node | None:
    """Return the node that was asked for, by default the first of the first domain that any holds.

    None before the first full round: it is not known which nodes there are.

    Raises:
        ConfigError: If there is none with this index.
    """
    nodes = record.nodes
    if not nodes:
        return None
    if asked is None:
        return min(nodes, key=lambda node: (record.config.dataset.domains.index(node.domain), node.index))
    found = [node for node in nodes if node.index == asked]
    if not found:
        raise ConfigError(f"node: the run has the nodes {nodes[0].index} to {nodes[-1].index}, found {asked}")
    return found[0]


def after_local_training(record: Record, config: RunConfig, node: Node, *, named: bool) -> Seen:
    """Let a node train one more local round from the last weights, and look at test images of all domains.

    Raises:
        NotOfThisRun: If the run does not allow it, or it would take too long for a node that nobody ``named``.
    """
    _check_simulated(record)
    if not named and (seconds := _local_seconds(record)) > LONGEST:
        raise NotOfThisRun(
            f"a local round takes up to {seconds:.0f} s; fedshift report {record.folder} node={node.index} takes them"
        )
    client = views.client_of(record, config, node.domain, node, trains=True)
    _load(client, record)
    client.train_ahead()
    return _seen(client, config, NODE_IMAGES // len(config.dataset.domains))


def at_kept_rounds(record: Record, config: RunConfig, node: Node) -> dict[int, Seen]:
    """Look at the same test images with the global model of each round whose checkpoint is kept, first to last.

    Raises:
        NotOfThisRun: If the run has no such model, or fewer than two of its checkpoints can be read.
    """
    _check_simulated(record)
    if setup.is_personal(config, setup.initial_model(config)):
        raise NotOfThisRun("the nodes' own parts of earlier rounds are not kept, and without them there is no model")
    folder = record.folder / checkpoints.FOLDER
    found: dict[int, Seen] = {}
    for server_round in reversed(checkpoints.rounds(folder)):
        try:
            then = replace(record, checkpoint=checkpoints.load(folder, server_round))
        except Damaged:
            continue  # the report says so of the last one; an earlier one is a round less to show
        client = views.client_of(then, config, node.domain, node)
        _load(client, then)
        found[server_round] = _seen(client, config, ROUND_IMAGES)
    if len(found) < 2:
        raise NotOfThisRun("it needs the checkpoints of two rounds")
    return found


def decoupled(record: Record, config: RunConfig, node: Node) -> tuple[int, list[Decoupled]]:
    """Return a class that all domains have, and of each domain an image of it under the maps of F2DC.

    The weights of Grad-CAM are the gradients of the class's logit by the fused map f~ = f+ + f*, averaged over the
    map, for all four: so f+ and f* add up to f~ wherever none of them is negative.

    Raises:
        NotOfThisRun: If the model has no modules of F2DC, or no class is in all domains.
    """
    _check_simulated(record)
    client = views.client_of(record, config, node.domain, node)
    if not isinstance(client.model, F2DCModel):
        raise NotOfThisRun("the model has no modules of F2DC")
    _load(client, record)
    tests = {domain: client.test_set(domain) for domain in config.dataset.domains}
    common = sorted(set.intersection(*(set(test.y.tolist()) for test in tests.values())))
    if not common:
        raise NotOfThisRun("no class has test images in all domains")
    shown = int(generator(config.seed, "report-decoupled-class").choice(common))
    images = []
    for domain, test in tests.items():
        of_class = np.flatnonzero(test.y == shown)
        images.append(test.select(generator(config.seed, f"report-decoupled-{domain}").permutation(of_class)[:1]))
    return shown, [_maps_of(client, domain, image) for domain, image in zip(tests, images, strict=True)]


def _maps_of(client: DomainClient, domain: str, image: ImageSet) -> Decoupled:
    model = client.model
    assert isinstance(model, F2DCModel)
    stages = feature_stages(model.encoder)
    assert stages is not None  # else the modules could not sit in it
    inserted = [int(name.removeprefix("stage")) for name in model.decoupling]
    model.eval()
    ((h, _),) = client.plain_batches(image)
    h = h.clone()  # the buffer of all batches, in which inference leaves no room for gradients
    with torch.enable_grad():
        for n, stage in enumerate(stages.maps, start=1):
            h = stage(h)
            if n in inserted:
                insertion = model.decoupling[f"stage{n}"]
                assert isinstance(insertion, Insertion)
                maps = insertion(h, None)
                h = maps.fused
                if n == inserted[-1]:
                    fused = h = h.detach().requires_grad_()
        logits = model.classifier(stages.rest(h))
        (gradient,) = torch.autograd.grad(logits[0, int(image.y[0])], fused)
    weights = gradient.mean(dim=(2, 3), keepdim=True)  # 1 x C x 1 x 1
    cams = [(weights * f.detach()).sum(dim=1, keepdim=True).relu() for f in (fused, maps.plus, maps.minus, maps.star)]
    peaks = [float(cam.max()) for cam in cams]
    size = image.x.shape[1:3]
    shares = tuple(peak / peaks[0] if peaks[0] > 0 else 0.0 for peak in peaks)
    return Decoupled(domain, image.x[0], int(logits.argmax()), tuple(_scaled(cam, size) for cam in cams), shares)


def _scaled(cam: Tensor, size: tuple[int, ...]) -> Floats:
    heat = F.interpolate(cam.float(), size=size, mode="bilinear", align_corners=False)[0, 0]
    scaled: Floats = (heat / heat.max().clamp(min=1e-12)).double().cpu().numpy()
    return scaled


def _check_simulated(record: Record) -> None:
    if record.deployed:
        raise NotOfThisRun("the nodes of the run are other machines")


def _local_seconds(record: Record) -> float:
    """Return how long a local round takes at most, by the last round: in turn inline, side by side in a simulation."""
    last = record.lines[-1]
    return float(last["seconds"]) / (len(last["nodes"]) if record.engine == "inline" else 1)


def _load(client: DomainClient, record: Record) -> None:
    """Put the weights of the record's checkpoint into the client's model, its private parts beside them."""
    assert record.checkpoint is not None
    setup.load(record.checkpoint.weights, client, "the checkpoint's", record.checkpoint.server_round)


def _seen(client: DomainClient, config: RunConfig, most: int) -> Seen:
    """Look at the same test images of each domain, at most so many, whatever the model."""
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

"""Grad-CAM of a model on test images that seed and domain alone choose: the same in the report of every method.

Of a model with F2DC's modules it is that of the maps of its last insertion.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.base import DomainClient
from clients.models.stages import feature_stages
from clients.modules.f2dc import F2DCModel, Insertion
from datasets.base import ImageSet
from fedshift.report import grad_cam
from fedshift.report.analysis import Floats
from fedshift.report.features import NotOfThisRun
from fedshift_app.config.sections import RunConfig
from fedshift_core.seeding import generator

CLASSES = 3  # of which an image of each domain is shown
MAPS = ("f~", "f+", "f-", "f*")


@dataclass(frozen=True)
class Attended:
    """One test image, and what speaks for its class.

    Attributes:
        domain: The image's.
        place: Where it stands in the domain's test set, from 0.
        true: Its class.
        predicted: What the model takes it for, before any adaptation.
        image: (H, W, 3), uint8.
        heats: Grad-CAM of its class, (H, W) each, 0 to 1: of f~, f+, f- and f* of F2DC's modules, else one.
        peaks: Of F2DC's maps the highest values, as shares of that of f~, NaN where that is 0; else none.
    """

    domain: str
    place: int
    true: int
    predicted: int
    image: NDArray[np.uint8]
    heats: tuple[Floats, ...]
    peaks: tuple[float, ...] = ()


def attended(client: DomainClient, config: RunConfig) -> list[Attended]:
    """Return the images of each class, domain by domain, as a client's model sees them.

    Raises:
        NotOfThisRun: If the network has no convolution, or no class is in all domains.
    """
    if grad_cam.layer_of(client.model) is None:
        raise NotOfThisRun("the network has no convolution to look at")
    tests = {domain: client.test_set(domain) for domain in config.dataset.domains}
    return [_looked_at(client, domain, place, tests[domain]) for domain, place in chosen(config.seed, tests)]


def chosen(seed: int, tests: Mapping[str, ImageSet]) -> list[tuple[str, int]]:
    """Return the domain and the place in its test set of each image, class by class.

    They are the first of each class in the order of the test set; the classes, of those that all domains have, are
    drawn by the seed.

    Raises:
        NotOfThisRun: If no class is in all domains.
    """
    common = sorted(set.intersection(*(set(test.y.tolist()) for test in tests.values())))
    if not common:
        raise NotOfThisRun("no class has test images in all domains")
    drawn = sorted(generator(seed, "report-same-classes").permutation(common)[:CLASSES].tolist())
    return [(domain, int(np.argmax(test.y == shown))) for shown in drawn for domain, test in tests.items()]


def _looked_at(client: DomainClient, domain: str, place: int, test: ImageSet) -> Attended:
    image = test.select(np.array([place]))
    client.model.eval()  # each image has the first noise that a scoring draws, where it draws any
    with torch.inference_mode():
        predicted = [int(client.predict(x).argmax()) for x, _ in client.plain_batches(image)]
    if isinstance(client.model, F2DCModel):
        heats, peaks = _of_maps(client, client.model, image)
    else:
        heats, peaks = tuple(grad_cam.heat_maps(client, image, image.y)), ()
    return Attended(domain, place, int(image.y[0]), predicted[0], image.x[0], heats, peaks)


def _of_maps(client: DomainClient, model: F2DCModel, image: ImageSet) -> tuple[tuple[Floats, ...], tuple[float, ...]]:
    """Return Grad-CAM of f~, f+, f- and f*, and their highest values as shares of that of f~.

    The weights of Grad-CAM are the gradients of the class's logit by the fused map f~ = f+ + f*, averaged over the
    map, for all four: so f+ and f* add up to f~ wherever none of them is negative. The mask has noise where the run
    scores with it (``eval_noise``).
    """
    stages = feature_stages(model.encoder)
    assert stages is not None  # else the modules could not sit in it
    inserted = [int(name.removeprefix("stage")) for name in model.decoupling]
    model.eval()
    rng = model.noise()
    ((h, _),) = client.plain_batches(image)
    h = h.clone()  # the buffer of all batches, in which inference leaves no room for gradients
    with torch.enable_grad():
        for n, stage in enumerate(stages.maps, start=1):
            h = stage(h)
            if n in inserted:
                insertion = model.decoupling[f"stage{n}"]
                assert isinstance(insertion, Insertion)
                maps = insertion(h, rng)
                h = maps.fused
                if n == inserted[-1]:
                    fused = h = h.detach().requires_grad_()
        logits = model.classifier(stages.rest(h))
        (gradient,) = torch.autograd.grad(logits[0, int(image.y[0])], fused)
    weights = gradient.mean(dim=(2, 3), keepdim=True)  # 1 x C x 1 x 1
    heats: list[Tensor] = [
        (weights * f.detach()).sum(dim=1, keepdim=True).relu() for f in (fused, maps.plus, maps.minus, maps.star)
    ]
    peaks = [float(cam.max()) for cam in heats]
    shares = tuple(peak / peaks[0] if peaks[0] > 0 else math.nan for peak in peaks)
    return tuple(grad_cam.scaled(torch.cat(heats), image.x.shape[1:3])), shares

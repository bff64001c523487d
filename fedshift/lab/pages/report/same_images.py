"""Grad-CAM on test images that only seed and domain choose, so that reports can be compared.

A model with F2DC's modules has Grad-CAM of the maps of its last insertion.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift.lab.pages.report import grad_cam
from fedshift.lab.pages.report.analysis import Floats
from fedshift.lab.pages.report.features import NotOfThisRun
from fedshift_app.config.sections import RunConfig
from fedshift_clients.base import DomainClient
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.modules.f2dc import F2DCModel, Insertion
from fedshift_core.seeding import generator
from fedshift_datasets.base import ImageSet

CLASSES = 3  # number of classes shown with an image of each domain
MAPS = ("f~", "f+", "f-", "f*")


@dataclass(frozen=True)
class Attended:
    """One test image with the Grad-CAM of its class.

    Attributes:
        domain: The image's domain.
        place: Its index in the domain's test set, from 0.
        true: Its class.
        predicted: The class that the model predicts before any adaptation.
        image: (H, W, 3), uint8.
        heats: Grad-CAM of its class, (H, W) each, 0 to 1: of f~, f+, f- and f* of F2DC's modules, otherwise one.
        peaks: The highest values of F2DC's maps as shares of that of f~, NaN if that is 0; otherwise none.
    """

    domain: str
    place: int
    true: int
    predicted: int
    image: NDArray[np.uint8]
    heats: tuple[Floats, ...]
    peaks: tuple[float, ...] = ()


def attended(client: DomainClient, config: RunConfig) -> list[Attended]:
    """Return an image of each class and domain with the Grad-CAM of a client's model.

    Raises:
        NotOfThisRun: If the network has no convolution, or no class is in all domains.
    """
    if grad_cam.layer_of(client.model) is None:
        raise NotOfThisRun("the network has no convolution to look at")
    tests = {domain: client.test_set(domain) for domain in config.dataset.domains}
    with client.on_images():
        return [_looked_at(client, domain, place, tests[domain]) for domain, place in chosen(config.seed, tests)]


def chosen(seed: int, tests: Mapping[str, ImageSet]) -> list[tuple[str, int]]:
    """Return the domain and the index in its test set of each image, class by class.

    The images are the first of each class in the test set. The seed draws the classes from those that all domains have.

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
    client.model.eval()  # each image gets the first noise that a scoring draws, if any
    with torch.inference_mode():
        predicted = [int(client.predict(x).argmax()) for x, _ in client.plain_batches(image)]
    if isinstance(client.model, F2DCModel):
        heats, peaks = _of_maps(client, client.model, image)
    else:
        heats, peaks = tuple(grad_cam.heat_maps(client, image, image.y)), ()
    return Attended(domain, place, int(image.y[0]), predicted[0], image.x[0], heats, peaks)


def _of_maps(client: DomainClient, model: F2DCModel, image: ImageSet) -> tuple[tuple[Floats, ...], tuple[float, ...]]:
    """Return Grad-CAM of f~, f+, f- and f*, and their highest values relative to f~.

    The weights of Grad-CAM are the gradients of the class's logit by the fused map f~ = f+ + f*, averaged over the
    map, for all four: so f+ and f* add up to f~ wherever none of them is negative. The mask has noise where the run
    scores with it (``eval_noise``).
    """
    stages = feature_stages(model.encoder)
    assert stages is not None  # otherwise the modules could not be inserted
    inserted = [int(name.removeprefix("stage")) for name in model.decoupling]
    model.eval()
    rng = model.noise()
    ((h, _),) = client.plain_batches(image)
    h = h.clone()  # a copy: the shared buffer may be an inference tensor, without gradients
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

"""Grad-CAM by captum, on the last convolutional map of the papers' networks.

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift.lab.pages.report.analysis import Floats
from fedshift.run.html import pictures
from fedshift_clients.base import DomainClient
from fedshift_clients.methods.fdse import Erased
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.resnet import ResNetEncoder
from fedshift_datasets.base import ImageSet

GAP = 4
HEAT = np.array((220.0, 50.0, 32.0))  # colour of the highest values; the lowest values are darkened
LEAST_LIGHT = 0.35


def layer_of(model: SplitModel) -> nn.Module | None:
    """Return the last stage of a residual network, or the last convolution of another network.

    A layer that replaces a convolution counts as one. A layer that replaces a linear layer does not, because its map
    has no positions. The result is None for a network without convolution.
    """
    encoder = model.encoder
    if isinstance(encoder, ResNetEncoder):
        return encoder.stages[-1]
    last: nn.Module | None = None
    inside: set[nn.Module] = set()
    for layer in encoder.modules():
        if layer not in inside and isinstance(layer, nn.Conv2d | Erased):
            inside |= set(layer.modules())
            last = last if isinstance(layer, Erased) and layer.is_flat else layer
    return last


def layer_name(model: SplitModel) -> str:
    """Return the name of the layer of :func:`layer_of`; empty if it finds none."""
    if isinstance(model.encoder, ResNetEncoder):
        return "last stage"
    return "" if layer_of(model) is None else "last convolution"


def heat_maps(client: DomainClient, images: ImageSet, classes: NDArray[np.int64]) -> list[Floats]:
    """Return Grad-CAM of a class of each image, each (H, W) and scaled to 0 to 1.

    The list is empty for a network without convolution.
    """
    from captum.attr import LayerGradCam  # type: ignore[import-untyped]

    layer = layer_of(client.model)
    if layer is None or len(images) == 0:
        return []
    client.model.eval()
    # Use the method's own prediction: an adaptation may return a prediction that it stored earlier.
    cam = LayerGradCam(client.predict, layer)
    heats: list[Tensor] = []
    start = 0
    for batch, _ in client.plain_batches(images):
        x = batch.clone().requires_grad_()  # so that gradients flow even if a method has frozen the weights
        target = torch.from_numpy(classes[start : start + len(x)]).to(x.device)
        with torch.enable_grad():
            maps = cam.attribute(x, target=target, relu_attributions=True)  # N x 1 x h x w
        heats.append(maps.detach().float())
        start += len(x)
    return list(scaled(torch.cat(heats), images.x.shape[1:3]))


def scaled(maps: Tensor, size: tuple[int, ...]) -> Floats:
    """Return maps (N, 1, h, w) as shares of their highest value in image size, (N, H, W)."""
    heat = F.interpolate(maps.float(), size=size, mode="bilinear", align_corners=False)[:, 0]
    peak = heat.amax(dim=(1, 2), keepdim=True)
    shares: Floats = (heat / peak.clamp(min=1e-12)).double().cpu().numpy()
    return shares


def pair(image: NDArray[np.uint8], heat: Floats) -> str:
    """Return a PNG as a ``data:`` URI: an image (H, W, 3) and the image under its heat (H, W)."""
    both = [pictures.scaled(image), pictures.scaled(under(image, heat))]
    width, height = both[0].size
    sheet = Image.new("RGBA", (2 * width + GAP, height), (0, 0, 0, 0))
    for i, part in enumerate(both):
        sheet.paste(part, (i * (width + GAP), 0))
    return pictures.uri(sheet)


def under(image: NDArray[np.uint8], heat: Floats) -> NDArray[np.uint8]:
    """Return an image (H, W, 3) under its heat (H, W), 0 to 1."""
    light = LEAST_LIGHT + (1 - LEAST_LIGHT) * heat[..., None]
    strength = 0.55 * heat[..., None]
    mixed = (1 - strength) * light * image + strength * HEAT
    pixels: NDArray[np.uint8] = np.clip(mixed.round(), 0, 255).astype(np.uint8)
    return pixels

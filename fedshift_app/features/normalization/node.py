r"""Images normalised by statistics of the nodes, ``images.normalization`` [Yan et al., 2025, FedRDN].

Paper: "A Simple Data Augmentation for Feature Distribution Skewed Federated Learning", Yunlu Yan, Huazhu Fu, Yuexiang
Li, Jinheng Xie, Jun Ma, Guang Yang, Lei Zhu, CVPR 2025, https://arxiv.org/abs/2306.09363.

Symbols: x_i image of node k, mu^k its channel means, sigma^k the mean over its images of their channel standard
deviations, K nodes.

    training:  (x_i - mu^j) / sigma^j,  j drawn from the K nodes (``image``), or
               (x_i - mu^j) / sigma^l,  j and l drawn for each batch (``batch``)
    testing:   (x_i - mu^k) / sigma^k

``harmonised`` is not of the paper: the transfer of means and deviations of Reinhard et al., "Color Transfer between
Images", IEEE CG&A 2001, from each node to the federation, on red, green and blue. With v^k the variance of all pixels
of node k, mu the mean of mu^k and v the mean of v^k over the K nodes:

    always:    (x_i - mu^k) sqrt(v / v^k) + mu,  then normalised by the configuration's mean and std

Deviations: (1) a node is drawn for each image, with its mean and its deviation together, as the paper writes it; the
released code draws the two apart, once for a batch, which ``images.normalization_draw=batch`` does; (2) test images of
a domain are normalised by the means of mu and of sigma over its nodes that tell them, those of a domain of which no
node does by the means over all nodes; with one node a domain, as in the paper, these are the node's own; (3) mu and
sigma are those of images as they are decoded, in the released code of augmented ones; (4) a sigma below one step of a
byte, 1/255, counts as that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.features import Call, Next, NodeFeature, Place, Reply, Request
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.limits import BINS
from fedshift_core.run_settings import RunSettings
from fedshift_core.site_differences import lifted
from fedshift_core.wire.names import DOMAINS, SITE_IMAGES
from fedshift_core.wire.site_images import FederationImages
from fedshift_datasets.quality import pixel_statistics

FloatArray = NDArray[np.float64]
Numbers = tuple[FloatArray, FloatArray]  # mean and deviation
HARMONISED = "harmonised"
PURPOSE = "normalization"  # of the generator that draws nodes


class NormalizationOnNode(NodeFeature):
    """Gives the client a normaliser."""

    place = Place.MODEL

    def attach(self, client: DomainClient[Any], config: RunSettings) -> None:
        """Normalise by statistics of nodes from now on."""
        client.normalizer = ByNodes(client, config.dataset.domains)

    def refuse(self, request: Request) -> str:
        """Expect means and variances of all nodes with all work on images."""
        if SITE_IMAGES in request.given:
            return ""
        why = f"images.normalization={request.config.images.normalization}: the message lacks {SITE_IMAGES}"
        return why if request.kind == "train" else request.but(DOMAINS, why) if request.scores else ""

    def on_train(self, call: Call, next: Next) -> Reply:
        """Draw nodes from the beginning."""
        if call.client.normalizer is not None:
            call.client.normalizer.restart(call.server_round)
        return next(call)


class ByNodes:
    """Normalises batches of one client by statistics of nodes.

    Args:
        client: Its ``federation_images`` are those of all nodes.
        domains: The domains of the run, in their order.
    """

    def __init__(self, client: DomainClient[Any], domains: tuple[str, ...]) -> None:
        self._domains, self._client = domains, client
        self._config = client.setup.images
        self._harmonised = self._config.normalization == HARMONISED
        self._rng: torch.Generator | None = None
        self._round: int | None = None  # of the training for which nodes are drawn; None: the client's
        self._domain = ""  # whose images are scored; empty for the node's own
        self._own: Numbers | None = None

    def restart(self, server_round: int) -> None:
        """Draw nodes from the beginning, for a round's training."""
        self._rng, self._round = None, server_round

    @contextmanager
    def of_domain(self, domain: str) -> Iterator[None]:
        """Let images be those of a domain; empty: of the node."""
        before, self._domain = self._domain, domain
        try:
            yield
        finally:
            self._domain = before

    def plain(self, x: Tensor) -> Tensor:
        """Normalise images (B, 3, H, W) by the statistics of the node, or of the domain that is scored."""
        return self._view(x, self._of_these())

    def augmented(self, batch: Batch) -> Batch:
        """Normalise views of images: with ``fedrdn`` each by the statistics of a node that is drawn."""
        fixed = None if self._config.normalization == "fedrdn" else self._of_these()
        second = None if batch.second is None else self._view(batch.second, fixed)
        return replace(batch, x=self._view(batch.x, fixed), second=second)

    def own(self) -> Numbers:
        """Return mean and deviation of the node's training images, (3,) each."""
        of_all, setup = self._client.federation_images, self._client.setup
        row = None if of_all is None else of_all.row_of(setup.index)
        if of_all is not None and row is not None:
            return of_rows(of_all, np.array([row]), self._config.normalization)
        if self._own is None:  # it tells nobody
            numbers = pixel_statistics.of(self._client.train_set.x, BINS)
            self._own = numbers.mean, np.sqrt(numbers.variance) if self._harmonised else numbers.image_std
        return self._own

    def _of_these(self) -> Numbers:
        of_all = self._client.federation_images
        if not self._domain or of_all is None:
            return self.own()
        rows = of_all.rows_of(self._domains.index(self._domain))
        if not len(rows) and self._domain == self._client.setup.domain:
            return self.own()
        return of_rows(of_all, rows if len(rows) else np.arange(len(of_all)), self._config.normalization)

    def _view(self, x: Tensor, fixed: Numbers | None) -> Tensor:
        """Normalise one view of a batch, by the numbers of a node or of a domain, or of nodes that are drawn."""
        of_all = self._client.federation_images
        if fixed is None and of_all is None:  # a client that no message has reached
            fixed = self.own()
        if fixed is not None:
            mean, std = normalising(fixed, of_all, self._config)
            return self._anew(x, mean[None], std[None])
        assert of_all is not None
        if self._rng is None:
            server_round = self._client.server_round if self._round is None else self._round
            self._rng = self._client.torch_rng(PURPOSE, server_round)
        if self._config.normalization_draw == "batch":
            j, k = torch.randint(len(of_all), (2, 1), generator=self._rng).numpy()
        else:
            j = k = torch.randint(len(of_all), (len(x),), generator=self._rng).numpy()
        return self._anew(x, of_all.mean[j], lifted(of_all.image_std[k]))

    def _anew(self, x: Tensor, mean: FloatArray, std: FloatArray) -> Tensor:
        """Return images that the configuration's mean and std have normalised by others, in place.

        Args:
            x: (B, 3, H, W).
            mean: (1 or B, 3).
            std: Likewise, above 0.
        """
        scale, shift = np.array(self._config.std) / std, (np.array(self._config.mean) - mean) / std
        factor, summand = (torch.from_numpy(a[:, :, None, None]).to(x.device, x.dtype) for a in (scale, shift))
        return x.mul_(factor).add_(summand)


def of_rows(of_all: FederationImages, rows: NDArray[np.int64], way: str) -> Numbers:
    """Return mean and deviation of some nodes' images by a way of ``images.normalization``, (3,) each."""
    mean = of_all.mean[rows].mean(axis=0)
    if way == HARMONISED:
        return mean, np.sqrt(of_all.variance[rows].mean(axis=0))
    return mean, of_all.image_std[rows].mean(axis=0)


def normalising(numbers: Numbers, of_all: FederationImages | None, config: ImageConfig) -> Numbers:
    """Return by what images of a node or a domain are normalised, in one step where they are harmonised before.

    Args:
        numbers: Mean and deviation of the node or the domain, (3,) each.
        of_all: Those of all nodes; None for a client that no message has reached.
        config: How; mean and std by which images that have the federation's mean and deviation are normalised.
    """
    mean, std = numbers[0], lifted(numbers[1])
    if config.normalization != HARMONISED or of_all is None:
        return mean, std
    to_mean, to_std = of_rows(of_all, np.arange(len(of_all)), HARMONISED)
    per = std / lifted(to_std)  # the node's scale in units of the federation's
    return mean - (to_mean - np.array(config.mean)) * per, np.array(config.std) * per

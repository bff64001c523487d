"""FedSR client [Nguyen et al., 2022].

Paper: "FedSR: A Simple and Effective Domain Generalization Method for Federated Learning", A. Tuan Nguyen,
Philip Torr, Ser-Nam Lim, NeurIPS 2022; https://openreview.net/forum?id=mrt90D00aQX. Reference code:
atuannguyen/FedSR, commit ba8d894.

Symbols: z ~ N(mu(x), sigma(x)^2) representation, r(z|y) = N(m_y, s_y^2) what it is held to, learned on the node,
c a learned number that mu and sigma are multiplied with there.

Deviations: (1) local epochs, where the code counts steps; (2) the samples at test are the same for all images, so
that the score of an image depends on no other and can be repeated.

B batch, D width of the representation, C classes.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.common import autocast, names_of
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedsr import FedSRParams, Length
from fedshift_core.seeding import torch_seed


def length(z: Tensor, form: Length) -> Tensor:
    r"""Keep representations short: :math:`\frac1B\sum_i\|z_i\|_2`, or of :math:`\|z_i\|_2^2` as the paper prints it.

    Args:
        z: Samples, (B, D).
        form: ``norm`` or ``squared``.

    Returns:
        A scalar in float32.
    """
    z = z.float()
    return (z.norm(dim=1) if form == "norm" else z.square().sum(dim=1)).mean()


def conditional_information(mean: Tensor, deviation: Tensor, class_mean: Tensor, class_deviation: Tensor) -> Tensor:
    r"""Hold p(z|x) to r(z|y), which bounds the information that z has of x given y.

    .. math:: \frac1B\sum_iKL\big(\mathcal N(\mu_i,\sigma_i^2)\,\|\,\mathcal N(m_{y_i},s_{y_i}^2)\big)
        =\frac1B\sum_i\sum_d\Big(\log\frac{s}{\sigma}+\frac{\sigma^2+(\mu-m)^2}{2s^2}-\frac12\Big)

    Args:
        mean: mu, (B, D), float32 as all.
        deviation: sigma, (B, D), above 0.
        class_mean: m of each image's class, (B, D).
        class_deviation: s of each image's class, (B, D), above 0.

    Returns:
        A scalar in float32.
    """
    squares = deviation.square() + (mean - class_mean).square()
    each = torch.log(class_deviation) - torch.log(deviation) + squares / (2 * class_deviation.square()) - 0.5
    return each.sum(dim=1).mean()


PRIVATE = "reference."  # m, s and c never travel
LEAST = 1e-6  # a deviation is this at least: softplus of a number far below zero is 0


class Reference(nn.Module):
    """r(z|y), and the number c by which p(z|x) is scaled when both are compared."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(num_classes, width))
        self.deviation = nn.Parameter(torch.ones(num_classes, width))  # before softplus
        self.scale = nn.Parameter(torch.ones(()))


class GaussianModel(SplitModel):
    """A network with a layer that gives mu and sigma between encoder and classifier.

    Attributes:
        gaussian: Features (B, F) to (B, 2 D).
        reference: Private.
        seen: mu and sigma of the last training pass, (B, D) each, float32.
    """

    def __init__(self, network: SplitModel, width: int) -> None:
        super().__init__(network.encoder, width, network.num_classes)
        if width == network.feature_dim:
            self.classifier = network.classifier
        self.gaussian = nn.Linear(network.feature_dim, 2 * width)
        self.reference = Reference(network.num_classes, width)
        self.seen: tuple[Tensor, Tensor] | None = None
        self._rng: torch.Generator | None = None

    def start_round(self, rng: torch.Generator) -> None:
        """Take this round's noise from a CPU generator; it is drawn on the model's device."""
        self.seen = None
        seed = int(torch.randint(2**62, (), generator=rng))
        self._rng = torch.Generator(self.classifier.weight.device).manual_seed(seed)

    def distribution(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mu and sigma of images (B, 3, H, W), (B, D) each, float32."""
        mean, raw = self.gaussian(self.encoder(x)).float().chunk(2, dim=1)
        return mean, F.softplus(raw).clamp(min=LEAST)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return z (B, D) and its logits (B, C): a sample in training, else mu."""
        mean, deviation = self.distribution(x)
        z = mean
        if self.training:
            if self._rng is None:
                raise RuntimeError("fedsr: call start_round before training")
            self.seen = mean, deviation
            z = mean + deviation * torch.randn(mean.shape, generator=self._rng, device=mean.device)
        return z, self.classifier(z)


class FedSRClient(DomainClient[FedSRParams]):
    """Cross-entropy of a sample + alpha_L2R times its length + alpha_CMI times its divergence from r(z|y)."""

    model: GaussianModel

    @classmethod
    def check_run(cls, params: FedSRParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a width of z that the head does not have."""
        if params.z_dim is not None and model.head != "linear":
            raise ConfigError(f"method.z_dim needs model.head=linear, found {model.head}: z is as wide as the features")

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedSRParams) -> SplitModel:
        """Build the network with FedAvg's initial weights, the layer of z and what z is held to."""
        network = super().build_model(plan, params)
        width = params.z_dim or network.feature_dim
        return initialised(plan.seed, "fedsr", lambda: GaussianModel(network, width))

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedSRParams) -> frozenset[str]:
        """Return the names of r(z|y), and of BatchNorm if ``bn = local``."""
        return names_of(model, PRIVATE) | super().private(model, config, params)

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedSRParams) -> bool:
        """Tell whether nodes are scored with models of their own: r(z|y) classifies nothing."""
        return bool(super().private(model, config, params))

    def start_round(self, server_round: int) -> None:
        """Take the round's noise."""
        self.model.start_round(self.torch_rng("fedsr", server_round))

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return both terms, weighted."""
        p = self.params
        terms: Terms = {}
        assert self.model.seen is not None
        mean, deviation = self.model.seen
        self.model.seen = None
        if p.alpha_l2r > 0:
            terms["l2r"] = p.alpha_l2r * length(features, p.l2r)
        if p.alpha_cmi > 0:
            r, y = self.model.reference, batch.y
            of_class = r.mean[y], F.softplus(r.deviation)[y]
            terms["cmi"] = p.alpha_cmi * conditional_information(mean * r.scale, deviation * r.scale, *of_class)
        return terms

    def predict(self, x: Tensor) -> Tensor:
        """Return logits of mu (B, C), or the logarithm of what samples of z say on average."""
        if self.params.test == "mean":
            return super().predict(x)
        with autocast(self):
            mean, deviation = self.model.distribution(x)
            z = mean + deviation * self._test_noise().to(mean.device)[:, None]  # S x B x D
            logits = self.model.classifier(z.flatten(0, 1)).float().unflatten(0, z.shape[:2])
        return torch.logsumexp(logits.log_softmax(dim=2), dim=0) - math.log(self.params.test_samples)

    def _test_noise(self) -> Tensor:
        rng = torch.Generator().manual_seed(torch_seed(self.setup.seed, "fedsr-test"))
        return torch.randn(self.params.test_samples, self.model.feature_dim, generator=rng)

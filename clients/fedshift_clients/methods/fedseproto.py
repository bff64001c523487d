"""FedSeProto client [Lai et al., 2024].

Paper: "FedSeProto: Learning Semantic Prototype in Federated Learning", Yanyi Lai, Lele Fu, Tianchi Liao,
Chuan Chen, Zibin Zheng; ECAI 2024, https://doi.org/10.3233/FAIA240731 (equations 9-15, algorithm 1).
Reference code: none published. Hyper-parameters stand in a supplement that could not be had.

Symbols: F general encoder, F^s semantic encoder, F^d domain encoder, H classifier, G decoder;
z = F(x), z^s = F^s(z), z^d = F^d(z); c_g global prototypes. Inference: H(F^s(F(x))).

Deviations, all switchable: (1) the sign of Eq. 11 follows the text (``kd_form``); (2) F^s and F^d give a mean
and a variance, since a point has no finite divergence from a Gaussian (``mi_form``); (3) two phases in each
round, as the text says and algorithm 1 does not (``schedule``); (4) sums over dimensions are means (``reduction``).
"""

import itertools
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedshift_clients.base import DomainClient, Phase
from fedshift_clients.losses import fedseproto as eq
from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.training import precision
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.prototypes import by_class, contribution
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedseproto import FedSeProtoParams

PRIVATE = ("domain.", "decoder.")  # F^d and G never travel
LOG_VARIANCE = 10.0  # largest size of log sigma^2
MAP_WIDTH, MAP_SIDE = 128, 4  # the decoder's first map
LEAST_WIDTH = 16  # of the maps of a decoder for large images


@dataclass(frozen=True)
class Code:
    """Semantic or domain features of a batch.

    Attributes:
        mean: What prototypes, distillation and inference use, (B, D).
        sample: What the decoder and the cross-entropy use, (B, D); the mean itself where nothing is drawn.
        log_variance: log sigma^2, (B, D), where a sample is drawn.
    """

    mean: Tensor
    sample: Tensor
    log_variance: Tensor | None = None


class SideEncoder(nn.Module):
    """F^s or F^d, one FC layer from z (B, D) to z^s or z^d. Gaussian adds a second one for the variance."""

    def __init__(self, feature_dim: int, *, gaussian: bool) -> None:
        super().__init__()
        self.mean = nn.Linear(feature_dim, feature_dim)
        self.log_variance = nn.Linear(feature_dim, feature_dim) if gaussian else None

    def forward(self, z: Tensor, noise: Tensor | None = None) -> Code:
        """Return the code of z, float32; with ``noise`` (B, D), standard normal, a sample of it."""
        mean = self.mean(z).float()
        if noise is None or self.log_variance is None:
            return Code(mean, mean)
        log_variance = self.log_variance(z).float().clamp(-LOG_VARIANCE, LOG_VARIANCE)
        return Code(mean, mean + (0.5 * log_variance).exp() * noise, log_variance)

    def __call__(self, z: Tensor, noise: Tensor | None = None) -> Code:
        """Typed as :meth:`forward`."""
        return cast(Code, super().__call__(z, noise))


class Decoder(nn.Module):
    """G: FC to 128 x 4 x 4, then transposed convolutions until the map covers the image (A11).

    For 32 pixels 128-64-32-3; without BatchNorm.
    """

    def __init__(self, code_dim: int, size: int) -> None:
        super().__init__()
        self.size = size
        doublings = max(1, ((size - 1) // MAP_SIDE).bit_length())
        widths = [max(MAP_WIDTH >> i, LEAST_WIDTH) for i in range(doublings)] + [3]
        self.fc = nn.Linear(code_dim, MAP_WIDTH * MAP_SIDE**2)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(width_in, width, 4, 2, 1) for width_in, width in itertools.pairwise(widths)
        )

    def forward(self, codes: Tensor) -> Tensor:
        """Map codes [z^s, z^d] (B, 2 D) to images (B, 3, H, W), float32, from 0 to 1."""
        h = self.fc(codes).view(-1, MAP_WIDTH, MAP_SIDE, MAP_SIDE)
        for layer in self.up:
            h = layer(torch.relu(h))
        images = torch.sigmoid(h.float())
        if images.shape[-1] == self.size:
            return images
        return F.interpolate(images, size=(self.size, self.size), mode="bilinear", align_corners=False)


class FedSeProtoModel(SplitModel):
    """A network with F^s between encoder and classifier, with F^d and G next to them.

    Attributes:
        semantic: F^s.
        domain: F^d, private.
        decoder: G, private.
    """

    def __init__(self, network: SplitModel, semantic: SideEncoder, domain: SideEncoder, decoder: Decoder) -> None:
        super().__init__(network.encoder, network.feature_dim, network.num_classes)
        self.classifier = network.classifier
        self.semantic = semantic
        self.domain = domain
        self.decoder = decoder

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of z^s (B, D) and logits (B, C) of images (B, 3, H, W)."""
        features = self.semantic(self.encoder(x)).mean
        return features, self.classifier(features)


class FedSeProtoClient(DomainClient[FedSeProtoParams]):
    """CE + alpha KD + beta MI + lambda Proto (Eq. 15) after a phase of plain training; contributes Eq. 12."""

    weighs_classes = True
    reads_images = True  # Eq. 10 decodes them

    heterogeneous = True
    model: FedSeProtoModel

    @classmethod
    def check_run(cls, params: FedSeProtoParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse local training that has no epoch left for phase 2."""
        epochs = params.phase1_epochs
        if params.schedule != "joint" and train.epochs <= epochs:
            raise ConfigError(
                f"method.phase1_epochs={epochs} leaves no epoch of train.epochs={train.epochs} for phase 2: "
                f"set train.epochs={epochs + 1} or more, or method.schedule=joint"
            )

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedSeProtoParams) -> FedSeProtoModel:
        """Build the network with FedAvg's initial weights and add F^s, F^d and G."""
        network = super().build_model(plan, params)
        width, gaussian = network.feature_dim, params.samples

        def side(name: str) -> SideEncoder:  # each from numbers of its own, so that no switch changes another part
            return networks.initialised(plan.seed, f"fedseproto-{name}", lambda: SideEncoder(width, gaussian=gaussian))

        semantic, domain = side("semantic"), side("domain")
        if params.semantic_start == "identity":
            nn.init.eye_(semantic.mean.weight)
            nn.init.zeros_(semantic.mean.bias)
        decoder = networks.initialised(plan.seed, "fedseproto-decoder", lambda: Decoder(2 * width, plan.size))
        return networks.initialised(
            plan.seed, "fedseproto-model", lambda: FedSeProtoModel(network, semantic, domain, decoder)
        )

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedSeProtoParams) -> frozenset[str]:
        """Keep F^d and G on the node; everything, where nodes have different networks."""
        if config.per_node:
            return frozenset(model.state_dict())
        return super().private(model, config, params) | {
            name for name in model.state_dict() if name.startswith(PRIVATE)
        }

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedSeProtoParams) -> bool:
        """Tell whether a part that classifies is private: F^d and G do not."""
        return any(not name.startswith(PRIVATE) for name in cls.private(model, config, params))

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and start this round's generator."""
        self._rng = self.torch_rng("fedseproto-noise", server_round)
        self._targets = by_class(self.tensor("prototypes"), self.tensor("labels"), self.model.num_classes)  # c_g
        scale = self.setup.images.mean, self.setup.images.std
        self._mean, self._std = (torch.tensor(v, device=self.setup.device).view(3, 1, 1) for v in scale)

    def phases(self, server_round: int) -> list[Phase]:
        """Return phase 1, where this round has it, and phase 2. If there are phases, H learns in phase 1 only (A4)."""
        p, epochs = self.params, self.setup.train.epochs
        if p.schedule == "joint":
            return [Phase(epochs)]
        first = p.phase1_epochs if p.schedule == "two_phase_each_round" or server_round == 1 else 0
        return [Phase(first, loss=self._plain_loss), Phase(epochs - first, freezes=("classifier.",))]

    def _plain_loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the cross-entropy of H(F(x)), phase 1."""
        with precision.autocast(self.setup.train.precision, self.setup.device):
            return {"ce_base": self.cross_entropy(self.model.classifier(self.model.encoder(batch.x)), batch.y)}

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted terms of Eq. 15, phase 2."""
        p = self.params
        with precision.autocast(self.setup.train.precision, self.setup.device):
            z = self.model.encoder(batch.x)  # B x D
            noise = self._draw_noise(len(z))
            semantic, domain = self._codes(z, noise)
            terms = {"ce": self.cross_entropy(self.model.classifier(semantic.sample), batch.y)}
            if p.use_kd and p.alpha > 0:
                terms["kd"] = p.alpha * self._distillation(z, semantic, domain)
            if p.has_mi:
                codes = self._codes(z.detach(), noise) if p.mi_stopgrad else (semantic, domain)
                terms["mi"] = p.beta * self._information(batch.x if batch.images is None else batch.images, *codes)
        if p.use_proto and p.lambda_proto > 0 and self._targets is not None:
            terms["proto"] = p.lambda_proto * eq.prototype_distance(
                semantic.mean, batch.y, *self._targets, reduction=p.proto_reduction, dimensions=p.reduction
            )
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of z^s of the trained encoders, in evaluation mode (Eq. 12)."""
        return contribution(*self.class_prototypes())

    def _draw_noise(self, b: int) -> Tensor | None:
        """Draw standard normal noise (2, B, D) for z^s and z^d; None where codes are points."""
        if not self.params.samples:
            return None
        return torch.randn(2, b, self.model.feature_dim, generator=self._rng).to(self.setup.device)

    def _codes(self, z: Tensor, noise: Tensor | None) -> tuple[Code, Code]:
        """Return z^s and z^d of z (B, D)."""
        for_semantic, for_domain = (None, None) if noise is None else noise
        return self.model.semantic(z, for_semantic), self.model.domain(z, for_domain)

    def _distillation(self, z: Tensor, semantic: Code, domain: Code) -> Tensor:
        """Eq. 11, with the teacher H(z) of the batch itself and an H that does not learn from it (A4)."""
        head = self.model.classifier
        constant = {name: parameter.detach() for name, parameter in head.named_parameters()}
        teacher, like, unlike = (
            functional_call(head, constant, (code,)) for code in (z.detach(), semantic.mean, domain.mean)
        )  # B x C
        p = self.params
        return eq.distillation(
            teacher, like, unlike, temperature=p.kd_temperature, form=p.kd_form, direction=p.kl_direction
        )

    def _information(self, x: Tensor, semantic: Code, domain: Code) -> Tensor:
        """Eq. 10: the divergences of both codes from the prior, and the error of the image decoded from them."""
        decoded = self.model.decoder(torch.cat([semantic.sample, domain.sample], dim=1))
        prior = sum(self._divergence(code) for code in (semantic, domain))
        return prior + eq.reconstruction(x * self._std + self._mean, decoded)

    def _divergence(self, code: Code) -> Tensor:
        p = self.params
        if code.log_variance is not None:
            return eq.gaussian_kl(code.mean, code.log_variance, p.reduction)
        divergence = eq.moment_kl if p.mi_form == "batch_moment" else eq.squared_norm
        return divergence(code.mean, p.reduction)

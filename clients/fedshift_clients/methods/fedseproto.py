r"""FedSeProto client [Lai et al., 2024].

Paper: "FedSeProto: Learning Semantic Prototype in Federated Learning", Yanyi Lai, Lele Fu, Tianchi Liao,
Chuan Chen, Zibin Zheng; ECAI 2024, https://doi.org/10.3233/FAIA240731 (equations 9-15, algorithm 1).
Reference code: none published. Hyper-parameters stand in a supplement that could not be had.

Symbols: F general encoder, F^s semantic encoder, F^d domain encoder, H classifier, G decoder;
z = F(x), z^s = F^s(z), z^d = F^d(z); c_g global prototypes. Inference: H(F^s(F(x))).

Deviations, all switchable: (1) the sign of Eq. 11 follows the text (``kd_form``); (2) F^s and F^d give a mean
and a variance, since a point has no finite divergence from a Gaussian (``mi_form``); (3) two phases in each
round, as the text says and algorithm 1 does not (``schedule``); (4) sums over dimensions are means (``reduction``).

B batch, C classes, D feature width.
Symbols: z general, z^s semantic, z^d domain features, c_g global prototypes. All compute in float32.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedshift_clients.base import DomainClient, Phase
from fedshift_clients.methods.common import autocast, names_of
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import contribution, sent_prototypes
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedseproto import FedSeProtoParams, Reduction
from fedshift_core.wire.names import CLASSIFIER

MAX_KL = 50.0  # divergences above it count as it (A2)
VARIANCE_EPS = 1e-6  # keeps the logarithm of a dimension that does not vary in a batch


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    r"""Pull the distribution of each code to the standard normal one (Eq. 10, A7 i).

    .. math:: \frac1B\sum_i\frac1D\sum_j\tfrac12(\mu_{ij}^2+\sigma_{ij}^2-\log\sigma_{ij}^2-1)

    Args:
        mean: mu, (B, D).
        log_variance: log sigma^2, (B, D).

    Returns:
        A scalar, not negative; D times as much is the divergence itself.
    """
    mu, log_var = mean.float(), log_variance.float()
    return 0.5 * (mu.square() + log_var.exp() - log_var - 1).mean()


def moment_kl(codes: Tensor) -> Tensor:
    r"""Pull the Gaussian fitted to each dimension of the batch to the standard normal one (A7 ii).

    .. math:: \frac1D\sum_j\tfrac12(m_j^2+v_j-\log v_j-1)

    Args:
        codes: z^s or z^d, (B, D); m and v are their mean and variance (divided by B) over the batch.

    Returns:
        A scalar. One sample has no variance: only the mean's part, as if v were 1.
    """
    z = codes.float()
    m = z.mean(dim=0)  # D
    each = m.square()
    if len(z) > 1:
        v = (z - m).square().mean(dim=0)  # D
        each = each + v - (v + VARIANCE_EPS).log() - 1
    return 0.5 * each.mean()


def squared_norm(codes: Tensor) -> Tensor:
    r"""Return :math:`\frac1B\sum_i\frac1{2D}\|z_i\|^2`: what a fixed variance leaves of the KL (A7 iii).

    Args:
        codes: z^s or z^d, (B, D).
    """
    return 0.5 * codes.float().square().mean()


def times(codes: Tensor, reduction: Reduction) -> int:
    """Return what makes of a mean over the dimensions of codes (B, D) what is asked for: D for their sum."""
    return codes.shape[1] if reduction == "sum" else 1


def distillation(
    teacher: Tensor,
    semantic: Tensor,
    domain: Tensor,
    *,
    temperature: float,
    form: Literal["corrected", "printed"],
    direction: Literal["teacher_student", "student_teacher"],
) -> Tensor:
    r"""Make the semantic output follow the teacher's and the domain output not (Eq. 11).

    .. math:: \frac1B\sum_i\log(1+e^{s_1-s_2}),\quad
        s_1=D_{KL}(\mathcal H(z),\mathcal H(z^s)),\ s_2=D_{KL}(\mathcal H(z),\mathcal H(z^d))

    ``printed`` is the paper's formula, whose sign works against its text (A1): log(1 + e^(s2 - s1)).

    Args:
        teacher: Logits H(z), (B, C); no gradient goes into them (A3).
        semantic: Logits H(z^s), (B, C).
        domain: Logits H(z^d), (B, C).
        temperature: Divides all logits, above 0; the loss is not scaled by its square.
        form: Which sign.
        direction: ``teacher_student`` is KL(teacher || student).

    Returns:
        A scalar, above 0; log 2 where both outputs are equally far from the teacher's.
    """
    log_t, log_s, log_d = (
        F.log_softmax(logits.float() / temperature, dim=1) for logits in (teacher.detach(), semantic, domain)
    )  # B x C
    s1, s2 = (
        _divergence(log_t, log_q) if direction == "teacher_student" else _divergence(log_q, log_t)
        for log_q in (log_s, log_d)
    )  # B
    return F.softplus(s1 - s2 if form == "corrected" else s2 - s1).mean()


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q), (B,), of log-probabilities (B, C); at most ``MAX_KL``."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=1).clamp(max=MAX_KL)


def prototype_distance(
    codes: Tensor,
    y: Tensor,
    prototypes: Tensor,
    present: Tensor,
    *,
    reduction: Literal["sample_mean", "class_mean"],
    dimensions: Reduction = "mean",
) -> Tensor:
    r"""Pull semantic features to the global prototype of their class (Eq. 13).

    ``sample_mean``: :math:`\frac1B\sum_i\|z^s_i-c_g^{y_i}\|^2/D`; ``class_mean`` averages within each
    class first, then over the classes, as Eq. 13 does. Samples whose class has no prototype are left out (A12).

    Args:
        codes: z^s, (B, D).
        y: Labels (B,).
        prototypes: c_g, (C, D).
        present: Classes that have one, (C,), bool.
        reduction: How the samples are averaged.
        dimensions: ``sum`` leaves out the division by D.

    Returns:
        A scalar; 0 if no sample of the batch has a prototype.
    """
    squared = (codes.float() - prototypes.float()[y]).square().mean(dim=1) * times(codes, dimensions)  # B
    weight = present[y].float()  # B
    if reduction == "class_mean":
        weight = weight / torch.bincount(y, minlength=len(prototypes))[y]
        # Now the weights of a class sum to 1, all weights to the number of classes.
    return (squared * weight).sum() / weight.sum().clamp(min=0.5)  # the sum is 0 or at least 1


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

    def __init__(self, network: SplitModel, plan: Blueprint, params: FedSeProtoParams) -> None:
        super().__init__(network.encoder, network.feature_dim, network.num_classes)
        self.classifier = network.classifier
        width = network.feature_dim
        # Each from numbers of its own, so that no switch changes another part.
        self.semantic, self.domain = (
            initialised(plan.seed, f"fedseproto-{name}", lambda: SideEncoder(width, gaussian=params.samples))
            for name in ("semantic", "domain")
        )
        if params.semantic_start == "identity":
            nn.init.eye_(self.semantic.mean.weight)
            nn.init.zeros_(self.semantic.mean.bias)
        self.decoder = initialised(plan.seed, "fedseproto-decoder", lambda: Decoder(2 * width, plan.size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of z^s (B, D) and logits (B, C) of images (B, 3, H, W)."""
        features = self.semantic(self.encoder(x)).mean
        return features, self.classifier(features)


class FedSeProtoClient(DomainClient[FedSeProtoParams]):
    """CE + alpha KD + beta MI + lambda Proto (Eq. 15) after a phase of plain training; contributes Eq. 12."""

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
        return initialised(plan.seed, "fedseproto-model", lambda: FedSeProtoModel(network, plan, params))

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedSeProtoParams) -> frozenset[str]:
        """Keep F^d and G on the node; everything, where nodes have different networks."""
        if config.per_node:
            return frozenset(model.state_dict())
        return super().private(model, config, params) | names_of(model, PRIVATE)

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedSeProtoParams) -> bool:
        """Tell whether a part that classifies is private: F^d and G do not."""
        return any(not name.startswith(PRIVATE) for name in cls.private(model, config, params))

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and start this round's generator."""
        self._rng = self.torch_rng("fedseproto-noise", server_round)
        self._targets = sent_prototypes(self)  # c_g
        scale = self.setup.images.mean, self.setup.images.std
        self._mean, self._std = (torch.tensor(v, device=self.setup.device).view(3, 1, 1) for v in scale)

    def phases(self, server_round: int) -> list[Phase]:
        """Return phase 1, where this round has it, and phase 2. If there are phases, H learns in phase 1 only (A4)."""
        p, epochs = self.params, self.setup.train.epochs
        if p.schedule == "joint":
            return [Phase(epochs)]
        first = p.phase1_epochs if p.schedule == "two_phase_each_round" or server_round == 1 else 0
        return [Phase(first, loss=self._plain_loss), Phase(epochs - first, freezes=(CLASSIFIER,))]

    def _plain_loss(self, batch: Batch) -> Terms:
        """Return the cross-entropy of H(F(x)), phase 1."""
        with autocast(self):
            return {"ce_base": self.cross_entropy(self.model.classifier(self.model.encoder(batch.x)), batch.y)}

    def loss(self, batch: Batch) -> Terms:
        """Return the weighted terms of Eq. 15, phase 2."""
        p = self.params
        noise: Sequence[Tensor | None] = (None, None)  # standard normal, (B, D) each; None where codes are points
        with autocast(self):
            z = self.model.encoder(batch.x)  # B x D
            if p.samples:
                drawn = torch.randn(2, len(z), self.model.feature_dim, generator=self._rng)
                noise = drawn.to(self.setup.device).unbind()
            semantic, domain = self._codes(z, noise)
            terms = {"ce": self.cross_entropy(self.model.classifier(semantic.sample), batch.y)}
            if p.use_kd and p.alpha > 0:
                terms["kd"] = p.alpha * self._distillation(z, semantic, domain)
            if p.has_mi:
                codes = self._codes(z.detach(), noise) if p.mi_stopgrad else (semantic, domain)
                terms["mi"] = p.beta * self._information(batch.x if batch.images is None else batch.images, *codes)
        if p.use_proto and p.lambda_proto > 0 and self._targets is not None:
            terms["proto"] = p.lambda_proto * prototype_distance(
                semantic.mean, batch.y, *self._targets, reduction=p.proto_reduction, dimensions=p.reduction
            )
        return terms

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the class means of z^s of the trained encoders, in evaluation mode (Eq. 12)."""
        return contribution(*self.class_prototypes())

    def _codes(self, z: Tensor, noise: Sequence[Tensor | None]) -> tuple[Code, Code]:
        """Return z^s and z^d of z (B, D)."""
        return self.model.semantic(z, noise[0]), self.model.domain(z, noise[1])

    def _distillation(self, z: Tensor, semantic: Code, domain: Code) -> Tensor:
        """Eq. 11, with the teacher H(z) of the batch itself and an H that does not learn from it (A4)."""
        head = self.model.classifier
        constant = {name: parameter.detach() for name, parameter in head.named_parameters()}
        teacher, like, unlike = (
            functional_call(head, constant, (code,)) for code in (z.detach(), semantic.mean, domain.mean)
        )  # B x C
        p = self.params
        return distillation(
            teacher, like, unlike, temperature=p.kd_temperature, form=p.kd_form, direction=p.kl_direction
        )

    def _information(self, x: Tensor, semantic: Code, domain: Code) -> Tensor:
        """Eq. 10: the divergences of both codes from the prior, and the error of the image decoded from them.

        The error is the mean one per value, as its name says, inside the mean over the batch (A6).
        """
        decoded = self.model.decoder(torch.cat([semantic.sample, domain.sample], dim=1))
        prior = sum(self._divergence(code) * times(code.mean, self.params.reduction) for code in (semantic, domain))
        return prior + F.mse_loss(decoded, x * self._std + self._mean)

    def _divergence(self, code: Code) -> Tensor:
        if code.log_variance is not None:
            return gaussian_kl(code.mean, code.log_variance)
        return moment_kl(code.mean) if self.params.mi_form == "batch_moment" else squared_norm(code.mean)

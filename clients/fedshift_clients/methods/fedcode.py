"""FedCode client [Zhang et al., 2026].

Paper: "FedCode: Addressing Federated Domain Shift by Contrastive Feature Decoupling", Shaobo Zhang, Yijie Yin,
Wei Liang, Fan Wu, Weizhi Meng, Tian Wang; Neurocomputing 2026, doi 10.1016/j.neucom.2026.133151
(equations 2, 5-8, 10-16, algorithm 1). Reference code: none published.

Symbols: z_c semantic feature, z_s style feature, G global semantic prototypes, P global style prototypes,
j the node's pseudo-domain, tau temperature, alpha and beta weights.

Deviations: (1) no contrast in round 1, where there is no prototype yet (A1); (2) FDR is the cosine of the whole
feature, as printed it is a constant (``fdr_form``, A3); (3) the paper gives no tau: 0.5.
"""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.base import DomainClient, Scores
from fedshift_clients.methods import fedcode_terms as terms
from fedshift_clients.methods.common import autocast, labelled_prototypes, names_of
from fedshift_clients.models import networks
from fedshift_clients.models.libraries import LibraryEncoder
from fedshift_clients.models.networks import Blueprint, SplitModel, follows
from fedshift_clients.models.projection import Projection, projection_of, put_into, unprojected
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.training.arrays import own_array
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.prototypes import EpochMeans, contribution
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedcode import FedCodeParams
from fedshift_core.wire.names import CLASSIFIER
from fedshift_datasets.base import ImageSet

STYLE = "style_encoder"  # the model's private encoder of style
SAIN_EPS = 1e-5  # under the root of the variance; Eq. 5 has none (A12)
FLOATS_IN_CACHE = 1 << 19
SE_REDUCTION = 16  # of the squeeze-and-excitation network (Hu et al., CVPR 2018)


class SAIN(nn.Module):
    r"""What instance normalisation removes, weighted by channel (Eqs 5-7).

    .. math:: F_{norm}=\frac{F-\mu(F)}{\sigma(F)},\quad F_{style}=F-F_{norm},\quad F_{out}=w\cdot F_{style}

    w comes from squeeze-and-excitation of F_style: global average pooling, two fully connected layers,
    ReLU, sigmoid. gamma = 1 and delta = 0 of Eq. 5 are fixed, and no scale or shift follows.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(channels // SE_REDUCTION, 1)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, f: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape. A map of one pixel has nothing to normalise and stays."""
        parameters = self.squeeze.weight, self.squeeze.bias, self.excite.weight, self.excite.bias
        return cast(Tensor, _StyleOf.apply(f, *parameters))


class _StyleOf(torch.autograd.Function):
    """Does SAIN in one operation. The map is kept once, as it came, and passed over as few times as can be.

    F_out = w F_style = w (1 - k) F + w k mu with k = 1 / sigma, so forwards it takes mean, variance and one
    multiply-add; backwards two sums over the map and two multiply-adds. All that is computed between map and map
    is B x C. Sums are in float32: in bfloat16 the difference of Eq. 6 is mostly rounding.
    """

    @staticmethod
    def forward(ctx: Any, f: Tensor, *parameters: Tensor) -> Tensor:
        """Map f (B, C, H, W) to F_out of the same shape and type. ``parameters`` are those of the two layers."""
        rows = _rows(f)  # B x HW x C
        # No view of another tensor: networks of libraries change what a norm gives in place (ReLU, residual sums).
        made = torch.empty(f.shape, dtype=f.dtype, device=f.device, memory_format=torch.channels_last)
        result = _rows(made)
        mean = rows.new_empty(len(rows), rows.shape[2], dtype=torch.float32)  # mu, B x C
        variance = torch.empty_like(mean)
        for part, mu, square, to in zip(*_cut(rows, mean, variance, result), strict=True):
            full = part.to(torch.float32, copy=True)
            torch.mean(full, dim=1, out=mu)
            torch.mean((full - mu[:, None]).square_(), dim=1, out=square)
            scale, shift = _affine(mu, square, *parameters)
            to.copy_(full.mul_(scale[:, None]).add_(shift[:, None]))
        ctx.save_for_backward(rows, mean, variance, *parameters)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the map and of the parameters."""
        rows, mean, variance, *parameters = ctx.saved_tensors
        gradient = _rows(gradients[0])
        by_scale, by_shift = torch.empty_like(mean), torch.empty_like(mean)
        for part, above, product, total in zip(*_cut(rows, gradient, by_scale, by_shift), strict=True):
            full = above.to(torch.float32, copy=True)
            torch.sum(full, dim=1, out=total)
            torch.sum(full.mul_(part), dim=1, out=product)
        inner = [each.detach().requires_grad_() for each in (mean, variance, *parameters)]
        with torch.enable_grad():
            scale, shift = _affine(*inner)
        by_mean, by_variance, *by_parameters = torch.autograd.grad((scale, shift), inner, (by_scale, by_shift))
        # d mu / dF = 1 / HW, d sigma^2 / dF = 2 (F - mu) / HW
        slope = by_variance * (2 / rows.shape[1])
        offset = by_mean / rows.shape[1] - slope * mean
        by_map = torch.empty_like(rows)
        for part, above, a, b, c, to in zip(*_cut(rows, gradient, scale.detach(), slope, offset, by_map), strict=True):
            full = part.to(torch.float32, copy=True).mul_(b[:, None]).add_(c[:, None])
            to.copy_(full.add_(above.to(torch.float32, copy=True).mul_(a[:, None])))
        return _map(by_map, gradients[0].shape), *by_parameters


def _affine(
    mean: Tensor, variance: Tensor, squeeze: Tensor, squeeze_bias: Tensor, excite: Tensor, excite_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Return scale w (1 - k) and shift w k mu, (B, C) each. The squeeze of F_style, its mean, is mu."""
    with torch.autocast(mean.device.type, enabled=False):
        k = (variance + SAIN_EPS).rsqrt()  # 1 / sigma
        w = F.linear(torch.relu(F.linear(mean, squeeze, squeeze_bias)), excite, excite_bias).sigmoid()
        return w * (1 - k), w * k * mean


def _cut(rows: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Cut tensors along B into parts that a CPU's cache holds as float32; an accelerator takes all at once."""
    size = max(1, FLOATS_IN_CACHE // rows[0].numel()) if rows.device.type == "cpu" else len(rows)
    return [torch.split(tensor, size) for tensor in (rows, *others)]


def _rows(f: Tensor) -> Tensor:
    """Return a map (B, C, H, W) as (B, HW, C): no copy where channels are last in memory."""
    return f.permute(0, 2, 3, 1).flatten(1, 2)


def _map(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return (B, HW, C) as (B, C, H, W), channels last in memory."""
    return rows.view(len(rows), *shape[2:], -1).permute(0, 3, 1, 2)


def _has_maps(encoder: nn.Module) -> bool:
    """Tell whether SAIN finds maps: of a library's network without BatchNorm, whether it is a row of maps."""
    if not isinstance(encoder, LibraryEncoder) or feature_stages(encoder) is not None:
        return True
    return any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())


def with_sain(encoder: nn.Module) -> nn.Module:
    """Put SAIN in the place of every BatchNorm, shortcuts included; without any, after every convolution."""
    has_batchnorm = any(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())
    for parent in list(encoder.modules()):
        for name, child in list(parent.named_children()):
            if has_batchnorm and isinstance(child, nn.BatchNorm2d):
                then = follows(child)
                sain = SAIN(child.num_features)
                setattr(parent, name, nn.Sequential(sain, *then) if then else sain)
            elif not has_batchnorm and isinstance(child, nn.Conv2d):
                setattr(parent, name, nn.Sequential(child, SAIN(child.out_channels)))
    return encoder


class FrozenStyle(nn.Module):
    """A style encoder next to a frozen one: a projection of its own of the same features."""

    def __init__(self, encoder: nn.Module, width_in: int, width: int) -> None:
        super().__init__()
        self.projection = Projection(width_in, width)
        self._shared = (encoder,)  # no module of this one: its weights are the semantic encoder's

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W), or what is kept of them, to style features (B, D)."""
        with torch.no_grad():
            features = unprojected(self._shared[0], x)
        return cast(Tensor, self.projection(features))


class FedCodeClient(DomainClient[FedCodeParams]):
    """CE + alpha (SemCL + StyCL) + beta FDR (Eq. 16); contributes semantic prototypes and one of style."""

    @classmethod
    def check_run(cls, params: FedCodeParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a mean of heads that are more than one layer, and a style encoder that has no images."""
        if model.precompute and params.has_style and not (model.freeze == "encoder" and model.projection):
            raise ConfigError(
                "model.precompute=on: fedcode's style encoder looks at the images, unless it is a projection of the "
                f"same frozen features: set model.freeze=encoder and model.projection, found {model.freeze} and "
                f"{model.projection}"
            )
        if params.global_model == "average_heads" and model.head != "linear":
            raise ConfigError(f"method.global_model=average_heads needs model.head=linear, found {model.head}")

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedCodeParams) -> SplitModel:
        """Add the style encoder to the network, which is the semantic encoder and the head."""
        model = super().build_model(plan, params)
        projection = projection_of(model.encoder) if plan.config.freeze == "encoder" else None
        if params.has_style and params.use_sain and projection is None and not _has_maps(model.encoder):
            raise ConfigError(
                f"method fedcode: the network {plan.config.name} has no feature map for SAIN to work on; "
                "method.use_sain=false takes the ordinary network as style encoder"
            )

        def style_encoder() -> nn.Module:
            if projection is not None:
                return FrozenStyle(model.encoder, projection.width_in, plan.config.projection)
            bare = networks.bare(plan.config.name, plan.num_classes, plan.size)
            encoder = with_sain(bare.encoder) if params.use_sain else bare.encoder
            if plan.config.projection:
                put_into(encoder, Projection(bare.feature_dim, plan.config.projection))
            return encoder

        if params.has_style:
            model.add_module(STYLE, networks.initialised(plan.seed, "fedcode-style", style_encoder))
        return model

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedCodeParams) -> frozenset[str]:
        """Keep the style encoder on the node, and the head unless it is shared."""
        own = (STYLE,) if params.share_head else (STYLE, CLASSIFIER)
        return super().private(model, config, params) | names_of(model, own)

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedCodeParams) -> bool:
        """Style does not classify: with a shared head all nodes predict alike unless BatchNorm is local."""
        return not params.share_head or config.bn == "local"

    @classmethod
    def scores_as_sent(cls, params: FedCodeParams) -> bool:
        """The first score is that of the node's model as it is."""
        return True

    def start_round(self, server_round: int) -> None:
        """Read the global prototypes and the node's pseudo-domain; round 1 has none (A1)."""
        self._semantic = labelled_prototypes(self)  # G, K' x D, and the class of each, K'
        self._style = self.tensor("style-prototypes")  # P, J x D
        # j; none for a node that has not contributed yet
        self._domain = None if self._style is None else self.place("pseudo-label", len(self._style))

    def start_epoch(self, epoch: int) -> None:
        """Forget the features of the epoch before (``proto_source = last_epoch``)."""
        width, device = self.model.feature_dim, self.setup.device
        self._seen = EpochMeans(self.model.num_classes, device)
        self._style_sum = torch.zeros(width, device=device)

    def own_terms(self, features: Tensor, batch: Batch) -> Terms:
        """Return the terms of Eq. 16 next to cross-entropy (Eq. 15), weighted."""
        p, z_c = self.params, features  # B x D
        weighted: Terms = {}
        sums = p.proto_source == "last_epoch" and p.contrasts
        z_s = None
        if p.loss_needs_style or sums:
            with torch.set_grad_enabled(p.loss_needs_style):
                z_s = self._encode_style(batch.x)  # B x D
        if sums and z_s is not None:
            self._seen.add(z_c, batch.y)
            self._style_sum += z_s.detach().sum(dim=0)
        if p.contrasts:
            weighted |= self._contrasts(z_c, z_s, batch.y)
        if p.decouples and z_s is not None:
            weighted["fdr"] = p.beta * terms.decoupling(z_s, z_c, p.fdr_form)
        return weighted

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute c_n (Eq. 2) and s_n (Eq. 8), and the head where it is to be averaged for scoring.

        Prototypes are made of what ``proto_source`` says (A10).
        """
        sent: Arrays = {}
        if self.params.contrasts:
            if self.params.proto_source == "last_epoch":
                means, draws = self._seen.result()
                counts, style = self.seen_images(draws), self._style_sum / draws.sum()
            else:
                means, counts = self.class_prototypes()  # C x D, C
                of_classes, _ = self.class_means_of(self._encode_style)  # C x D
                style = counts.float() @ of_classes / counts.sum()
            sent = contribution(means, counts) | {"style-prototype": style.cpu().numpy()}
        if self.params.global_model == "average_heads":
            head = self.model.classifier
            sent |= {"head-weight": own_array(head.weight.float()), "head-bias": own_array(head.bias.float())}
        return sent

    def score_test(self, test: ImageSet) -> Scores:
        """Score the node's own model and, as ``global``, its encoder under the mean of all heads (A13)."""
        own = super().score_test(test)
        weight, bias = self.tensor("head-weight"), self.tensor("head-bias")
        if self.params.global_model == "off" or weight is None or bias is None:
            return own

        def predict(x: Tensor) -> Tensor:
            return nn.functional.linear(self.forward(x)[0], weight, bias)

        return replace(own, others={**own.others, "global": self.score(test, predict)[0]})

    def _contrasts(self, z_c: Tensor, z_s: Tensor | None, y: Tensor) -> Terms:
        """Return SemCL (Eq. 11) and StyCL (Eq. 13) as far as there are prototypes for them."""
        p = self.params
        weighted: Terms = {}
        if self._semantic is None or self._style is None:
            return weighted
        centres = (self._style.mean(dim=0), self._semantic[0].mean(dim=0)) if p.center_in_negatives else (None, None)
        if p.use_semcl:
            contrast = terms.semantic_contrast(
                z_c, y, *self._semantic, p.tau, style=self._negative(z_s), centre=centres[0]
            )
            weighted["semcl"] = p.alpha * contrast
        if p.use_stycl and z_s is not None and self._domain is not None:
            contrast = terms.style_contrast(
                z_s, self._domain, self._style, p.tau, semantic=self._negative(z_c), centre=centres[1]
            )
            weighted["stycl"] = p.alpha * contrast
        return weighted

    def _negative(self, z: Tensor | None) -> Tensor | None:
        """Return a sample's other feature as its negative: live, as a constant (A8), or not at all."""
        if z is None or not self.params.style_in_negatives:
            return None
        return z.detach() if self.params.negatives_stop_grad else z

    def _encode_style(self, x: Tensor) -> Tensor:
        """Return z_s, (B, D), in float32."""
        with autocast(self):
            z: Tensor = self.model.get_submodule(STYLE)(x)
        return z.float()

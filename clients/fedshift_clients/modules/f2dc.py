"""F2DC's modules: DFD splits a feature map by a mask, DFC calibrates what the mask rejects.

Paper: "Domain-Skewed Federated Learning with Feature Decoupling and Calibration", Huan Wang, Jun Shen, Jun Yan,
Guansong Pang, CVPR 2026; https://arxiv.org/abs/2603.14238 (equations 3-9).
Reference code: mala-lab/F2DC, versions up to commit c59e322 and commit 7a4f060.

Symbols: f feature map after a stage, A_D and A_C the two convolutional modules, S = A_D(f), M the mask of Eq. 3,
f+ = M f and f- = (1 - M) f, f* the calibrated f-, f~ = f+ + f* the fused map that replaces f; r^F global average
pooling, l = r^F(f) latent features, m the auxiliary linear classifier, L the insertion points.

Deviations: (1) modules are averaged with the weights as in the code, so that one global model is scored
(the paper keeps them on the node: ``local_modules``, ``eval_modules``); (2) no noise in the mask
at test (``eval_noise``; the paper does not say, the code draws); (3) r^F pools also where the network goes on
with FC and ReLU (the CNNs; the paper has residual networks only): Eq. 5 through such layers is least where they
are dead, and they die.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.models.stages import Stages, feature_stages, pooled
from fedshift_clients.modules import f2dc_terms as terms
from fedshift_clients.modules.base import FirstPass, Modules
from fedshift_clients.modules.params import F2DCParams, TestFeature
from fedshift_clients.training.batches import Batch, Terms
from fedshift_core.errors import ConfigError
from fedshift_core.seeding import torch_seed

PART = "decoupling."  # so start the state-dict names of all modules


# --- the modules -----------------------------------------------------------------------------------


def convolutions(width: int, hidden: int, layers: int) -> nn.Sequential:
    """Build A_D or A_C, 3x3 convolutions without bias.

    BatchNorm and ReLU are between them; the shape (B, C, H, W) stays.
    """
    built: list[nn.Module] = [nn.Conv2d(width, hidden, 3, padding=1, bias=False)]
    for width_in, width_out in pairwise([*[hidden] * (layers - 1), width]):
        built += [nn.BatchNorm2d(width_in), nn.ReLU(), nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)]
    return nn.Sequential(*built)


@dataclass(frozen=True)
class Maps:
    """What becomes of a map, all of its shape (B, C, H, W).

    Attributes:
        f: The map.
        plus: f+ = M f.
        correction: (1 - M) A_C(f-), which makes f- to f*; None without A_C.
    """

    f: Tensor
    plus: Tensor
    correction: Tensor | None

    @property
    def minus(self) -> Tensor:
        """f- = (1 - M) f."""
        return self.f - self.plus

    @property
    def star(self) -> Tensor:
        """f* (Eq. 6)."""
        return self.minus if self.correction is None else self.minus + self.correction

    @property
    def fused(self) -> Tensor:
        """f~ = f+ + f*, in which f+ and f- add up to f."""
        return self.f if self.correction is None else self.f + self.correction

    def chosen(self, feature: TestFeature) -> Tensor:
        """Return the map that a configuration names."""
        return {"fused": self.fused, "f_plus": self.plus, "f_minus": self.minus, "f_star": self.star}[feature]

    def latents(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return l+, l- and l*, (B, C) each; r^F is linear, so sums and differences are taken after it."""
        plus, fused = (pooled(f, torch.float32) for f in (self.plus, self.f))
        minus = fused - plus
        return plus, minus, minus if self.correction is None else minus + pooled(self.correction, torch.float32)


class Insertion(nn.Module):
    """A_D, A_C and m after one stage.

    Args:
        width: C of the map, which is d.
        num_classes: Of m.
        params: Which modules, and their shape.
    """

    def __init__(self, width: int, num_classes: int, params: F2DCParams) -> None:
        super().__init__()
        self.decoupler = convolutions(width, params.hidden, params.conv_layers)  # A_D
        corrects = params.use_dfc_loss
        self.corrector = convolutions(width, params.hidden, params.conv_layers) if corrects else None  # A_C
        self.auxiliary = nn.Linear(width, num_classes)  # m
        self._params = params

    def forward(self, f: Tensor, rng: torch.Generator | None) -> Maps:
        """Split and calibrate a map (Eqs 3, 4, 6); without a generator the mask has no noise."""
        noise = None if rng is None else terms.pair_noise(f, self._params.noise, rng)
        mask = terms.soft_mask(self.decoupler(f), noise, self._params.sigma)
        plus = mask * f
        correction = None if self.corrector is None else (1 - mask) * self.corrector(f - plus)
        return Maps(f, plus, correction)

    def logits(self, latent: Tensor) -> Tensor:
        """Return m(l), (B, C), in float32 whatever autocast does."""
        with torch.autocast(latent.device.type, enabled=False):
            return cast(Tensor, self.auxiliary(latent.float()))


class F2DCModel(SplitModel):
    """A model with F2DC's modules after some stages of its encoder.

    The names of encoder and classifier stay; the modules are ``decoupling.stageN``.

    Args:
        model: The plain model; its parts become this one's.
        stages: Its encoder, cut up.
        params: The modules' parameters.
        seed: Of the noise at test.

    Attributes:
        seen: The logits of f~ (B, C), and by insertion l+, l- and l*, (B, d) each.
    """

    def __init__(self, model: SplitModel, stages: Stages, params: F2DCParams, seed: int) -> None:
        super().__init__(model.encoder, model.feature_dim, model.num_classes)
        self.classifier = model.classifier
        self._stages = stages
        self._params = params
        self._seed = torch_seed(seed, "f2dc-test-noise")
        self.train_rng: torch.Generator | None = None
        self._test_rng: torch.Generator | None = None
        self.seen = FirstPass("f2dc")
        last = len(stages.maps)
        self._inserted = (last,) if params.insert_after == "last" else params.insert_after
        self.opens_after = self._inserted[0]
        self.decoupling = nn.ModuleDict()
        for n in self._inserted:
            self.decoupling[f"stage{n}"] = Insertion(stages.widths[n - 1], model.num_classes, params)

    def start_round(self, rng: torch.Generator) -> None:
        """Take this round's noise from ``rng``; it is drawn on the model's device."""
        self.seen.kept = None
        seed = int(torch.randint(2**62, (), generator=rng))
        self.train_rng = torch.Generator(self.classifier.weight.device).manual_seed(seed)

    def train(self, mode: bool = True) -> "F2DCModel":
        """Switch the mode; each scoring draws the same noise, whatever was scored before."""
        if not mode:
            self._test_rng = None
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of the fused map, or of the chosen one at test.

        The first training pass since the last loss terms is kept for them.
        """
        if not self.training and self._params.eval_modules == "none":
            return super().forward(x)
        keep = self.seen.wanted(self)
        rng = self.noise()
        latents: list[tuple[Tensor, Tensor, Tensor]] = []
        h = x
        for n, stage in enumerate(self._stages.maps, start=1):
            h = stage(h)
            if n in self._inserted:
                maps: Maps = self.decoupling[f"stage{n}"](h, rng)
                if keep:
                    latents.append(maps.latents())
                h = maps.fused if self.training or n != self._inserted[-1] else maps.chosen(self._params.test_feature)
        features = self._stages.rest(h)
        logits = self.classifier(features)
        if keep:
            self.seen.kept = logits, latents
        return features, logits

    def noise(self) -> torch.Generator | None:
        """Return what the next pass draws the mask's noise from in this mode; None where it draws none.

        Raises:
            RuntimeError: If the model trains and no round has begun.
        """
        if self.training:
            if self.train_rng is None:
                raise RuntimeError("modules f2dc: call start_round before training")
            return self.train_rng
        if self._params.eval_noise and self._test_rng is None:
            self._test_rng = torch.Generator(self.classifier.weight.device).manual_seed(self._seed)
        return self._test_rng


class F2DCModules(Modules[F2DCParams]):
    """Wraps a plain model and adds the terms ``dfd`` and ``dfc`` of Eq. 9."""

    remakes_model = True

    @property
    def personal(self) -> bool:
        """Whether each node is scored with its own modules."""
        return self.params.active and self.params.eval_modules == "client_mean"

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Put the modules into a plain model. With both switches off there are none and it stays as it is.

        Raises:
            ConfigError: If the model is not plain, or has no such stages.
        """
        if not self.params.active:
            return model
        if type(model) is not SplitModel:
            raise ConfigError(
                f"modules f2dc: the method's model is a {type(model).__name__} with a forward pass of its own; "
                "the modules need a method that leaves the network as it is"
            )
        if plan.num_classes < 2:
            raise ConfigError("modules f2dc: L_DFD needs a wrong class, but there is only one class")
        stages = feature_stages(model.encoder)
        if stages is None:
            raise ConfigError(
                f"modules f2dc: the network {plan.config.name!r} has no feature map (a row of layers with max-pooling "
                "and nn.Flatten, or an encoder with the method feature_stages)"
            )
        wanted = self.params.insert_after
        if wanted != "last" and wanted[-1] > len(stages.maps):
            raise ConfigError(
                f"insert_after: {plan.config.name} has the stages 1 to {len(stages.maps)}, found {list(wanted)}"
            )
        return initialised(plan.seed, "f2dc-modules", lambda: F2DCModel(model, stages, self.params, plan.seed))

    def private(self, model: SplitModel) -> frozenset[str]:
        """Return the modules' names if they stay on the node, else none."""
        if self.params.local_modules == "aggregate":
            return frozenset()
        return frozenset(name for name in model.state_dict() if name.startswith(PART))

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Take this round's noise from ``rng``."""
        if isinstance(model, F2DCModel):
            model.start_round(rng)

    def end_round(self, model: SplitModel) -> None:
        """Let the model refuse to train until the next round."""
        if isinstance(model, F2DCModel):
            model.train_rng = None

    def terms(self, model: SplitModel, batch: Batch) -> Terms:
        """Return lambda1 L_DFD and lambda2 L_DFC, each averaged over the insertions (Eq. 9)."""
        if not isinstance(model, F2DCModel):
            return {}
        p, y = self.params, batch.y
        logits, latents = model.seen.take(len(y))
        weighted, dfd, dfc = Terms(), list[Tensor](), list[Tensor]()
        for insertion, (plus, minus, star) in zip(model.decoupling.values(), latents, strict=True):
            m = cast(Insertion, insertion).logits
            if p.use_dfd_loss and p.lambda1 > 0:
                m_plus, m_minus = m(plus), m(minus)
                wrong = terms.most_confident_wrong(logits if p.y_hat_from == "classifier" else m_minus, y)
                dfd.append(terms.decoupling(plus, minus, m_plus, m_minus, y, wrong, p.tau, self.cross_entropy))
            if p.use_dfc_loss and p.lambda2 > 0:
                dfc.append(self.cross_entropy(m(star), y))  # Eq. 7
        for name, weight, each in (("dfd", p.lambda1, dfd), ("dfc", p.lambda2, dfc)):
            if each:
                weighted[name] = weight * torch.stack(each).mean()
        return weighted

    def forget(self, model: SplitModel) -> None:
        """Let go of the latent features of a training pass."""
        if isinstance(model, F2DCModel):
            model.seen.kept = None

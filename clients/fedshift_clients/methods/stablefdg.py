"""StableFDG client [Park et al., 2023].

Paper: "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", Jungwuk Park, Dong-Jun Han,
Jinho Kim, Shiqiang Wang, Christopher G. Brinton, Jaekyun Moon; NeurIPS 2023, https://arxiv.org/abs/2311.00227.
Reference code: savertm/StableFDG_github at commit 77eac35 (``dassl/modeling/ops``: ``style_insert.py``, ``oma.py``,
``cross_attn.py``; ``dassl/engine/trainer.py``). The text of the paper was not at hand: the code is followed.

Symbols: f map of a stage, mu and sigma its style; alpha the exploration level, lambda ~ Beta(beta, beta); a attention
over the places of the last map.

While a node trains, the map after the first stage is shifted: half of the batch gets styles drawn from another node's,
the other half those of cluster centres of the batch. After the lower stages the batch grows by images of its rarest
classes, whose styles are led away from the mean, and styles are mixed. Features are the network's own and those that
the attention picks. The only loss is cross-entropy.

Deviations: (1) a node's styles are those under the weights that it received, and other nodes get them a round later
(the code asks all nodes for theirs before each round); (2) an image alone of its class in a batch is a partner to
itself (the code takes one of a second, class-balanced batch, which costs a pass); (3) half of a batch is half of its
images, and the batch grows by a share of it (the code: 16 and 32); (4) the styles that a node tells are of its images
as they are, in evaluation mode (the code: augmented, in training mode); (5) places count the same in the network's own
features (the code: 1/49 each).
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedshift_clients.base import DomainClient
from fedshift_clients.losses.styles import blended, with_style
from fedshift_clients.methods import stablefdg_styles as styles
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised, new_head
from fedshift_clients.models.stages import Stages, feature_stages
from fedshift_clients.modules.at_stages import MOST_LOWER
from fedshift_clients.modules.base import AllModules
from fedshift_clients.modules.mixstyle import style
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.methods.stablefdg import StableFDGParams
from fedshift_core.seeding import generator
from fedshift_core.wire.names import CE

STYLE = "style"  # what a node tells, and what it is sent of another node, (2, 2, S)


class Highlighter(nn.Module):
    """The attention over the places of a map.

    Args:
        channels: Of the map.
        width: E of queries and keys.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Conv2d(channels, width, 1), nn.Conv2d(channels, width, 1)
        for layer in (self.query, self.key):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(cast(Tensor, layer.bias))

    def forward(self, f: Tensor, partner: Tensor | None) -> Tensor:
        """Return the features (B, S) that a map (B, S, H, W) has where it counts."""
        query, key = self.query(f), self.key(f)
        with torch.autocast(f.device.type, enabled=False):
            a = styles.attention(query, key, partner)
            return (f.float().flatten(2) * a[:, None]).sum(dim=2)


@dataclass
class Training:
    """What a training pass goes by.

    Attributes:
        rng: Of this round's draws, which are made on the CPU, so that they are the same on every device.
        style: Another node's, (2, 2, S); None: none came.
        labels: Of the batch that comes, with those of images that the pass adds; None: the pass changes nothing.
    """

    rng: np.random.Generator
    style: NDArray[np.float64] | None
    labels: NDArray[np.int64] | None = None


class StableFDGModel(SplitModel):
    """A network whose maps change while it trains, with attention over the last one.

    Names of the encoder stay; ``highlighter`` and, as features are wider, the classifier are its own.

    Args:
        network: The plain one; its encoder becomes this one's.
        stages: Its encoder, cut up.
        params: The method's.
        head: Which one (``model.head``).
    """

    def __init__(self, network: SplitModel, stages: Stages, params: StableFDGParams, head: str) -> None:
        width = network.feature_dim + (stages.widths[-1] if params.attention else 0)
        super().__init__(network.encoder, width, network.num_classes)
        self.highlighter: Highlighter | None = None
        if params.attention:
            self.highlighter = Highlighter(stages.widths[-1], params.attention_width)
            self.classifier = new_head(head, width, network.num_classes)
        else:
            self.classifier = network.classifier
        self.opens_after = 1
        self.training_pass: Training | None = None
        self._stages, self._params = stages, params
        self._explored = min(max(len(stages.maps) - 1, 1), MOST_LOWER)

    def first_styles(self, x: Tensor) -> Tensor:
        """Return the styles of the map after the first stage, which travel, (B, 2 S)."""
        return torch.cat(style(self._stages.maps[0](x).float()), dim=1).flatten(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C); of more rows in a training pass that adds images."""
        plan = self.training_pass if self.training and torch.is_grad_enabled() else None
        if plan is not None and plan.labels is None:
            plan = None
        images, f = len(x), x
        for number, stage in enumerate(self._stages.maps, start=1):
            f = stage(f)
            if plan is not None:
                with torch.autocast(f.device.type, enabled=False):
                    f = self._changed(f, number, plan, grown=len(f) > images)
        features = self._stages.rest(f)
        if self.highlighter is not None:
            partner = None
            if plan is not None and plan.labels is not None:
                partner = torch.from_numpy(styles.next_of_class(plan.labels)).to(f.device)
            picked = self.highlighter(f, partner)
            features = torch.cat([features, picked.to(features.dtype)], dim=1)
        return features, self.classifier(features)

    def _changed(self, f: Tensor, number: int, plan: Training, *, grown: bool) -> Tensor:
        """Return what becomes of the map of a stage, in its own type."""
        made, p = f, self._params
        if number == 1 and plan.style is not None and len(f) > 1 and plan.rng.random() < p.shift:
            made = _shifted(f.float(), plan.style, plan.rng)
        if p.explore > 0 and number <= self._explored and plan.rng.random() < p.explore:
            made = self._mixed(made.float(), plan, add=not grown)
        return made.to(f.dtype)

    def _mixed(self, f: Tensor, plan: Training, *, add: bool) -> Tensor:
        """Mix styles; before that, once in a pass, add images whose styles are explored."""
        assert plan.labels is not None
        mu, sigma = style(f)
        normalised = (f - mu) / sigma  # a gradient goes through the image's own style, as in the code
        to_mu, to_sigma = mu.detach(), sigma.detach()
        number = round(self._params.oversampling * len(f)) if add else 0
        if number:
            places = styles.levelled(plan.labels, number, plan.rng)
            again = torch.from_numpy(places).to(f.device)
            normalised = torch.cat([normalised, normalised[again]])
            to_mu, to_sigma = (styles.explored(v, again, self._params.exploration_level) for v in (to_mu, to_sigma))
            plan.labels = np.concatenate([plan.labels, plan.labels[places]])
        images, alpha = len(normalised), self._params.mix_alpha
        lam = torch.from_numpy(plan.rng.beta(alpha, alpha, images).astype(np.float32)).to(f.device)
        partner = torch.from_numpy(plan.rng.permutation(images)).to(f.device)
        return normalised * blended(to_sigma, to_sigma[partner], lam) + blended(to_mu, to_mu[partner], lam)


def _shifted(f: Tensor, other: NDArray[np.float64], rng: np.random.Generator) -> Tensor:
    """Give half of a batch, the last images, styles of another node, and the first ones cluster centres of its own."""
    with torch.no_grad():
        mu, sigma = style(f)
    given = len(f) // 2
    own = torch.cat([mu, sigma], dim=1).flatten(1).double().cpu().numpy()  # B x 2 S
    kept = styles.centres(own, len(f) - given, rng)
    both = np.split(kept, 2, axis=1), styles.drawn_style(other, given, rng)
    to_mu, to_sigma = (
        torch.from_numpy(np.concatenate(parts).astype(np.float32)).to(f.device)[:, :, None, None]
        for parts in zip(*both, strict=True)
    )
    return with_style(f, (mu, sigma), (to_mu, to_sigma))


class StableFDGClient(DomainClient[StableFDGParams]):
    """Cross-entropy over a batch whose styles change; contributes the node's own."""

    @classmethod
    def check_run(cls, params: StableFDGParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse features that are computed once, of which no map is left."""
        if params.active and model.precompute:
            raise ConfigError("model.precompute=on: stablefdg changes maps within the encoder; set it off")

    @classmethod
    def build_model(cls, plan: Blueprint, params: StableFDGParams) -> SplitModel:
        """Build the network, with FedAvg's weights up to the features, and attention; FedAvg's where all is off.

        Raises:
            ConfigError: If the network has no stages.
        """
        network = super().build_model(plan, params)
        if not params.active:
            return network
        stages = feature_stages(network.encoder)
        if stages is None:
            raise ConfigError(
                f"method stablefdg: the network {plan.config.name!r} has no separate feature maps (a row of layers "
                "with max-pooling and nn.Flatten, or an encoder with the method feature_stages)"
            )
        head = plan.config.head
        return initialised(plan.seed, "stablefdg", lambda: StableFDGModel(network, stages, params, head))

    @classmethod
    def kept_names(
        cls, model: SplitModel, config: ModelConfig, params: StableFDGParams, modules: AllModules
    ) -> frozenset[str]:
        """Refuse modules, whose terms would not know the images that are added."""
        if params.active and modules:
            raise ConfigError("method stablefdg changes maps and adds images to a batch itself: leave out modules")
        return super().kept_names(model, config, params, modules)

    def start_round(self, server_round: int) -> None:
        """Take the node's styles under the received weights, and another node's as the server sent it.

        Raises:
            FedShiftError: If that one is not of this network.
        """
        self._own: Tensor | None = None  # 2 x 2 x S
        if not isinstance(self.model, StableFDGModel):
            return
        other = None
        if self.params.shift > 0:
            # Mean and deviation of the styles of all images of the node, not augmented.
            rows, _ = self.encoded(self.train_set, self.model.first_styles)
            self._own = styles.summary(*rows.chunk(2, dim=1))
            other = self.knowledge.get(STYLE)
            if other is not None and other.shape != self._own.shape:
                raise FedShiftError(f"{STYLE} of shape {other.shape}, this node's has {tuple(self._own.shape)}")
        rng = generator(self.setup.seed, "stablefdg", self.setup.index, server_round)
        self.model.training_pass = Training(rng, None if other is None else other.astype(np.float64))

    def loss(self, batch: Batch) -> Terms:
        """Return the cross-entropy of a batch with the images that are added to it."""
        plan = self.model.training_pass if isinstance(self.model, StableFDGModel) else None
        if plan is None:
            return super().loss(batch)
        plan.labels = batch.y.cpu().numpy()
        try:
            _, logits = self.forward(batch.x)
            y = torch.from_numpy(plan.labels).to(batch.y.device)
        finally:
            plan.labels = None
        return {CE: self.cross_entropy(logits, y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute mean and deviation of the node's styles; of too few images no number."""
        if self._own is None:
            return {}
        few = len(self.train_set) < self.params.least_images
        return {STYLE: self._own[:, :, : 0 if few else None].cpu().numpy()}

"""Networks of an encoder (features) and a linear classifier. The run's seed gives the initial weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.depthwise import quicken
from fedshift_clients.models.projection import Projection, put_into
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.plural import plural
from fedshift_core.registry import imported
from fedshift_core.seeding import torch_seed

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Blueprint:
    """What a node's model is built from.

    Attributes:
        config: Its ``name`` is the node's own network.
        num_classes: C.
        size: Height and width of the images in pixels.
        seed: Of the initial weights.
    """

    config: ModelConfig
    num_classes: int
    size: int
    seed: int


class SplitModel(nn.Module):
    """A network in two parts.

    Attributes:
        encoder: Images (B, 3, H, W) to features (B, D); of either sign, unless the network ends in a ReLU, as ours do.
        classifier: Features (B, D) to logits (B, C).
        feature_dim: D.
        num_classes: C.
        frozen: State-dict names of what never changes (``model.freeze``).
        still: Names of the modules that stay in evaluation mode for it.
        opens_after: The stage, from 1, whose map the model changes or looks at before the encoder goes on; None where
            it does not look into the encoder.
    """

    def __init__(self, encoder: nn.Module, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(feature_dim, num_classes)
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.frozen: frozenset[str] = frozenset()
        self.still: tuple[str, ...] = ()
        self.opens_after: int | None = None

    def train(self, mode: bool = True) -> "SplitModel":
        """Switch the mode of all but what is frozen, whose modules, most of all, are not even looked at."""
        if not self.still:
            super().train(mode)
            return self
        still = {self.get_submodule(name) for name in self.still}
        waiting: list[nn.Module] = [self]
        while waiting:
            module = waiting.pop()
            module.training = mode
            waiting += [child for child in module.children() if child not in still]
        return self

    def hold_still(self) -> None:
        """Put what is frozen into evaluation mode: statistics stay as they are, dropout is off."""
        for name in self.still:
            self.get_submodule(name).eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of images (B, 3, H, W) in one pass."""
        features = self.encoder(x)
        return features, self.classifier(features)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Typed as :meth:`forward`."""
        return cast(tuple[Tensor, Tensor], super().__call__(x))


class DeepHead(nn.Linear):
    """A classifier with something before its linear layer."""

    def before(self, features: Tensor) -> Tensor:
        """Map features (B, D) to what the linear layer is given (B, E)."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> Tensor:
        """Map features (B, D) to logits (B, C)."""
        return F.linear(self.before(features), self.weight, self.bias)


def before_last(classifier: nn.Module, features: Tensor) -> Tensor:
    """Return what a classifier's linear layer is given for features (B, D): these, unless something is before it."""
    return classifier.before(features) if isinstance(classifier, DeepHead) else features


class MLPHead(DeepHead):
    """A hidden layer of H with ReLU, then the linear classifier: D - H - C."""

    def __init__(self, feature_dim: int, num_classes: int, hidden: int) -> None:
        super().__init__(hidden, num_classes)
        self.hidden = nn.Linear(feature_dim, hidden)

    def before(self, features: Tensor) -> Tensor:
        """Map features (B, D) to those of the hidden layer (B, H)."""
        return torch.relu(self.hidden(features))


def new_head(head: str, feature_dim: int, num_classes: int) -> nn.Linear:
    """Return a classifier with weights from torch's global generator, as ``model.head`` says."""
    if head == "linear":
        return nn.Linear(feature_dim, num_classes)
    return MLPHead(feature_dim, num_classes, feature_dim if head == "mlp" else max(feature_dim // 2, 1))


def build(
    name: str, num_classes: int, seed: int, size: int = 32, head: str = "linear", projection: int = 0
) -> SplitModel:
    """Build a model whose initial weights depend on ``seed`` alone.

    Args:
        name: One of ``catalog.NETWORKS``.
        num_classes: C.
        seed: Seed of the initial weights; the global generator is left as it was.
        size: Height and width of the images in pixels.
        head: ``linear``, ``mlp`` or ``mlp-half`` (:func:`new_head`); the encoder is the same with all.
        projection: Width of a trainable layer at the end of the encoder (:class:`Projection`); 0 for none. The weights
            of the encoder's other layers are the same with and without.

    Raises:
        ConfigError: If there is no network of that name, or it takes no images of that size.
    """
    model = _drawn_from(seed, lambda: bare(name, num_classes, size))
    quicken(model)
    if projection:
        put_into(model.encoder, initialised(seed, "projection", lambda: Projection(model.feature_dim, projection)))
        model.feature_dim = projection
        model.classifier = initialised(seed, "projected-head", lambda: nn.Linear(projection, num_classes))
    if head != "linear":
        model.classifier = initialised(seed, "mlp-head", lambda: new_head(head, model.feature_dim, num_classes))
    return model


def bare(name: str, num_classes: int, size: int = 32) -> SplitModel:
    """Return what a network's own function builds, with weights from torch's global generator."""
    made: SplitModel = imported(NETWORKS[name].build)(num_classes, size)
    return made


def initialised(seed: int, purpose: str, make: Callable[[], M]) -> M:
    """Return what ``make`` builds, with initial weights that depend on ``seed`` and ``purpose`` alone.

    For what a method adds to a network: the network's own initial weights stay those of FedAvg.
    """
    return _drawn_from(torch_seed(seed, purpose), make)


def _drawn_from(seed: int, make: Callable[[], M]) -> M:
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed gives the same numbers, seeds every device for good, and keeps the stack of each call.
        torch.default_generator.manual_seed(seed)
        return make()


def batchnorm_names(model: nn.Module) -> frozenset[str]:
    """Return the state-dict names of all BatchNorm parameters and buffers.

    By module type, not by name: BatchNorm inside a Sequential is found too.
    """
    return frozenset(
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    )


class GroupNormThen(nn.GroupNorm):
    """GroupNorm, then what the BatchNorm in whose place it stands did after normalising (:func:`follows`)."""

    def __init__(self, groups: int, channels: int, eps: float, affine: bool, then: Sequence[nn.Module]) -> None:
        super().__init__(groups, channels, eps, affine)
        self.then = nn.Sequential(*then)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, H, W)."""
        return cast(Tensor, self.then(super().forward(x)))


def follows(norm: _BatchNorm) -> list[nn.Module]:
    """Return what a BatchNorm does after normalising, in its order: timm's has dropout and activation within it.

    Raises:
        ConfigError: If it is of another kind, which may do anything.
    """
    if type(norm) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm):
        return []
    within: list[Any] = [getattr(norm, name, None) for name in ("drop", "act")]
    if all(isinstance(module, nn.Module) for module in within):
        return [module for module in within if type(module) is not nn.Identity]
    raise ConfigError(
        f"the network has a {type(norm).__name__}, in whose place nothing can be put; allowed are torch's own "
        "and those with drop and act as timm's BatchNormAct2d has them"
    )


def with_group_norm(model: M, groups: int) -> M:
    """Replace each BatchNorm by GroupNorm. It has the same initial scale 1 and shift 0, and no statistics.

    Wu & He, "Group Normalization", ECCV 2018; in federated learning Hsieh et al., ICML 2020.

    Raises:
        ConfigError: If the channels of a layer cannot be divided so, or a BatchNorm is of an unknown kind.
    """
    for module in list(model.modules()):
        for name, norm in list(module.named_children()):
            if isinstance(norm, _BatchNorm):
                if norm.num_features % groups:
                    raise ConfigError(
                        f"model.groups={groups}: {plural(norm.num_features, 'channel')} of a layer cannot be "
                        "divided into so many"
                    )
                given = (groups, norm.num_features, norm.eps, norm.affine)
                then = follows(norm)
                setattr(module, name, GroupNormThen(*given, then) if then else nn.GroupNorm(*given))
    return model


def set_training(model: nn.Module, *, freeze_batchnorm: bool) -> None:
    """Put the model in training mode; frozen BatchNorm keeps its statistics and its scale and shift."""
    model.train()
    if freeze_batchnorm:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
                module.requires_grad_(False)

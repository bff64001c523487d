"""What makes runs of tests quicker without another line of the product: what is repeated is made once in a process."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache

import pytest
import torch

from fedshift.lab.pages.report import maps
from fedshift_clients.models import networks
from fedshift_datasets.base import ImageSet, Split
from fedshift_datasets.sets import handwritten


def _built_once(bare: Callable[..., networks.SplitModel]) -> Callable[..., networks.SplitModel]:
    """Build a network once for each state of the generator, and leave the generator as building it would."""

    @lru_cache(maxsize=16)
    def made(name: str, num_classes: int, size: int, state: bytes) -> tuple[networks.SplitModel, torch.Tensor]:
        return bare(name, num_classes, size), torch.get_rng_state()

    def built(name: str, num_classes: int, size: int = 32) -> networks.SplitModel:
        if torch.empty(0).device.type != "cpu" or name not in OURS:
            return bare(name, num_classes, size)
        model, after = made(name, num_classes, size, torch.get_rng_state().numpy().tobytes())
        torch.set_rng_state(after)
        return copy.deepcopy(model)

    return built


#: Networks of this project: building them has no other effect, and none is large.
OURS = frozenset({"cnn", "cnn_bn", "small_cnn", "resnet10", "resnet18"})


def _drawn_once(draw: Callable[..., ImageSet]) -> Callable[..., ImageSet]:
    kept = cache(draw)

    def drawn(domain: str, split: Split, seed: int, *, masks: bool = False) -> ImageSet:
        images = kept(domain, split, seed, masks=masks)
        return images.but(x=images.x.copy(), y=images.y.copy())

    return drawn


@contextmanager
def quicker() -> Iterator[None]:
    """Build networks and draw digits once; short t-SNE."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "bare", _built_once(networks.bare))
        patch.setattr(handwritten, "draw", _drawn_once(handwritten.draw))
        patch.setattr(maps, "TSNE_STEPS", 250)
        yield

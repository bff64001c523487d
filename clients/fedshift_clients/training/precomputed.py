"""``model.precompute``: what is frozen and comes before all that trains is computed once for each image and view.

It is computed in evaluation mode, in batches of a fixed size with one thread each, so that the numbers of an image
depend neither on the other images nor on the number of cores. All processes, runs, seeds and methods of a machine share
them (:mod:`fedshift_datasets.io.feature_store`).
"""

import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.shortcut import Shortcut, depth_of
from fedshift_clients.models.unet import DecoderHead
from fedshift_clients.training import precision
from fedshift_clients.training.memory import one_arena
from fedshift_clients.training.settings import AUGMENTATION, ImageConfig, ModelConfig
from fedshift_core.arrays import digest
from fedshift_core.errors import ConfigError
from fedshift_datasets.io.feature_store import Done, FeatureStore, Kind
from fedshift_datasets.listing import ImageSet

BATCH = 32  # images that are computed together; a smaller batch is filled up
KEPT_SETS = 32  # sets of images whose rows are known without another look
PLAIN = 0  # the view of an image as it is; augmented views are counted from 1
_SAID = 10.0  # seconds from one line about the work to the next
log = logging.getLogger("fedshift")
T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """What is kept of the images of a set, in one view.

    Attributes:
        values: All rows of the store (N, ...), mapped into memory.
        places: Which of them are those of the set (n,).
        device: Where the model computes.
        layout: How maps lie in memory.
    """

    values: Tensor
    places: Tensor
    device: torch.device
    layout: torch.memory_format

    def take(self, index: Tensor | slice) -> Tensor:
        """Return features (B, D) or maps (B, C, h, w) of images of the set, float32, on the device."""
        rows = self.values.index_select(0, self.places[index]).to(self.device, torch.float32)
        return rows.contiguous(memory_format=self.layout) if rows.ndim == 4 else rows


class FrozenFeatures:
    """What the frozen beginning of a model makes of images.

    Attributes:
        depth: How much is computed once: ``encoder``, or ``stages:N``.
    """

    depth: str

    def __init__(
        self,
        model: SplitModel,
        config: ModelConfig,
        images: ImageConfig,
        of_products: precision.Format,
        layout: torch.memory_format,
        size: int,
        threads: int = 0,
    ) -> None:
        """Take the beginning of a model.

        Args:
            model: On its device, with what is frozen.
            config: What is said of it.
            images: Augmentation and normalisation.
            of_products: Number format in which it computes.
            layout: How maps lie in memory.
            size: Height and width of the images in pixels.
            threads: Batches that are computed at a time; 0 for one a core.

        Raises:
            ConfigError: If nothing can be computed once.
        """
        self._keep(model, config, images, layout)
        self._model, self._size, self._precision = model, size, of_products
        self._workers = (threads or len(os.sched_getaffinity(0))) if self._device.type == "cpu" else 1
        self._shortcut = Shortcut(model, depth_of(model, config.freeze), size)
        self.depth = self._shortcut.depth
        state = model.state_dict()
        self._tensors = {name: state[name] for name in self._shortcut.names}
        self._shortcut.close()

    def _keep(self, model: SplitModel, config: ModelConfig, images: ImageConfig, layout: torch.memory_format) -> None:
        """Keep what does not depend on where the numbers come from; nothing is known of an image yet."""
        self._config, self._images, self._layout = config, images, layout
        self._device = next(model.parameters()).device
        self._pipeline = Pipeline(images, self._device, layout)
        self._stores: dict[int, FeatureStore] = {}
        self._about: dict[str, Any] = {}
        self._tensors = {}
        self._version = 0
        self._joined_maps = isinstance(model.classifier, DecoderHead)  # its features are maps
        self._shape: tuple[int, ...] = ()
        self._rows: OrderedDict[tuple[int, int], tuple[ImageSet, Rows]] = OrderedDict()

    def renew(self) -> None:
        """Forget the stores: the model has other weights."""
        self._stores, self._about = {}, {}
        self._rows.clear()

    def of(self, images: ImageSet, view: int = PLAIN, done: Done | None = None) -> Rows:
        """Return what is kept of images, after what is missing has been computed.

        Args:
            images: The images.
            view: 0: as they are; from 1: which augmented view.
            done: Called with the progress of the work; by default it is logged.

        Raises:
            ConfigError: If the method has changed what is frozen.
            DataError: If it cannot be kept.
        """
        self._check_unchanged()
        key = (id(images), view)
        if key not in self._rows:
            store = self._store(view)
            places = store.places(
                images.marks, lambda index: self._computed(images, index, view), done or self.said(len(images))
            )
            values = torch.from_numpy(store.rows).view(getattr(torch, self._kept_in(len(self._shape))))
            # With the images: while they live, no others have their id.
            self._rows[key] = images, Rows(values, torch.from_numpy(places), self._device, self._layout)
            if len(self._rows) > KEPT_SETS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(key)
        return self._rows[key][1]

    def _check_unchanged(self) -> None:
        """Refuse weights of the beginning that are not those of the kept features; torch counts changes in place."""
        version = sum(tensor._version for tensor in self._tensors.values())
        if version == self._version:
            return
        if self._about and self._digest() != self._about["weights"]:
            raise ConfigError(
                f"model.precompute=on: the method changes what is frozen of {self._config.name} while it runs; allowed "
                "is model.precompute=off"
            )
        self._version = version

    def _digest(self) -> str:
        return digest({name: tensor.cpu().numpy() for name, tensor in self._tensors.items()})

    def missing(self, images: ImageSet, view: int = PLAIN) -> int:
        """Return how many of the images have to be computed yet."""
        return self._store(view).missing(images.marks)

    def drawn(self, images: ImageSet, index: Tensor, rng: torch.Generator) -> Tensor:
        """Return a batch in which each image has one of its kept views; nothing is drawn where there is but one."""
        number = self._images.cached_views
        if number == 1:
            return self.of(images, PLAIN).take(index)
        views = torch.randint(1, number + 1, (len(index),), generator=rng)
        parts = [(view, torch.nonzero(views == view).flatten()) for view in sorted(set(views.tolist()))]
        taken = torch.cat([self.of(images, view).take(index[at]) for view, at in parts])
        order = torch.cat([at for _, at in parts])
        return taken[torch.argsort(order).to(taken.device)]

    def _store(self, view: int) -> FeatureStore:
        if view not in self._stores:
            about = self._described()
            if view != PLAIN:
                augmentation = {key: getattr(self._images, key) for key in (*AUGMENTATION, "jitter_p")}
                about = about | {"view": view, "augmentation": augmentation}
            name = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self._config.name)
            dtype = "float32" if self._kept_in(len(self._shape)) == "float32" else "int16"  # NumPy has no bfloat16
            kind = Kind(f"{name}-{self.depth.replace(':', '')}", about, self._shape, dtype)
            self._stores[view] = FeatureStore(kind, int(self._config.precompute_gb * 1e9))
        return self._stores[view]

    def _kept_in(self, ndim: int) -> str:
        """Return the number format of what is kept of an image, which has so many axes."""
        return "float32" if ndim == 1 and not self._joined_maps else self._config.precompute_maps

    def _described(self) -> dict[str, Any]:
        """Return all that decides the numbers; what the beginning makes of random images stands for its code."""
        if not self._about:
            weights = self._digest()
            images = torch.randint(
                0, 256, (2, self._size, self._size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
            ).to(self._device)
            (probe,) = self._each([images], lambda x: self._of_batch(self._pipeline.plain(x), fill=False))
            self._shape = probe.shape[1:]
            kept = self._kept_in(len(self._shape))
            self._about = {
                "network": self._config.name,
                "depth": self.depth,
                "weights": weights,
                "size": self._size,
                "mean": self._images.mean,
                "std": self._images.std,
                "arithmetic": self._precision,
                "kept": kept,
                "probe": hashlib.sha256(probe.tobytes()).hexdigest(),
            }
        return self._about

    def _computed(self, images: ImageSet, index: NDArray[np.int64], view: int) -> NDArray[Any]:
        """Return the rows of the images at ``index``."""
        cuts = [index[start : start + BATCH] for start in range(0, len(index), BATCH)]

        def one(cut: NDArray[np.int64]) -> NDArray[Any]:
            x = torch.from_numpy(images.x[cut]).to(self._device)
            return self._of_batch(
                self._pipeline.plain(x) if view == PLAIN else self._augmented(x, images.marks[cut], view)
            )

        return np.concatenate(self._each(cuts, one))

    def _each(self, batches: Sequence[T], compute: Callable[[T], NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute batches with the beginning open, one core each, several at a time where there are cores."""
        threads = torch.get_num_threads()
        try:
            with self._shortcut.opened():
                if min(self._workers, len(batches)) == 1:
                    torch.set_num_threads(1)
                    return [compute(batch) for batch in batches]
                one_arena()
                with ThreadPoolExecutor(self._workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                    return list(pool.map(compute, batches))
        finally:
            torch.set_num_threads(threads)

    def _augmented(self, x: Tensor, marks: NDArray[np.uint8], view: int) -> Tensor:
        """Return images (B, H, W, 3) as the network sees them in an augmented view (B, 3, H, W).

        Each image is augmented by a generator of its own, which its mark and the view decide alone.
        """
        views = []
        for image, mark in zip(x, marks, strict=True):
            seed = hashlib.sha256(mark.tobytes() + f"view {view}".encode()).digest()[:8]
            rng = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
            views.append(self._pipeline.train(image[None], rng))
        return torch.cat(views).contiguous(memory_format=self._layout)

    @torch.no_grad()
    def _of_batch(self, x: Tensor, *, fill: bool = True) -> NDArray[Any]:
        """Return the rows of prepared images (at most BATCH, 3, H, W); a smaller batch is filled up."""
        full = x
        if fill and len(x) < BATCH:
            full = x.new_zeros(BATCH, *x.shape[1:]).contiguous(memory_format=self._layout)
            full[: len(x)] = x
        with precision.autocast(self._precision, self._device):
            kept = self._shortcut.beginning(full)[: len(x)].float().contiguous()
        form = self._kept_in(kept.ndim - 1)
        bits = kept.to(getattr(torch, form)).view(torch.float32 if form == "float32" else torch.int16)
        return bits.cpu().numpy()

    def said(self, of: int) -> Done:
        """Return what writes to the log, every ten seconds, how far the work on so many images is."""
        began = last = time.monotonic()

        def said(done: int, _: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _SAID:
                last = now
                left = (now - began) / done * (of - done)
                log.info(
                    "features: %s of %s images, about %.0f s left",
                    f"{done:,}",
                    f"{of:,}",
                    left,
                    extra={"event": "features"},
                )

        return said

    def check_room(self, number: int) -> None:
        """Refuse to compute so many rows if there is no room for them.

        Raises:
            DataError: With the remedy.
        """
        self._store(PLAIN).check_room(number)

"""From images to batches: as they are, augmented, or what is kept of them; of images in order, drawn, or chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.batches import Batch, cut, with_domains
from fedshift_clients.training.inputs import ClientSetup, Normalizer
from fedshift_clients.training.model_cache import Workbench
from fedshift_datasets.base import ImageSet


class ImageBatches:
    """The part of a client that makes batches of images; attributes are those of ``NodeTools``."""

    #: Whether a loss looks at the images themselves, ``batch.images``, also where their features are kept.
    reads_images: ClassVar[bool] = False

    setup: ClientSetup
    train_set: ImageSet
    normalizer: Normalizer | None
    _bench: Workbench

    def plain_batches(
        self, images: ImageSet, least: int = 1, size: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield normalised images (B, 3, H, W) and labels (B,), in their order, not augmented.

        Args:
            images: The images.
            least: How many images a batch has at least, if there are so many: the last one takes from that before, or
                joins it.
            size: How many it has; None for ``images.eval_batch``.
        """
        size = size or self.setup.images.eval_batch
        frozen = self._bench.frozen
        rows = None if frozen is None else frozen.of(images)
        pixels, labels = self._bench.images.get(images, labels_only=rows is not None)
        starts = list(range(0, len(images), size))
        if len(starts) > 1:
            starts[-1] = min(starts[-1], len(images) - least)
            if starts[-1] - starts[-2] < least:  # batches of two: one and two would be left, so it joins them
                del starts[-1]
        for start, stop in zip(starts, [*starts[1:], len(images)], strict=False):  # of no image: no batch
            y = labels[start:stop].to(torch.int64, copy=True)  # the batch's own: the labels are those of all that comes
            if rows is not None:
                yield rows.take(slice(start, stop)), y
                continue
            x = self._bench.pipeline.plain(pixels[start:stop].to(self.setup.device))
            yield x if self.normalizer is None else self.normalizer.plain(x), y

    def augmented_batches(
        self,
        images: ImageSet,
        batch_size: int,
        views: int,
        order: torch.Generator,
        first: torch.Generator,
        second: torch.Generator,
        epoch: int = 0,
        pipeline: Pipeline | None = None,
    ) -> Iterator[Batch]:
        """Yield all images once, in random order.

        Args:
            images: With labels, which are passed on as they are.
            batch_size: Images per batch; a last batch of one image joins the one before.
            views: Augmented views of each image, 1 or 2; 0 for the image as it is.
            order: CPU generator of the order.
            first: CPU generator of the first view.
            second: CPU generator of the second view.
            epoch: Passed on.
            pipeline: What augments them; by default as the section ``images`` says.
        """
        permutation = torch.randperm(len(images), generator=order)
        places = cut(permutation, batch_size)
        batches = self.chosen_batches(images, places, views, first, second, epoch, pipeline)
        yield from batches if images.domains is None else with_domains(batches, places, images.domains)

    def chosen_batches(
        self,
        images: ImageSet,
        places: Sequence[Tensor],
        views: int,
        first: torch.Generator,
        second: torch.Generator,
        epoch: int = 0,
        pipeline: Pipeline | None = None,
    ) -> Iterator[Batch]:
        """As :meth:`augmented_batches`, of the images at these places, (B,) each and not empty."""
        batches = self._as_configured(images, places, views, first, second, epoch, pipeline)
        yield from (
            batches if self.normalizer is None else map(self.normalizer.augmented if views else self._plain, batches)
        )

    def _plain(self, batch: Batch) -> Batch:
        assert self.normalizer is not None
        return replace(batch, x=self.normalizer.plain(batch.x))

    def _as_configured(
        self,
        images: ImageSet,
        places: Sequence[Tensor],
        views: int,
        first: torch.Generator,
        second: torch.Generator,
        epoch: int,
        pipeline: Pipeline | None,
    ) -> Iterator[Batch]:
        """Yield the batches of :meth:`chosen_batches`, normalised by the configuration's mean and std."""
        frozen = self._bench.frozen
        pixels, labels = self._bench.images.get(images, labels_only=frozen is not None)
        pipeline, device = pipeline or self._bench.pipeline, self.setup.device
        for index in (place.to(pixels.device) for place in places):
            if frozen is not None:
                yield frozen.batch(images, index, labels, views, (first, second), epoch, pixels=self.reads_images)
                continue
            x, y = torch.index_select(pixels, 0, index).to(device), labels[index.to(device)]
            if views == 2:
                yield Batch(pipeline.train(x, first), y, epoch, pipeline.train(x, second))
                continue
            prepared, moved = pipeline.with_targets(x, y, first) if views else (pipeline.plain(x), y)
            yield Batch(prepared, moved.long(), epoch)

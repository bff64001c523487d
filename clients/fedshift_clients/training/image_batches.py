"""From images to batches: as they are, augmented, or what is kept of them; of images in order, drawn, or chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from fedshift_clients.images.augment import Pipeline
from fedshift_clients.training.batches import Batch, cut
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
        places = cut(torch.randperm(len(images), generator=order), batch_size)
        yield from self.chosen_batches(images, places, views, first, second, epoch, pipeline)

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
        frozen, device = self._bench.frozen, self.setup.device
        pixels, labels = self._bench.images.get(images, labels_only=frozen is not None)
        pipeline = pipeline or self._bench.pipeline
        other = shown = domains = None
        for place in places:
            index, y = place.to(pixels.device), labels[place.to(device)]
            if frozen is None:
                raw = torch.index_select(pixels, 0, index).to(device)
                x, y = pipeline.with_targets(raw, y, first) if views else (pipeline.plain(raw), y)
                if views == 2:
                    other = pipeline.train(raw, second)
            else:
                x = frozen.drawn(images, index, first) if views else frozen.of(images).take(index)
                if views == 2:
                    other = frozen.drawn(images, index, second)
                if self.reads_images:
                    shown = pipeline.plain(torch.from_numpy(images.x[index.numpy()]).to(device))
            if images.domains is not None:
                domains = torch.from_numpy(images.domains)[place].to(device)
            batch = Batch(x, y.long(), epoch, other, shown, domains)
            if self.normalizer is not None:
                batch = self.normalizer.augmented(batch) if views else replace(batch, x=self.normalizer.plain(x))
            yield batch

"""The images of a domain before they are decoded: image files, pieces of archives, labels."""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from fedshift_core.plural import plural
from fedshift_datasets.arrays import Indices, Numbers, Pixels, Reals, Texts
from fedshift_datasets.io.kept import Kept

T = TypeVar("T", bound=np.generic)
MARK = 16  # bytes by which an image is known
SLICE = "#slice="  # in the name of an image that is a slice of a volume: between its file and its number
IGNORED = 255  # the value of a mask's pixels that count nowhere


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images of one domain and split.

    Attributes:
        x: Images, shape (N, H, W, 3), uint8, RGB; read-only.
        y: Labels, shape (N,), int64, in ``0 .. classes - 1``; read-only.
        of_source: Returns the images' marks, where the images are a part of a set that knows them already.
        groups: The patient, or another group, of each image, shape (N,), texts; an empty one is an image on its own.
            None if nobody says. They stay on the node.
        domains: The domain of each image, shape (N,), int64, its place among the run's domains. None where all are of
            one, or nobody says.
        kept_in: The file of the cache that has exactly these images, where there is one.
        masks: The class of each pixel, shape (N, H, W), uint8, read-only; :data:`IGNORED` where nobody says. ``y`` is
            then the largest class of each image besides class 0, the background, and 0 where there is none. None of
            images that are classified as a whole.
        spacing: Millimetres from one pixel of each image to the next, down and across, shape (N, 2), float64; NaN where
            they are unknown. None if nobody says. They stay on the node.
    """

    x: Pixels
    y: Indices
    of_source: Callable[[], Pixels] | None = None
    groups: Texts | None = None
    domains: Indices | None = None
    kept_in: Kept | None = None
    masks: Pixels | None = None
    spacing: Reals | None = None

    def __post_init__(self) -> None:
        """Let images and labels only be read: all nodes, rounds and runs of a process share their memory."""
        for name in ("x", "y", "domains", "masks"):
            if isinstance(array := getattr(self, name), np.ndarray):
                object.__setattr__(self, name, _read_only(array))

    @functools.cached_property
    def marks(self) -> Pixels:
        """The first :data:`MARK` bytes of the SHA-256 of each image's pixels, shape (N, MARK).

        They are computed at the first use, once for a set and all its parts.
        """
        if self.of_source is not None:
            return self.of_source()
        marks = b"".join(hashlib.sha256(np.ascontiguousarray(image).data).digest()[:MARK] for image in self.x)
        return np.frombuffer(marks, np.uint8).reshape(len(self), MARK)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Say how many images there are, and show none: this ends up in messages and logs."""
        return f"ImageSet({plural(len(self), 'image')})"

    def select(self, index: Indices | slice) -> "ImageSet":
        """Return the images at ``index`` (shape (n,)), in that order; their pixels are copied when they are used."""

        def part(array: NDArray[T] | None) -> Any:
            return None if array is None else array[index]

        return _Later(
            lambda: self.x[index],
            lambda: part(self.masks),
            y=_read_only(self.y[index]),
            groups=part(self.groups),
            domains=part(self.domains),
            spacing=part(self.spacing),
            of_source=lambda: self.marks[index],
        )

    def labelled(self, labels: Indices) -> "ImageSet":
        """Return the same images with other labels (N,)."""
        return self.but(y=labels, of_source=lambda: self.marks)

    def but(self, **changes: Any) -> "ImageSet":
        """Return the same images with other attributes, in no file."""
        kept = {name: getattr(self, name) for name in ("x", "y", "groups", "domains", "masks", "spacing")}
        return ImageSet(**kept | changes)

    @property
    def targets(self) -> Numbers:
        """The target of each image, (N, ...): its mask or, where images have none, its label ``y``."""
        return self.y if self.masks is None else self.masks


def _read_only(array: NDArray[T]) -> NDArray[T]:
    view = array.view()
    view.flags.writeable = False
    return view


class _Later(ImageSet):
    """Images of other sets, whose pixels nobody may ask for (``model.precompute``); masks likewise."""

    def __init__(self, pixels: Callable[[], Pixels], masks: Callable[[], Pixels | None], **known: Any) -> None:
        vars(self).update(known, _pixels=pixels, _masks=masks)

    @functools.cached_property
    def x(self) -> Pixels:
        """Images, shape (n, H, W, 3), uint8, RGB."""
        pixels: Pixels = vars(self).pop("_pixels")()
        return _read_only(pixels)

    @functools.cached_property
    def masks(self) -> Pixels | None:
        """The class of each pixel, shape (n, H, W), uint8; None where images have none."""
        masks: Pixels | None = vars(self).pop("_masks")()
        return None if masks is None else _read_only(masks)


def joined(sets: Sequence[ImageSet], domains: Sequence[int] | None = None) -> ImageSet:
    """Return the images of several sets, one set after the other; their pixels are copied when they are used.

    Args:
        sets: The sets.
        domains: The domain of each set, its place among the run's domains; None if nobody says.
    """

    def masks() -> Pixels | None:
        found = [each.masks for each in sets if each.masks is not None]  # all have them or none
        return np.concatenate(found) if found else None

    of_each = None if domains is None else np.repeat(np.array(domains, np.int64), [len(each) for each in sets])
    return _Later(
        lambda: np.concatenate([each.x for each in sets]),
        masks,
        y=_read_only(np.concatenate([each.y for each in sets])),
        domains=of_each,
        groups=_stated(sets, "groups", np.array([""])),
        spacing=_stated(sets, "spacing", np.full((1, 2), np.nan)),
        of_source=lambda: np.concatenate([each.marks for each in sets]),
    )


def _stated(sets: Sequence[ImageSet], name: str, blank: NDArray[T]) -> NDArray[T] | None:
    """Return what sets state of their images, and ``blank`` (1, ...) of each image of a set that states nothing."""
    parts = [getattr(each, name) for each in sets]
    if all(part is None for part in parts):
        return None
    blanks = (blank.repeat(len(each), axis=0) for each in sets)
    return np.concatenate([none if part is None else part for part, none in zip(parts, blanks, strict=True)])


def main_class(masks: Pixels, classes: int) -> Indices:
    """Return the largest class of each mask besides the background, 0 where there is none, (N,).

    Args:
        masks: (N, H, W); :data:`IGNORED` counts nowhere.
        classes: C, with the background.
    """
    held = [np.bincount(mask.ravel(), minlength=IGNORED + 1)[:classes] for mask in masks]
    counts = np.array(held, np.int64).reshape(len(masks), classes)
    largest = counts[:, 1:].argmax(axis=1) + 1 if classes > 1 else np.zeros(len(masks), np.int64)
    return np.where(counts[:, 1:].any(axis=1), largest, 0)


class Item(NamedTuple):
    """One encoded image: a file, or a piece of an uncompressed tar.

    Attributes:
        path: The image file, or the tar.
        name: Its name in errors: its path, or its name inside the tar.
        offset: Where the image begins in ``path``, in bytes.
        length: Its length in bytes; -1 for the whole file.
        mask: The file of its mask; empty if it lacks one, None if nobody asks for masks.
        classes: The number of classes that a mask may have.
    """

    path: str
    name: str
    offset: int = 0
    length: int = -1
    mask: str | None = None
    classes: int = 0


def file_of(name: str) -> str:
    """Return the file of an image, which may be a slice of a volume, by its name."""
    return name.partition(SLICE)[0]


class Files(Sequence[Item]):
    """Images that are a file each, or a slice of one, as a text each; an item is made when it is asked for.

    Attributes:
        names: The files' paths, of slices with their numbers, which are their names in errors too.
        masks: As ``Item.mask``; None if nobody asks for masks.
        classes: As ``Item.classes``.
    """

    def __init__(self, names: Iterable[str], masks: Iterable[str] | None = None, classes: int = 0) -> None:
        self.names = tuple(names)
        self.masks = None if masks is None else tuple(masks)
        self.classes = classes

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> "Files": ...
    def __getitem__(self, place: int | slice) -> "Item | Files":
        """Return the image at a place, or some of them."""
        if isinstance(place, slice):
            return self.at(range(len(self))[place])
        name, mask = self.names[place], None if self.masks is None else self.masks[place]
        return Item(file_of(name), name, mask=mask, classes=self.classes)

    def at(self, places: Iterable[int]) -> "Files":
        """Return the images at some places, in that order."""
        chosen = tuple(places)
        masks = None if self.masks is None else [self.masks[place] for place in chosen]
        return Files([self.names[place] for place in chosen], masks, self.classes)

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same images in the same order."""
        if isinstance(other, Files):
            return (self.names, self.masks, self.classes) == (other.names, other.masks, other.classes)
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        """Say how many images there are: they may be very many."""
        return f"Files({plural(len(self), 'image')})"


@dataclass(frozen=True)
class Listing:
    """All images of one domain (or of one split of it), in a fixed order.

    Attributes:
        items: The encoded images; :class:`Files` where each is a file.
        labels: Their labels, shape (N,), int64.
        groups: As ``ImageSet.groups``.
    """

    items: Sequence[Item]
    labels: Indices
    groups: Texts | None = None

    def __len__(self) -> int:
        return len(self.items)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each image in errors."""
        return self.items.names if isinstance(self.items, Files) else tuple(item.name for item in self.items)

    @functools.cached_property
    def sources(self) -> tuple[str, ...]:
        """The paths of the files that it reads, each once."""
        files = self.names if isinstance(self.items, Files) else [item.path for item in self.items]
        return tuple(dict.fromkeys(map(file_of, (*files, *filter(None, self.masks or ())))))

    @property
    def masks(self) -> tuple[str, ...] | None:
        """The files of the images' masks; None if nobody asks for masks."""
        return self.items.masks if isinstance(self.items, Files) else None

    @property
    def classes(self) -> int:
        """The number of classes that masks may have."""
        return self.items.classes if isinstance(self.items, Files) else 0

    def select(self, index: Indices) -> "Listing":
        """Return the images at ``index`` (shape (n,)), in that order."""
        groups = None if self.groups is None else self.groups[index]
        places = index.tolist()
        if isinstance(self.items, Files):
            return Listing(self.items.at(places), self.labels[index], groups)
        return Listing(tuple(self.items[place] for place in places), self.labels[index], groups)


@dataclass(frozen=True)
class Arrays:
    """Images in arrays (npz, idx, mat, pickled batches), not in encoded files.

    Attributes:
        files: The files that decide the content.
        read: Reads them at their own size; the caller resizes them.
        mark: What decides the labels besides the files' bytes, such as the run's classes; otherwise empty.
        groups: As ``ImageSet.groups``.
    """

    files: tuple[Path, ...]
    read: Callable[[], ImageSet]
    mark: str = ""
    groups: Texts | None = field(default=None, compare=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """Their paths."""
        return tuple(map(str, self.files))


ImageFiles = Listing | Arrays

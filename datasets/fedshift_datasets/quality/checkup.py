"""Checks a data set before training: counts, sizes, broken files, copies."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import numpy as np

from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_datasets import catalog
from fedshift_datasets.base import OWN_SPLITS, SPLITS, Dataset, Form, ImageSet, Source, Split
from fedshift_datasets.io import cache, corrupt_files, decode, patients, pool
from fedshift_datasets.io.corrupt_files import Broken
from fedshift_datasets.io.pictures import Header
from fedshift_datasets.listing import IGNORED, ImageFiles, Item, Listing, main_class
from fedshift_datasets.quality import duplicates, exact_copies, findings
from fedshift_datasets.quality.duplicates import Sketches
from fedshift_datasets.quality.exact_copies import Copies, Role
from fedshift_datasets.quality.pixel_statistics import PixelStatistics

_LOOK = 64  # pixels of images of a part that cannot be decoded completely

#: Decodes one part into the cache: ``prepare(domain, split)``.
Prepare = Callable[[str, Split], ImageSet]


@dataclass(frozen=True)
class Part:
    """One domain and split.

    Attributes:
        domain: Its name.
        split: Which split.
        counts: Number of images by class, in the order of labels, without broken ones.
        sizes: Number of images by original width and height in pixels; empty for arrays.
        modes: Number of images by Pillow's mode; empty for arrays.
        broken: Images that cannot be read.
        names: A name of each readable image for messages.
        sketches: Sketches of these images for comparison.
        turned: Number of them with an EXIF orientation, applied or not.
        pixels: Statistics of their pixels, as they are decoded.
        showing: Number of images that show each class: of masks more than those of which it is the largest.
    """

    domain: str
    split: Split
    counts: tuple[int, ...]
    sizes: Mapping[tuple[int, int], int]
    modes: Mapping[str, int]
    broken: tuple[Broken, ...]
    names: tuple[str, ...]
    sketches: Sketches
    turned: int = 0
    pixels: PixelStatistics | None = None
    showing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Copy:
    """Two nearly equal images in different splits of a domain or in different domains."""

    first: tuple[str, Split, str]
    second: tuple[str, Split, str]

    @property
    def across(self) -> str:
        """``domains`` or ``splits``."""
        return "domains" if self.first[0] != self.second[0] else "splits"


@dataclass(frozen=True)
class Checkup:
    """The results of the check.

    Attributes:
        classes: Class names.
        parts: By domain, then by split.
        copies: Nearly equal images in different parts.
        exact: Exact copies among a user's own images; None if they were not searched.
        exact_lines: Lines on exact copies.
        patient_lines: Lines on patients (:func:`fedshift_datasets.io.patients.lines`).
        patients: Number of known patients by domain.
        inside: Number of nearly equal pairs within a part.
        complete: False if there were too many similar images to compare all.
    """

    classes: tuple[str, ...]
    parts: tuple[Part, ...]
    copies: tuple[Copy, ...] = ()
    exact: Copies | None = None
    exact_lines: tuple[str, ...] = ()
    patient_lines: tuple[str, ...] = ()
    patients: Mapping[str, int] = field(default_factory=dict)
    inside: int = 0
    complete: bool = True

    def empty(self) -> list[tuple[str, Split, str]]:
        """Return the domains and splits without an image of a class, with the class."""
        return [
            (part.domain, part.split, kind)
            for part in self.parts
            for kind, number in zip(self.classes, part.showing, strict=True)
            if not number
        ]


def check(known: Dataset, kind: str, domains: Sequence[str], source: Source, form: Form, prepare: Prepare) -> Checkup:
    """Return the results of a check of all images of a data set.

    Args:
        known: The data set as the run has it.
        kind: The name of the data set that reads the images.
        domains: The domains to check.
        source: Where the images are.
        form: How they become squares of 8 bits a channel.
        prepare: Decodes a part into the cache.

    Raises:
        DataError: If a domain is missing, none of its images can be read, or the cache cannot be written.
    """
    looked_at = [
        _part(known, domain, split, image_files, source, form, prepare)
        for domain in domains
        for split, image_files in _by_split(known, kind, domain, source).items()
    ]
    parts = [part for part, _ in looked_at]
    exact, lines = _exact(looked_at) if known.own is not None else (None, ())
    used = [patients.Part(part.domain, part.split, images) for part, images in looked_at]
    known_patients = {domain: len(uses) for domain, uses in patients.uses_of_patients(used).items()}
    copies, inside, complete = _near(parts)
    of_patients = tuple(patients.lines(used)), known_patients
    return Checkup(known.classes, tuple(parts), copies, exact, lines, *of_patients, inside, complete)


def _near(parts: Sequence[Part]) -> tuple[tuple[Copy, ...], int, bool]:
    """Return nearly equal images in different parts, the number of pairs within a part, and whether these are all."""
    near_copies = duplicates.pairs(duplicates.joined([part.sketches for part in parts]))
    owner = list(chain.from_iterable([place] * len(part.names) for place, part in enumerate(parts)))
    names = list(chain.from_iterable(part.names for part in parts))
    copies, inside = [], 0
    for first, second in near_copies.places.tolist():
        if owner[first] == owner[second]:
            inside += 1
            continue
        a, b = parts[owner[first]], parts[owner[second]]
        copies.append(Copy((a.domain, a.split, names[first]), (b.domain, b.split, names[second])))
    return tuple(copies), inside, near_copies.complete


def _exact(parts: Sequence[tuple[Part, ImageSet]]) -> tuple[Copies, tuple[str, ...]]:
    """Return exact copies, and lines on them with the names of files."""
    sets = [Role(part.domain, part.split == "test", images) for part, images in parts]

    def name(place: tuple[int, int]) -> str:
        part = parts[place[0]][0]
        return f"{part.domain} {part.split} {shown(part.names[place[1]])}"

    exact = exact_copies.find(sets)
    return exact, tuple(exact_copies.lines(exact, sets, name))


def _by_split(known: Dataset, kind: str, domain: str, source: Source) -> dict[Split, ImageFiles]:
    """Return the images of a domain by split; a user's own site may lack a split."""
    splits = known.splits(domain)
    if known.own is not None:
        possible = OWN_SPLITS if known.validates else SPLITS
        splits = tuple(split for split in possible if catalog.has_own(kind, domain, split, source))
    return {split: catalog.get(kind).find(domain, split, source) for split in splits}


def _part(
    known: Dataset, domain: str, split: Split, image_files: ImageFiles, source: Source, form: Form, prepare: Prepare
) -> tuple[Part, ImageSet]:
    listing = image_files if isinstance(image_files, Listing) else None
    broken = corrupt_files.of(listing, form) if listing is not None and source.skip_broken else ()
    try:
        images = prepare(domain, split)
    except DataError:
        if listing is None or not (broken := corrupt_files.of(listing, form)):
            raise
        images = _readable(corrupt_files.without(listing, broken), form)
    file_headers: Counter[Header] = Counter()
    names = tuple(f"image {place}" for place in range(len(images)))
    if listing is not None:
        readable = corrupt_files.without(listing, broken)
        kept = cache.headers(images)
        file_headers = Counter(headers(readable.items)) if kept is None else kept
        names = readable.names
    sizes, modes = Counter[tuple[int, int]](), Counter[str]()
    for header, number in file_headers.items():
        sizes[header.size] += number
        modes[header.mode] += number
    turned = sum(number for header, number in file_headers.items() if header.turned)
    counts = tuple(np.bincount(images.y, minlength=len(known.classes)).tolist())
    pixels, sketches = findings.of(images)
    showing = counts
    if images.masks is not None:
        there = [np.bincount(mask.ravel(), minlength=IGNORED + 1)[: len(counts)] > 0 for mask in images.masks]
        showing = tuple(np.array(there).sum(axis=0).tolist())
    return Part(domain, split, counts, sizes, modes, broken, names, sketches, turned, pixels, showing), images


def _readable(readable: Listing, form: Form) -> ImageSet:
    """Return readable images, decoded at a small size."""
    work = partial(decode.decoded, size=_LOOK, form=form)
    made = list(pool.mapped(work, readable.items, os.cpu_count() or 1))
    masks = None if readable.masks is None else np.stack([each.mask for each in made if each.mask is not None])
    labels = readable.labels if masks is None else main_class(masks, IGNORED)
    return ImageSet(np.stack([each.pixels for each in made]), labels, groups=readable.groups, masks=masks)


def headers(items: Sequence[Item]) -> list[Header]:
    """Return the properties of images in their files.

    Raises:
        DataError: If one is no image.
    """
    return list(pool.mapped(decode.header, items, os.cpu_count() or 1))

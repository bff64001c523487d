"""What there is to know of a data set before anybody trains on it: counts, sizes, broken files, copies."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from datasets import catalog
from datasets.base import OWN_SPLITS, SPLITS, Dataset, Form, ImageSet, Source, Split
from datasets.io import corrupt_files, exif, files, pictures
from datasets.io.corrupt_files import Broken
from datasets.io.decode import decode_into, encoded
from datasets.listing import Found, Item, Listing
from datasets.quality import duplicates, exact_copies
from datasets.quality.duplicates import Sketches
from datasets.quality.exact_copies import Copies, Role
from fedshift_core.errors import DataError
from fedshift_core.limits import shown

_LOOK = 64  # pixels at which images are looked at whose part is not decoded, for some of it are broken

#: Decodes one part into the cache: ``prepare(domain, split)``.
Prepare = Callable[[str, Split], ImageSet]


@dataclass(frozen=True)
class Part:
    """One domain and split.

    Attributes:
        domain: Its name.
        split: Which split.
        counts: Images by class, in the order of labels; broken ones are left out.
        sizes: Images by width and height in pixels, before they are resized; empty where they come as arrays.
        modes: Images by Pillow's mode, likewise.
        broken: Images that cannot be read.
        names: Of each image that can, a name to speak of it.
        sketches: What is compared of each of them.
        turned: How many of them state that they are to be turned (EXIF), followed or not.
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


@dataclass(frozen=True)
class Copy:
    """Two images that are nearly the same, of different splits of a domain or of different domains."""

    first: tuple[str, Split, str]
    second: tuple[str, Split, str]

    @property
    def across(self) -> str:
        """``domains`` or ``splits``."""
        return "domains" if self.first[0] != self.second[0] else "splits"


@dataclass(frozen=True)
class Checkup:
    """Everything that was found.

    Attributes:
        classes: Class names.
        parts: By domain, then by split.
        copies: Images that are nearly the same and are not in the same part.
        exact: Exact copies of a user's own images; None where they were not looked for.
        exact_lines: What there is to know of them, in a line each.
        inside: Number of such pairs within a part.
        complete: False if there were too many like ones to compare them all.
    """

    classes: tuple[str, ...]
    parts: tuple[Part, ...]
    copies: tuple[Copy, ...] = ()
    exact: Copies | None = None
    exact_lines: tuple[str, ...] = ()
    inside: int = 0
    complete: bool = field(default=True)

    def empty(self) -> list[tuple[str, Split, str]]:
        """Return the domains and splits that have no image of a class: no model can learn it there, or be tested."""
        found = []
        for domain in dict.fromkeys(part.domain for part in self.parts):
            counts = {part.split: part.counts for part in self.parts if part.domain == domain}
            for split in counts:
                found += [(domain, split, kind) for kind, n in zip(self.classes, counts[split], strict=True) if not n]
        return found


def check(known: Dataset, kind: str, domains: Sequence[str], source: Source, form: Form, prepare: Prepare) -> Checkup:
    """Look at all images of a data set.

    Args:
        known: The data set as the run has it.
        kind: The name of the data set that reads the images.
        domains: Those to look at.
        source: Where the images are.
        form: How they become squares of 8 bits a channel.
        prepare: Decodes a part into the cache.

    Raises:
        DataError: If a domain is missing, none of its images can be read, or the cache cannot be written.
    """
    looked_at = [
        _part(known, domain, split, found, source, form, prepare)
        for domain in domains
        for split, found in _found(known, kind, domain, source).items()
    ]
    parts = [part for part, _ in looked_at]
    exact, lines = _exact(looked_at) if known.own is not None else (None, ())
    told = duplicates.pairs(duplicates.joined([part.sketches for part in parts]))
    owner = list(chain.from_iterable([place] * len(part.names) for place, part in enumerate(parts)))
    names = list(chain.from_iterable(part.names for part in parts))
    copies, inside = [], 0
    for first, second in told.places.tolist():
        if owner[first] == owner[second]:
            inside += 1
            continue
        a, b = parts[owner[first]], parts[owner[second]]
        copies.append(Copy((a.domain, a.split, names[first]), (b.domain, b.split, names[second])))
    return Checkup(known.classes, tuple(parts), tuple(copies), exact, lines, inside, told.complete)


def _exact(parts: Sequence[tuple[Part, ImageSet]]) -> tuple[Copies, tuple[str, ...]]:
    """Return exact copies, and what there is to know of them with the names of files."""
    sets = [Role(part.domain, part.split == "test", images) for part, images in parts]

    def name(place: tuple[int, int]) -> str:
        part = parts[place[0]][0]
        return f"{part.domain} {part.split} {shown(part.names[place[1]])}"

    found = exact_copies.find(sets)
    return found, tuple(exact_copies.lines(found, sets, name))


def _found(known: Dataset, kind: str, domain: str, source: Source) -> dict[Split, Found]:
    """Return what there is of a domain, by split: a user's own site may lack one."""
    may = OWN_SPLITS if known.validates else SPLITS
    splits = known.splits(domain) if known.own is None else [s for s in may if _has(kind, domain, s, source)]
    return {split: catalog.get(kind).find(domain, split, source) for split in splits}


def _has(kind: str, domain: str, split: Split, source: Source) -> bool:
    return catalog.has_own(kind, domain, split, source)


def _part(
    known: Dataset, domain: str, split: Split, found: Found, source: Source, form: Form, prepare: Prepare
) -> tuple[Part, ImageSet]:
    bad: tuple[Broken, ...] = ()
    if isinstance(found, Listing) and source.skip_broken:
        bad = corrupt_files.of(found, form)
    try:
        images = prepare(domain, split)
    except DataError:
        bad = corrupt_files.of(found, form) if isinstance(found, Listing) else ()
        if not isinstance(found, Listing) or not bad:
            raise
        images = _readable(found, bad, form)
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    turned = 0
    names = tuple(f"image {place}" for place in range(len(images)))
    if isinstance(found, Listing):
        good = _without(found, bad)
        told = headers(good.items)
        sizes, modes = Counter(header.size for header in told), Counter(header.mode for header in told)
        turned = sum(header.turned for header in told)
        names = tuple(item.name for item in good.items)
    counts = tuple(np.bincount(images.y, minlength=len(known.classes)).tolist())
    return Part(domain, split, counts, sizes, modes, bad, names, duplicates.sketches(images.x), turned), images


def _without(found: Listing, bad: Sequence[Broken]) -> Listing:
    return found.select(np.delete(np.arange(len(found)), [one.place for one in bad]))


def _readable(found: Listing, bad: Sequence[Broken], form: Form) -> ImageSet:
    """Return the images that can be read, for a look at them."""
    good = _without(found, bad)
    out = np.empty((len(good), _LOOK, _LOOK, 3), np.uint8)
    decode_into(good, out, form, workers=os.cpu_count() or 1)
    return ImageSet(out, good.labels)


class Header(NamedTuple):
    """What a file says of its image: width and height, Pillow's mode, whether it is to be turned."""

    size: tuple[int, int]
    mode: str
    turned: bool


def headers(items: Sequence[Item]) -> list[Header]:
    """Return what is known of images as they lie in their files.

    Raises:
        DataError: If one is no image.
    """
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_header, items))


def _header(item: Item) -> Header:
    with files.reading(item.name):
        content = encoded(item)
        return Header(*pictures.header(content, item.name), pictures.orientation(content, item.name) != exif.UPRIGHT)

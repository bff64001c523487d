"""Formats the report of ``fedshift prepare`` as text and as JSON."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedshift.data import pixels
from fedshift.run import columns as tables
from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import OWN_SPLITS, SPLITS, Split
from fedshift_datasets.io import cache, trees
from fedshift_datasets.io.site import Site
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.quality.checkup import Checkup, Part
from fedshift_datasets.sets import folders

MOST_CLASSES = 60  # rows of the table of classes
MOST_SITES = 8  # columns of it; more sites make several tables
MOST_LINES = 20  # files, or pairs, that the text names; JSON names up to MOST_LISTED
MOST_LISTED = 10_000
_PATH = 4096  # characters of a path
EMPTY = "!"  # marks a cell without an image


@dataclass(frozen=True)
class Around:
    """The remarks on a user's own folders.

    Attributes:
        sites: Its sites, by domain; none of a data set that is not the user's own.
        not_taken: Files that were left out, each with its reason.
        notes: Problems of the folders, one per line.
    """

    sites: Mapping[str, Site] = field(default_factory=dict)
    not_taken: tuple[tuple[Path, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def patients(self) -> list[str]:
        """What does not tell the patients of images, one per line."""
        return [note for site in self.sites.values() for note in site.patient_notes]


@dataclass(frozen=True)
class Public:
    """The public set (``dataset.public``).

    Attributes:
        counts: Number of its images by domain.
        splits: Those whose images nodes divide, where it is a share of these.
    """

    counts: Mapping[str, int]
    splits: tuple[Split, ...]


def around(cfg: DatasetConfig, allocation: Allocation | None = None) -> Around:
    """Return remarks on the folders of a user's own data set.

    Args:
        cfg: The data set.
        allocation: The experiment's, which determines the splits that a run reads; None for both.

    Raises:
        DataError: If a run would refuse a site.
    """
    public = (cfg.public_domain,) if cfg.public_domain else ()

    def reads(domain: str) -> tuple[Split, ...]:
        if domain in public:
            return SPLITS[:1]
        return SPLITS if allocation is None else allocation.reads(domain)

    survey = folders.survey(cfg.source(), cfg.domains, reads)
    left = [(path, _why(path)) for site in survey.sites for path in site.not_taken]
    left += [
        (path, "not the folder of a domain" if path.is_dir() else "next to the domains' folders")
        for path in survey.others
    ]
    notes = [note for site in survey.sites for note in site.notes]
    validating = [site.domain for site in survey.sites if "validation" in site.splits]
    if validating and not (allocation and allocation.validation_fraction):
        notes.append(
            f"validation images of {shown(', '.join(validating), MOST_NAME)}: they are neither trained nor tested on; "
            "with allocation.validation_fraction above 0 nodes choose a round by them"
        )
    return Around({site.domain: site for site in survey.sites}, tuple(left), tuple(notes))


def _why(path: Path) -> str:
    return f"suffix {path.suffix.lower()}" if path.suffix else "no suffix"


def as_json(cfg: DatasetConfig, checkup: Checkup, surroundings: Around, public: Public | None) -> str:
    """Return the report as one JSON object; ``public`` is None where no images are."""
    domains = {}
    for domain in cfg.domains:
        parts = {part.split: part for part in checkup.parts if part.domain == domain}
        domains[domain] = {
            "layout": surroundings.sites[domain].layout if domain in surroundings.sites else None,
            "images": {s: dict(zip(checkup.classes, part.counts, strict=True)) for s, part in parts.items()},
            "sizes": [[w, h, n] for (w, h), n in sorted(_summed(part.sizes for part in parts.values()).items())],
            "modes": dict(sorted(_summed(part.modes for part in parts.values()).items())),
            "published": _published(cfg, list(parts.values())),
            "patients": checkup.patients.get(domain),
            "pixels": {split: pixels.as_json(part) for split, part in parts.items()},
        }
    report: dict[str, Any] = {
        "dataset": cfg.name, "data_dir": cfg.data_dir, "size": cfg.size or cfg.known().size,
        "classes": list(checkup.classes), "domains": domains,
        "differ": pixels.differing(cfg.domains, checkup.parts),
        "empty": [list(cell) for cell in checkup.empty()],
        "broken": [
            {"domain": part.domain, "split": part.split, "file": bad.name, "reason": bad.reason}
            for part in checkup.parts for bad in part.broken
        ],
        "skipped": cfg.skip_broken,
        "not_taken": [
            {"file": shown(path, _PATH), "reason": why} for path, why in surroundings.not_taken[:MOST_LISTED]
        ],
        "notes": list(surroundings.notes), "patients": [*checkup.patient_lines, *surroundings.patients],
        "exact_copies": _exact(checkup),
        "nearly_same": {
            "across_splits": sum(copy.across == "splits" for copy in checkup.copies),
            "across_domains": sum(copy.across == "domains" for copy in checkup.copies),
            "within_a_split": checkup.inside, "complete": checkup.complete,
            "pairs": [[list(copy.first), list(copy.second)] for copy in checkup.copies[:MOST_LISTED]],
        },
        **({"public": {"is": cfg.public, "images": public.counts}} if public is not None else {}),
        "exif": {"rule": cfg.exif, "turned": _turned(cfg, checkup)},
        "cache": str(cache.cache_dir()),
    }  # fmt: skip
    return json.dumps(report, indent=1)


def _exact(checkup: Checkup) -> dict[str, Any] | None:
    """Return the numbers of exact copies for JSON; None if they were not searched."""
    if checkup.exact is None:
        return None
    return {
        "tests_in_training": len(checkup.exact.trained), "two_labels": len(checkup.exact.two_labels),
        "lines": list(checkup.exact_lines),
    }  # fmt: skip


def as_text(cfg: DatasetConfig, checkup: Checkup, surroundings: Around, public: Public | None) -> str:
    """Return the report as text; ``public`` is None where no images are."""
    size = cfg.size or cfg.known().size
    blocks = [_counts(checkup, cfg.domains[i : i + MOST_SITES]) for i in range(0, len(cfg.domains), MOST_SITES)]
    lines = [
        f"{cfg.name}: {plural(len(cfg.domains), 'domain')}, {plural(len(checkup.classes), 'class', 'classes')}; "
        f"images become {size}x{size}"
    ]
    first = (*checkup.patient_lines, *surroundings.patients, *checkup.exact_lines)
    lines += [*(line.replace(f"{cfg.data_dir}/", "") for line in first), ""]
    lines += [line for block in blocks for line in (*block, "")]
    lines += [_domain(cfg, domain, checkup, surroundings) for domain in cfg.domains]
    lines += ["", *pixels.lines(cfg.domains, checkup.parts)]
    if turned := sum(_turned(cfg, checkup).values()):
        follows = "followed" if cfg.exif == "apply" else "ignored; dataset.exif=apply applies it"
        lines.append(f"EXIF orientation: {plural(turned, 'image')} must be turned or mirrored, {follows}")
    lines += [_public(cfg, public, checkup)] if public is not None else []
    empty = [
        f"{domain} has no {split} image of class {shown(kind, MOST_NAME)}" for domain, split, kind in checkup.empty()
    ]
    lines += _block("empty", empty)
    bad = [f"{_below(cfg, broken.name)}: {broken.reason}" for part in checkup.parts for broken in part.broken]
    lines += _block("cannot be read" + (", left out" if cfg.skip_broken else ""), bad)
    lines += _block("not taken", [f"{_below(cfg, path)}: {why}" for path, why in surroundings.not_taken])
    lines += _block("noted", list(surroundings.notes))
    for across in ("splits", "domains"):
        pairs = [
            f"{_image(cfg, copy.first)} = {_image(cfg, copy.second)}"
            for copy in checkup.copies if copy.across == across
        ]  # fmt: skip
        lines += _block(f"nearly the same in two {across}", pairs)
    if checkup.inside:
        lines.append(f"nearly the same within a split: {plural(checkup.inside, 'pair')}")
    if not checkup.complete:
        lines.append("too many images are similar to compare all of them: there may be more such pairs")
    return "\n".join([*lines, f"cache: {shown(cache.cache_dir(), _PATH)}"])


def _turned(cfg: DatasetConfig, checkup: Checkup) -> dict[str, int]:
    """Return the number of images of each domain whose EXIF orientation is not upright."""
    return {domain: sum(part.turned for part in checkup.parts if part.domain == domain) for domain in cfg.domains}


def public_set(cfg: DatasetConfig, checkup: Checkup, allocation: Allocation, held: Sequence[str]) -> Public | None:
    """Return the public set: all images of one split of a domain, or a share of what nodes divide.

    Args:
        cfg: The data set, a public domain among its domains.
        checkup: What is there.
        allocation: Which images of a domain its nodes divide.
        held: The domains that nodes hold; of the others nothing is public.

    Returns:
        None where no images are public.
    """
    if cfg.public is None:
        return None
    counts = {(part.domain, part.split): sum(part.counts) for part in checkup.parts}
    if cfg.public_domain:
        split = cfg.known().splits(cfg.public_domain)[0]
        return Public({cfg.public_domain: counts[cfg.public_domain, split]}, (split,))
    divided = {domain: sum(counts.get((domain, split), 0) for split in allocation.pool) for domain in held}
    return Public({domain: round(cfg.public_share * number) for domain, number in divided.items()}, allocation.pool)


def _public(cfg: DatasetConfig, public: Public, checkup: Checkup) -> str:
    """Return the line of the public set."""
    if cfg.public_domain:
        return (
            f"public: {shown(cfg.public_domain, MOST_NAME)}, {plural(sum(public.counts.values()), 'image')}; no node "
            "holds this domain"
        )
    about = {domain: "about " if checkup.patients.get(domain) else "" for domain in public.counts}  # whole patients
    each = ", ".join(f"{shown(domain, MOST_NAME)} {about[domain]}{number}" for domain, number in public.counts.items())
    divided = "training and test images" if "test" in public.splits else "training images"
    return f"public: {100 * cfg.public_share:g} % of each domain's {divided}, which no node holds: {each}"


def _image(cfg: DatasetConfig, image: tuple[str, Split, str]) -> str:
    domain, split, name = image
    return f"{domain} {split} {_below(cfg, name)}"


def _below(cfg: DatasetConfig, name: object) -> str:
    """Return a file's name below data-dir."""
    return shown(str(name).removeprefix(f"{cfg.data_dir}/"), _PATH)


def _counts(checkup: Checkup, domains: Sequence[str]) -> list[str]:
    """Return the table of images by class (rows) and domain: training, validation and test images."""
    parts = {(part.domain, part.split): part.counts for part in checkup.parts}
    splits = OWN_SPLITS if any(split == "validation" for _, split in parts) else SPLITS
    head = [" + ".join(splits), *(shown(domain, MOST_NAME) for domain in domains)]

    def cell(domain: str, counts_of: Any) -> str:
        held = [counts_of(parts[domain, split]) for split in splits if (domain, split) in parts]
        return " + ".join(f"{n}{EMPTY if not n else ''}" for n in held)

    rows = []
    if len(checkup.classes) <= MOST_CLASSES:
        rows = [
            [shown(kind, MOST_NAME), *(cell(domain, lambda counts, k=k: counts[k]) for domain in domains)]
            for k, kind in enumerate(checkup.classes)
        ]
    else:
        rows = [["fewest of a class", *(cell(domain, min) for domain in domains)]]
        rows += [["most of a class", *(cell(domain, max) for domain in domains)]]
    rows.append(["all", *(cell(domain, sum) for domain in domains)])
    *lines, last = tables.columns([head, *rows], "", numbers=True, ruled=True)
    return [*lines, tables.rule([head, *rows]), last]


def _domain(cfg: DatasetConfig, domain: str, checkup: Checkup, surroundings: Around) -> str:
    """Return the line of a domain: layout, sizes, modes, and difference to the published numbers."""
    parts = [part for part in checkup.parts if part.domain == domain]
    sizes, modes = _summed(part.sizes for part in parts), _summed(part.modes for part in parts)
    facts = [f"{split} {sum(part.counts)}" for part in parts for split in (part.split,)]
    if site := surroundings.sites.get(domain):
        facts.append(f"layout {site.layout}")
    if number := checkup.patients.get(domain):
        by = site.patients_by if site else ()
        facts.append(plural(number, "patient") + (f" ({' and '.join(map(shown, by))})" if by else ""))
    if sizes:
        low, high = min(sizes, key=_area), max(sizes, key=_area)
        facts.append(f"{low[0]}x{low[1]}" if low == high else f"{low[0]}x{low[1]} to {high[0]}x{high[1]} pixels")
        facts.append(" and ".join(f"{n} {mode}" for mode, n in sorted(modes.items(), key=lambda item: -item[1])))
    published = _published(cfg, parts)
    return f"{shown(domain, MOST_NAME)}: {', '.join(facts)}" + (f"; published: {published}" if published else "")


def _area(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * size[1], size[0]


def _published(cfg: DatasetConfig, parts: Sequence[Part]) -> str | None:
    """Return the difference to the published number of images; None without one or without a difference."""
    published = cfg.known().counts
    counts = Counter[str]()
    for part in parts:
        counts[part.domain] += sum(part.counts)
    return trees.compare_counts(counts, {name: published[name] for name in counts if name in published})


def _block(title: str, items: Sequence[str]) -> list[str]:
    """Return a block of at most ``MOST_LINES`` items under a title; no lines without items."""
    if not items:
        return []
    more = [f"  and {len(items) - MOST_LINES} more (--json names them)"] if len(items) > MOST_LINES else []
    return [f"{title}: {len(items)}", *(f"  {line}" for line in items[:MOST_LINES]), *more]


def _summed(counters: Iterable[Mapping[Any, int]]) -> Counter[Any]:
    return sum((Counter(counter) for counter in counters), Counter[Any]())

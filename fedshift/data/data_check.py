"""The report of ``fedshift prepare``: one object, which is printed as JSON or as text."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.run import columns as tables
from fedshift.run.texts import filled
from fedshift_app.config.dataset_section import DatasetConfig
from fedshift_core import site_differences
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural
from fedshift_datasets.base import OWN_SPLITS, SPLITS, Split
from fedshift_datasets.io import cache, trees
from fedshift_datasets.partition.allocation import Allocation
from fedshift_datasets.quality.checkup import Checkup
from fedshift_datasets.sets import folders, partitioned
from fedshift_datasets.sets.folders import Survey

KINDS = (folders.NAME, partitioned.NAME)

MOST_CLASSES = 60  # rows of the table of classes
MOST_SITES = 8  # columns of it; more sites make several tables
MOST_LINES = 20  # files, or pairs, that the text names; JSON names up to MOST_LISTED
MOST_LISTED = 10_000
_PATH = 4096  # characters of a path
BARS = " ▁▂▃▄▅▆▇█"  # of a histogram, from none to the most of a bin
_PIXELS = ("mean", "variance", "image_std", "low", "high", "histogram")

Page = dict[str, Any]


def survey(cfg: DatasetConfig, allocation: Allocation | None) -> Survey:
    """Return what is in the folders of a user's own data set; nothing of any other.

    Args:
        cfg: The data set.
        allocation: The experiment's, which determines the splits that a run reads; None for both.

    Raises:
        DataError: If a run would refuse a site.
    """

    def reads(domain: str) -> tuple[Split, ...]:
        if domain == cfg.public_domain:
            return SPLITS[:1]
        return SPLITS if allocation is None else allocation.reads(domain)

    return folders.survey(cfg.source(), cfg.domains, reads) if cfg.kind in KINDS else Survey((), (), ())


def report(
    cfg: DatasetConfig, checkup: Checkup, found: Survey, allocation: Allocation | None, held: Sequence[str]
) -> Page:
    """Return the report.

    Args:
        cfg: The data set, a public domain among its domains.
        checkup: What is there.
        found: What is in the user's own folders.
        allocation: The experiment's; None without one.
        held: The domains that nodes hold; of the others nothing is public.
    """
    copies = Counter(copy.across for copy in checkup.copies)
    page: Page = {
        "dataset": cfg.name,
        "data_dir": cfg.data_dir,
        "size": cfg.size or cfg.known().size,
        "classes": list(checkup.classes),
        "domains": {name: _domain(cfg, checkup, found, name) for name in cfg.domains},
        "empty": [list(cell) for cell in checkup.empty()],
        "broken": [
            {"domain": part.domain, "split": part.split, "file": bad.name, "reason": bad.reason}
            for part in checkup.parts
            for bad in part.broken
        ],
        "skipped": cfg.skip_broken,
        "not_taken": _not_taken(found),
        "notes": _notes(found, allocation),
        "patients": [*checkup.patient_lines, *(note for site in found.sites for note in site.patient_notes)],
        "exact_copies": None
        if checkup.exact is None
        else {
            "tests_in_training": len(checkup.exact.trained),
            "two_labels": len(checkup.exact.two_labels),
            "lines": list(checkup.exact_lines),
        },
        "nearly_same": {
            "across_splits": copies["splits"],
            "across_domains": copies["domains"],
            "within_a_split": checkup.inside,
            "complete": checkup.complete,
            "pairs": [[list(copy.first), list(copy.second)] for copy in checkup.copies],
        },
        "exif": {"rule": cfg.exif, "turned": dict.fromkeys(cfg.domains, 0)},
        "cache": str(cache.cache_dir()),
    }
    pixels = {domain: (seen["mean"], seen["variance"]) for domain, seen in _first_pixels(page).items()}
    page["differ"] = site_differences.sentence(pixels)
    for part in checkup.parts:
        page["exif"]["turned"][part.domain] += part.turned
    if cfg.public is not None:
        page["public"] = {"is": cfg.public, "images": _public(cfg, checkup, allocation or Allocation(), held)}
    return page


def _domain(cfg: DatasetConfig, checkup: Checkup, found: Survey, domain: str) -> Page:
    parts = [part for part in checkup.parts if part.domain == domain]
    site = next((site for site in found.sites if site.domain == domain), None)
    sizes, modes = Counter[tuple[int, int]](), Counter[str]()
    for part in parts:
        sizes.update(part.sizes)
        modes.update(part.modes)
    published = cfg.known().counts.get(domain)
    number = sum(sum(part.counts) for part in parts)
    return {
        "layout": site and site.layout,
        "images": {part.split: dict(zip(checkup.classes, part.counts, strict=True)) for part in parts},
        "sizes": [[w, h, n] for (w, h), n in sorted(sizes.items())],
        "modes": dict(sorted(modes.items())),
        "published": published and trees.compared(domain, number, published),
        "patients": checkup.patients.get(domain),
        "patients_by": list(site.patients_by) if site else [],
        "pixels": {
            part.split: part.pixels
            and {"images": part.pixels.images} | {name: getattr(part.pixels, name).tolist() for name in _PIXELS}
            for part in parts
        },
    }


def _first_pixels(page: Page) -> dict[str, Page]:
    """Return the statistics of each domain's first split: its training images, if it has any."""
    first = {domain: next(filter(None, one["pixels"].values()), None) for domain, one in page["domains"].items()}
    return {domain: seen for domain, seen in first.items() if seen}


def _not_taken(found: Survey) -> list[dict[str, str]]:
    left = [
        (path, f"suffix {path.suffix.lower()}" if path.suffix else "no suffix")
        for site in found.sites
        for path in site.not_taken
    ]
    left += [
        (path, "not the folder of a domain" if path.is_dir() else "next to the domains' folders")
        for path in found.others
    ]
    return [{"file": shown(path, _PATH), "reason": why} for path, why in left]


def _notes(found: Survey, allocation: Allocation | None) -> list[str]:
    notes = [note for site in found.sites for note in site.notes]
    validating = [site.domain for site in found.sites if "validation" in site.splits]
    if validating and not (allocation and allocation.validation_fraction):
        notes.append(
            f"validation images of {shown(', '.join(validating), MOST_NAME)}: they are neither trained nor tested on; "
            "with allocation.validation_fraction above 0 nodes choose a round by them"
        )
    return notes


def _public(cfg: DatasetConfig, checkup: Checkup, allocation: Allocation, held: Sequence[str]) -> dict[str, int]:
    """Return the number of public images by domain: all of one split of a domain, or a share of what nodes divide."""
    counts = Counter({(part.domain, part.split): sum(part.counts) for part in checkup.parts})
    if cfg.public_domain:
        return {cfg.public_domain: counts[cfg.public_domain, cfg.known().splits(cfg.public_domain)[0]]}
    return {name: round(cfg.public_share * sum(counts[name, s] for s in allocation.pool)) for name in held}


def as_json(page: Page) -> str:
    """Return the report as one JSON object."""
    near = page["nearly_same"] | {"pairs": page["nearly_same"]["pairs"][:MOST_LISTED]}
    return json.dumps(page | {"nearly_same": near, "not_taken": page["not_taken"][:MOST_LISTED]}, indent=1)


def as_text(cfg: DatasetConfig, page: Page, pool: Sequence[Split]) -> str:
    """Return the report as text; nodes divide the images of the splits ``pool``."""

    def below(name: str) -> str:
        return shown(name.removeprefix(f"{cfg.data_dir}/"), _PATH)

    names = list(page["domains"])
    tables_of_classes = [_counts(page, names[i : i + MOST_SITES]) for i in range(0, len(names), MOST_SITES)]
    pairs: dict[bool, list[str]] = {False: [], True: []}
    for pair in page["nearly_same"]["pairs"]:
        line = " = ".join(f"{domain} {split} {below(name)}" for domain, split, name in pair)
        pairs[pair[0][0] != pair[1][0]].append(line)
    blocks = {
        "empty": [f"{domain} has no {split} image of class {shown(kind)}" for domain, split, kind in page["empty"]],
        f"cannot be read{', left out' if cfg.skip_broken else ''}": [
            f"{below(bad['file'])}: {bad['reason']}" for bad in page["broken"]
        ],
        "not taken": [f"{below(left['file'])}: {left['reason']}" for left in page["not_taken"]],
        "noted": page["notes"],
        "nearly the same in two splits": pairs[False],
        "nearly the same in two domains": pairs[True],
    }
    return filled(
        Path(__file__).with_name("report.txt.j2"),
        page=page,
        cfg=cfg,
        pool=pool,
        tables=tables_of_classes,
        domains=map(_domain_line, names, page["domains"].values()),
        pixels=_pixel_lines(page),
        blocks=blocks,
        most=MOST_LINES,
        shown=shown,
    )


def _counts(page: Page, domains: Sequence[str]) -> list[str]:
    """Return the table of images by class (rows) and domain: training, validation and test images."""
    images = {name: page["domains"][name]["images"] for name in domains}
    validates = any("validation" in one["images"] for one in page["domains"].values())
    splits = OWN_SPLITS if validates else SPLITS

    def row(title: str, number_of: Any, empty: str = "0!") -> list[str]:
        numbers = [[number_of(of[split]) for split in splits if split in of] for of in images.values()]
        return [title, *(" + ".join(f"{n}" if n else empty for n in cell) for cell in numbers)]

    if len(page["classes"]) <= MOST_CLASSES:
        missing = {kind for *_, kind in page["empty"]}  # a class of pixels may be there and nowhere the largest one
        rows = [
            row(shown(kind, MOST_NAME), lambda of, kind=kind: of[kind], "0!" if kind in missing else "0")
            for kind in page["classes"]
        ]
    else:
        rows = [
            row("fewest of a class", lambda of: min(of.values())),
            row("most of a class", lambda of: max(of.values())),
        ]
    head = [" + ".join(splits), *(shown(name, MOST_NAME) for name in domains)]
    table = [head, *rows, row("all", lambda of: sum(of.values()))]
    *lines, last = tables.columns(table, "", numbers=True, ruled=True)
    return [*lines, tables.rule(table), last]


def _domain_line(domain: str, one: Page) -> str:
    """Return the line of a domain: numbers, layout, patients, sizes, modes, difference to the published number."""
    facts = [f"{split} {sum(counts.values())}" for split, counts in one["images"].items()]
    if one["layout"]:
        facts.append(f"layout {one['layout']}")
    if one["patients"]:
        by = f" ({' and '.join(map(shown, one['patients_by']))})" if one["patients_by"] else ""
        facts.append(plural(one["patients"], "patient") + by)
    if one["sizes"]:
        sizes = sorted(one["sizes"], key=lambda size: (size[0] * size[1], size[0]))
        ends = dict.fromkeys(f"{w}x{h}" for w, h, _ in (sizes[0], sizes[-1]))
        facts.append(" to ".join(ends) + (" pixels" if len(ends) > 1 else ""))
        facts.append(" and ".join(f"{n} {mode}" for mode, n in sorted(one["modes"].items(), key=lambda m: -m[1])))
    published = f"; published: {one['published']}" if one["published"] else ""
    return f"{shown(domain, MOST_NAME)}: {', '.join(facts)}{published}"


def _pixel_lines(page: Page) -> list[str]:
    """Return a table of the first split of each domain, and a sentence on domains that clearly differ.

    A number is that of all channels where they are the same to two places, else of red, green and blue.
    """
    rows = []
    for domain, s in _first_pixels(page).items():
        numbers = s["mean"], np.sqrt(s["variance"]), s["low"], s["high"]
        shares = np.mean(s["histogram"], axis=0)
        heights = np.ceil(shares / shares.max() * (len(BARS) - 1)).astype(int)
        texts = [site_differences.channels_text(row, " ") for row in numbers]
        rows.append([shown(domain, MOST_NAME), *texts, "".join(BARS[height] for height in heights)])
    if not rows:
        return []
    alike = f"no two domains differ clearly ({site_differences.RULE})" if len(rows) > 1 else ""
    head = ["pixels, 0 to 1", "mean", "std", "5 %", "95 %", "histogram"]
    return [*tables.columns([head, *rows], "", ruled=True), *filter(None, [page["differ"] or alike])]

r"""Shown of sites' figures: ``site_figures`` of ``results.json``.

Over all sites, accuracy, sensitivities, specificities and the mean squared error (Brier) are pooled: the mean of the
sites weighted by the images behind each. Balanced accuracy is the mean of pooled sensitivities. AUROC, AUPRC and ECE
cannot be pooled from figures: their overall value is the mean of the sites weighted by images, and called so. Sites are
independent, classes only where no site has several images of a patient.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from fedshift_core.intervals import over_classes, pooled, sizes
from fedshift_core.limits import some
from fedshift_core.plural import plural
from fedshift_core.shown import FromFile, History, Shown, site_names
from fedshift_core.wire.site_figures import BY_CLASS, KNOWN, MACRO, OVERALL, TOO_FEW, UNKNOWN, Numbers, SiteNumbers

KEY = "site_figures"
TOO_FEW_TEXT, NOT_FINITE_TEXT = "too few", "not finite"
#: Class mixes of two sites differ where so large a share of the images of one would have to be of another class.
MIX_BOUND = 0.2
BIASED = ("auprc", "ece")  # of few images too high, at each site: a mean of sites is as far off as a site
POOLED, AVERAGED = "pooled", "mean of sites weighted by images"
MOST_SITES, MOST_CLASSES = 10_000, 20_000  # of a results file
MOST_NAMED = 3  # sites and classes that a warning names

Share = Annotated[float, Field(ge=0, le=1)]


def show(history: History) -> Shown:
    """Return the figures of the last round; nothing if no node sent any."""
    given = history.rounds[-1].passing.get(KEY, ()) if history.rounds else ()
    sites = [(site.node.index, site.domain, site.numbers) for site in given if site.numbers is not None]
    return Shown(section=content(sites, history.rounds[-1].server_round, history.classes) if sites else None)


class Figure(FromFile):
    """A figure from 0 to 1 with its 95 % interval; None with a mark where there is none."""

    value: Share | None
    low: Share | None
    high: Share | None
    mark: str = ""
    classes: int | None = Field(None, ge=0)  # behind a mean over classes
    how: str = ""  # of the figure of all sites: pooled, or the mean of the sites

    @property
    def interval(self) -> str:
        """The interval as text."""
        return "" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


class ByClass(FromFile):
    """A figure of each class, in the order of the classes."""

    value: tuple[Share | None, ...] = Field((), max_length=MOST_CLASSES)
    low: tuple[Share | None, ...] = Field((), max_length=MOST_CLASSES)
    high: tuple[Share | None, ...] = Field((), max_length=MOST_CLASSES)
    mark: tuple[str, ...] = Field((), max_length=MOST_CLASSES)

    @model_validator(mode="after")
    def _equally_long(self) -> Self:
        if len({len(self.value), len(self.low), len(self.high), len(self.mark)}) > 1:
            raise ValueError("value, low, high and mark need one entry for each class")
        return self

    def at(self, k: int) -> Figure:
        """Return the figure of a class."""
        return Figure(value=self.value[k], low=self.low[k], high=self.high[k], mark=self.mark[k])


class Site(FromFile):
    """The figures of one site, or of all."""

    site: str
    node: int | None = None
    domain: str | None = None
    images: int = Field(ge=0)
    patients: int | None = Field(None, ge=0)
    resamples: int | None = Field(None, ge=0)  # of earlier versions alone: their intervals were of a bootstrap
    images_of_class: tuple[int | None, ...] = Field((), max_length=MOST_CLASSES)
    accuracy: Figure
    balanced_accuracy: Figure
    auroc: Figure
    auprc: Figure
    brier: Figure
    ece: Figure
    per_class: dict[str, ByClass] = Field(default_factory=dict)

    @property
    def independent(self) -> float:
        """The share of its images that would say as much of its accuracy, were each of another patient."""
        known = self.accuracy
        if self.resamples is not None or self.patients is None or not self.images or known.value is None:
            return 1.0
        triple = np.array([[known.value, known.low, known.high]], np.float64)
        return min(float(sizes(triple)[0]) / self.images, 1.0)

    def figure(self, name: str) -> Figure:
        """Return one of ``OVERALL``."""
        figure: Figure = getattr(self, name)
        return figure


class Mix(FromFile):
    """How the class mixes of sites' test images differ."""

    distance: float | None = Field(None, ge=0, le=1)
    between: tuple[str, ...] = ()
    bound: float = MIX_BOUND
    lacking: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    warning: str = ""


class Sites(FromFile):
    """The key ``site_figures`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = Field((), max_length=MOST_CLASSES)
    sites: tuple[Site, ...] = Field(max_length=MOST_SITES)
    overall: Site | None = None
    mix: Mix = Mix()

    @classmethod
    def short(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is over all classes."""

        def over_all(site: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in site.items() if key not in ("per_class", "images_of_class")}

        overall = {"overall": over_all(content["overall"])} if content.get("overall") else {}
        sites = [over_all(site) for site in content["sites"]]
        return {"round": content["round"], "sites": sites, **overall, "mix": content.get("mix") or {}}


def how_intervals(runs: Iterable[Sites]) -> str:
    """Return what the 95 % intervals of runs go by."""
    earlier = any(site.resamples is not None for sites in runs for site in sites.sites)
    return "intervals go by patient where a site knows its patients, else by image" + (
        "; in runs of earlier versions, accuracy, sensitivity and specificity by image everywhere" if earlier else ""
    )


class _Given(NamedTuple):
    """A site with its name."""

    name: str
    node: int
    domain: str
    numbers: SiteNumbers


def content(sites: Sequence[tuple[int, str, SiteNumbers]], server_round: int, classes: Sequence[str]) -> dict[str, Any]:
    """Return the section of a round.

    Args:
        sites: Index of the node, domain and figures of each.
        server_round: The round.
        classes: Names of the classes.
    """
    given = [_Given(name, *site) for name, site in zip(site_names(sites), sites, strict=True)]
    return {
        "round": server_round,
        "classes": list(classes),
        "sites": [_site(site) for site in given],
        "overall": _overall([site.numbers for site in given]) if len(given) > 1 else None,
        "mix": mix(given, classes).model_dump(mode="json"),
    }


def _site(site: _Given) -> dict[str, Any]:
    numbers = site.numbers
    figures = {}
    for name, value, mark in zip(OVERALL, numbers.overall, numbers.overall_marks, strict=True):
        figures[name] = _figure(value, int(mark))
        if name in MACRO:
            figures[name]["classes"] = numbers.macro_classes(name)
    return {
        "site": site.name, "node": site.node, "domain": site.domain, "images": numbers.images,
        "patients": _known(numbers.patients),
        "images_of_class": [_known(images) for images in numbers.of_class.tolist()],
        **figures,
        "per_class": {
            name: _by_class(value, marks)
            for name, value, marks in zip(BY_CLASS, numbers.by_class, numbers.by_class_marks, strict=True)
        },
    }  # fmt: skip


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _mark(mark: int) -> str:
    return "" if mark == KNOWN else TOO_FEW_TEXT if mark == TOO_FEW else NOT_FINITE_TEXT


def _figure(triple: Numbers, mark: int, **more: Any) -> dict[str, Any]:
    """Return a figure as JSON has it; null, with its mark, where it is none."""
    numbers = triple.tolist() if mark == KNOWN else [None] * 3
    text = {"mark": _mark(mark)} if mark != KNOWN else {}
    return dict(zip(("value", "low", "high"), numbers, strict=True)) | text | more


def _by_class(triples: Numbers, marks: Any) -> dict[str, Any]:
    columns = [[row[i] if mark == KNOWN else None for row, mark in zip(triples.tolist(), marks, strict=True)]
               for i in range(3)]  # fmt: skip
    return dict(zip(("value", "low", "high"), columns, strict=True)) | {"mark": [_mark(int(mark)) for mark in marks]}


def _overall(sites: Sequence[SiteNumbers]) -> dict[str, Any]:
    """Return the figures of all sites together."""
    images = np.array([site.images for site in sites], np.float64)
    marks = np.array([site.overall_marks for site in sites])
    triples = np.array([site.overall for site in sites])
    figures: dict[str, Any] = {}
    for place, name in enumerate(OVERALL):
        known = marks[:, place] == KNOWN
        how = POOLED if name in ("accuracy", "brier") else AVERAGED
        how += _of_sites(int(known.sum()), len(sites))
        if not known.any():
            figures[name] = _figure(np.zeros(3), int(marks[:, place].min()), how=how)
        else:
            given = triples[known, place], images[known]
            mean = _proportion(*given) if name == "accuracy" else _mean(*given, together=name in BIASED)
            figures[name] = _figure(mean, KNOWN, how=how)
    per_class, of_class = _pooled(sites)
    row = BY_CLASS.index("sensitivity")
    behind = [site for site in sites if (site.by_class_marks[row] == KNOWN).any()]
    if behind:
        column = per_class["sensitivity"]
        known_classes = [k for k, mark in enumerate(column["mark"]) if not mark]
        each = np.array([[column[part][k] for part in ("value", "low", "high")] for k in known_classes])
        together = any(site.patients not in (UNKNOWN, site.images) for site in behind)
        mean = pooled(each, np.full(len(each), 1 / len(each)), together=together)
        figures["balanced_accuracy"] = _figure(over_classes(mean, each, together=together), KNOWN) | {
            "classes": len(each), "how": POOLED + _of_sites(len(behind), len(sites)),
        }  # fmt: skip
    patients = [site.patients for site in sites]
    return {
        "site": "all sites", "images": int(images.sum()),
        "patients": None if UNKNOWN in patients else sum(patients), "images_of_class": of_class,
        **figures, "per_class": per_class,
    }  # fmt: skip


def _of_sites(known: int, number: int) -> str:
    """Return how many of the sites are behind a figure, where it is not all of them."""
    return "" if known == number else f", {known} of {plural(number, 'site')}"


def _mean(triples: Numbers, images: Any, *, together: bool = False) -> Numbers:
    """Return the mean of figures, (S, 3), weighted by images, (S,), with its interval."""
    return pooled(triples, images / images.sum(), together=together)


def _proportion(triples: Numbers, images: Any) -> Numbers:
    """Return the share of right images of all, which the mean is but for the last digit, with its interval."""
    value, (_, low, high) = np.round(triples[:, 0] * images).sum() / images.sum(), _mean(triples, images)
    return np.array([value, min(low, value), max(high, value)])


def _pooled(sites: Sequence[SiteNumbers]) -> tuple[dict[str, Any], list[int | None]]:
    """Return sensitivity and specificity by class, pooled over the sites that have them, and the images behind them."""
    per_class, of_class = {}, np.array([site.of_class for site in sites])
    images = np.array([[site.images] for site in sites])
    for name, behind in (("sensitivity", of_class), ("specificity", images - of_class)):
        row = BY_CLASS.index(name)
        known = np.array([site.by_class_marks[row] == KNOWN for site in sites])  # (S, C)
        triples = np.array([site.by_class[row] for site in sites])
        columns = np.zeros((of_class.shape[1], 3))
        for k in np.flatnonzero(known.any(axis=0)):
            n = behind[known[:, k], k]
            columns[k] = _proportion(triples[known[:, k], k], n)
        per_class[name] = _by_class(columns, np.where(known.any(axis=0), KNOWN, TOO_FEW))
    visible = np.where(of_class == UNKNOWN, 0, of_class).sum(axis=0)
    return per_class, [int(number) or None for number in visible]


def mix(sites: Sequence[_Given], classes: Sequence[str]) -> Mix:
    r"""Return how the class mixes of sites' test images differ.

    The distance of two sites is the total variation of their shares of classes, :math:`\frac12\sum_k|p_k-q_k|`. Classes
    of which a site does not tell the number of images are one class together, so that it is not overestimated.
    """
    lacking = {
        site.name: tuple(name for name, images in zip(classes, site.numbers.of_class, strict=True) if images == UNKNOWN)
        for site in sites
        if (site.numbers.of_class == UNKNOWN).any()
    }
    distance, between = _farthest(sites)
    hidden = [name for name, names in lacking.items() if len(names) == len(classes)]
    shown = [site for site in sites if site.name not in hidden]
    differing = [
        name for name, names in lacking.items()
        if name not in hidden and any(names != other for other in _others(lacking, name, shown))
    ]  # fmt: skip
    warning = ""
    if hidden and shown:
        warning = (
            f"the class mix of {some(hidden, MOST_NAMED)} is not known, as no class there has enough images to be "
            "shown: means over classes are of the other sites"
        )
    if distance > MIX_BOUND or differing:
        parts = [
            f"{name} has no image, or too few, of {some(lacking[name], MOST_NAMED)}" for name in differing[:MOST_NAMED]
        ]
        parts += (
            [f"{plural(len(differing) - MOST_NAMED, 'more site lacks', 'more sites lack')} other classes"]
            if len(differing) > MOST_NAMED
            else []
        )
        if distance > MIX_BOUND:
            parts.insert(0, f"{distance:.2f} between {between[0]} and {between[1]}, above {MIX_BOUND}")
        warning += "; " if warning else ""
        warning += (
            f"class mixes of sites differ ({'; '.join(parts)}): accuracy and means over classes also rank sites by the "
            "classes that they have; compare them class by class"
        )
    return Mix(distance=distance if len(sites) > 1 else None, between=between, lacking=lacking, warning=warning)


def _others(lacking: Mapping[str, tuple[str, ...]], name: str, sites: Sequence[_Given]) -> list[tuple[str, ...]]:
    return [lacking.get(site.name, ()) for site in sites if site.name != name]


def _farthest(sites: Sequence[_Given]) -> tuple[float, tuple[str, ...]]:
    """Return the largest distance of two sites' class mixes, and their names; 0 of fewer than two sites with images."""
    some = [site for site in sites if site.numbers.images]
    of_class = np.array([site.numbers.of_class for site in some])
    farthest: tuple[float, tuple[str, ...]] = 0.0, ()
    for i in range(1, len(some)):
        images = np.array([site.numbers.images for site in some[: i + 1]], np.float64)
        distance = distances(of_class[: i + 1], images)
        if distance.max() > farthest[0]:
            farthest = float(distance.max()), (some[int(distance.argmax())].name, some[i].name)
    return farthest


def distances(of_class: Any, images: Any) -> Numbers:
    """Return the total variation distances of the last site's class mix to those before it, (S - 1,), from 0 to 1.

    Args:
        of_class: Images of each class, (S, C); ``UNKNOWN`` where a site does not tell.
        images: Images of each site, (S,), above 0.
    """
    visible = (of_class != UNKNOWN) & (of_class[-1] != UNKNOWN)  # with the last one
    shares = np.where(visible[:-1], of_class[:-1], 0) / images[:-1, None]
    last = np.where(visible[:-1], of_class[-1], 0) / images[-1]
    rest = np.abs(shares.sum(axis=1) - last.sum(axis=1))
    return np.asarray((np.abs(shares - last).sum(axis=1) + rest) / 2)

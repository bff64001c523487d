r"""Shown of sites' figures: ``site_figures`` of ``results.json``.

Over all sites, accuracy, sensitivities, specificities and the mean squared error (Brier) are pooled: the mean of the
sites weighted by the images behind each. Balanced accuracy is the mean of pooled sensitivities. AUROC, AUPRC and ECE
cannot be pooled from figures: their overall value is the mean of the sites weighted by images, and called so. Sites are
independent, classes only where no site has several images of a patient.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from fedshift_core.intervals import over_classes, pooled, sizes
from fedshift_core.limits import some
from fedshift_core.params import Probability
from fedshift_core.plural import plural
from fedshift_core.shown import FromFile, History, Named, Shown, named
from fedshift_core.wire.site_figures import (
    BY_CLASS,
    KNOWN,
    MACRO,
    NOT_FINITE,
    OVERALL,
    TOO_FEW,
    UNKNOWN,
    Numbers,
    SiteNumbers,
)

KEY = "site_figures"
MARKS = {KNOWN: "", TOO_FEW: "too few", NOT_FINITE: "not finite"}
PARTS = ("value", "low", "high")
#: Class mixes of two sites differ where so large a share of the images of one would have to be of another class.
MIX_BOUND = 0.2
BIASED = ("auprc", "ece")  # of few images too high, at each site: a mean of sites is as far off as a site
POOLED, AVERAGED = "pooled", "mean of sites weighted by images"
MOST_NAMED = 3  # sites and classes that a warning names


def show(history: History) -> Shown:
    """Return the figures of the last round; nothing if no node sent any."""
    sites = history.rounds[-1].passing.get(KEY, ()) if history.rounds else ()
    return Shown(section=content(sites, history.rounds[-1].server_round, history.classes) if sites else None)


class Figure(FromFile):
    """A figure from 0 to 1 with its 95 % interval; None with a mark where there is none."""

    value: Probability | None
    low: Probability | None
    high: Probability | None
    mark: str = ""
    classes: NonNegativeInt | None = None  # behind a mean over classes
    how: str = ""  # of the figure of all sites: pooled, or the mean of the sites

    @property
    def interval(self) -> str:
        """The interval as text."""
        return "" if self.low is None or self.high is None else f"{self.low:.3f} to {self.high:.3f}"


class ByClass(FromFile):
    """A figure of each class, in the order of the classes."""

    value: tuple[Probability | None, ...] = ()
    low: tuple[Probability | None, ...] = ()
    high: tuple[Probability | None, ...] = ()
    mark: tuple[str, ...] = ()

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
    images: NonNegativeInt
    patients: NonNegativeInt | None = None
    resamples: NonNegativeInt | None = None  # of earlier versions alone: their intervals were of a bootstrap
    images_of_class: tuple[int | None, ...] = ()
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

    distance: Probability | None = None
    between: tuple[str, ...] = ()
    bound: float = MIX_BOUND
    lacking: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    warning: str = ""


class Sites(FromFile):
    """The key ``site_figures`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = ()
    sites: tuple[Site, ...]
    overall: Site | None = None
    mix: Mix = Mix()

    @classmethod
    def short(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is over all classes."""

        def over_all(site: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in site.items() if key not in ("per_class", "images_of_class")}

        overall = {"overall": over_all(content["overall"])} if content.get("overall") else {}
        return {
            "round": content["round"],
            "sites": [*map(over_all, content["sites"])],
            **overall,
            "mix": content.get("mix") or {},
        }


def how_intervals(runs: Iterable[Sites]) -> str:
    """Return what the 95 % intervals of runs go by."""
    earlier = any(site.resamples is not None for sites in runs for site in sites.sites)
    return "intervals go by patient where a site knows its patients, else by image" + (
        "; in runs of earlier versions, accuracy, sensitivity and specificity by image everywhere" if earlier else ""
    )


def content(sites: Sequence[tuple[int, str, SiteNumbers]], server_round: int, classes: Sequence[str]) -> dict[str, Any]:
    """Return the section of a round.

    Args:
        sites: Index of the node, domain and figures of each.
        server_round: The round.
        classes: Names of the classes.
    """
    given = named(sites)
    return {
        "round": server_round,
        "classes": list(classes),
        "sites": [_site(site) for site in given],
        "overall": _overall([site.given for site in given]) if len(given) > 1 else None,
        "mix": mix(given, classes).model_dump(mode="json"),
    }


def _site(site: Named) -> dict[str, Any]:
    numbers: SiteNumbers = site.given
    figures = {}
    for name, value, mark in zip(OVERALL, numbers.overall, numbers.overall_marks, strict=True):
        figures[name] = _figure(value, int(mark)) | ({"classes": numbers.macro_classes(name)} if name in MACRO else {})
    by_class = zip(BY_CLASS, numbers.by_class, numbers.by_class_marks, strict=True)
    return {
        "site": site.name,
        "node": site.node,
        "domain": site.domain,
        "images": numbers.images,
        "patients": _known(numbers.patients),
        "images_of_class": list(map(_known, numbers.of_class.tolist())),
        **figures,
        "per_class": {name: _by_class(value, marks) for name, value, marks in by_class},
    }


def _known(number: int) -> int | None:
    return None if number == UNKNOWN else number


def _figure(triple: Numbers, mark: int, **more: Any) -> dict[str, Any]:
    """Return a figure as JSON has it; null, with its mark, where it is none."""
    column = _by_class(triple[None], np.array([mark]))
    return {key: value for key, (value,) in column.items() if key != "mark" or value} | more


def _by_class(triples: Numbers, marks: Any) -> dict[str, Any]:
    columns = np.where((marks == KNOWN)[:, None], triples, np.array(None)).T.tolist()
    return dict(zip(PARTS, columns, strict=True)) | {"mark": [MARKS[int(mark)] for mark in marks]}


def _overall(sites: Sequence[SiteNumbers]) -> dict[str, Any]:
    """Return the figures of all sites together."""
    images = np.array([site.images for site in sites], np.float64)
    figures: dict[str, Any] = {}
    for place, name in enumerate(OVERALL):
        marks = np.array([site.overall_marks[place] for site in sites])
        known, triples = marks == KNOWN, np.array([site.overall[place] for site in sites])
        mean = np.zeros(3)
        if name == "accuracy" and known.any():
            mean = _proportion(triples[known], images[known])
        elif known.any():
            mean = pooled(triples[known], images[known] / images[known].sum(), together=name in BIASED)
        how = POOLED if name in ("accuracy", "brier") else AVERAGED
        figures[name] = _figure(mean, int(marks.min()), how=how + _of_sites(known))
    per_class, of_class = _pooled(sites)
    row = BY_CLASS.index("sensitivity")
    behind = np.array([(site.by_class_marks[row] == KNOWN).any() for site in sites])
    if behind.any():
        column = per_class["sensitivity"]
        each = np.array([column[part] for part in PARTS], np.float64).T[[not mark for mark in column["mark"]]]
        known = [site for site, has in zip(sites, behind, strict=True) if has]
        together = any(site.patients not in (UNKNOWN, site.images) for site in known)
        mean = over_classes(pooled(each, np.full(len(each), 1 / len(each)), together=together), each, together=together)
        figures["balanced_accuracy"] = _figure(mean, KNOWN, classes=len(each), how=POOLED + _of_sites(behind))
    patients = [site.patients for site in sites]
    return {
        "site": "all sites",
        "images": int(images.sum()),
        "patients": None if UNKNOWN in patients else sum(patients),
        "images_of_class": of_class,
        **figures,
        "per_class": per_class,
    }


def _of_sites(known: Any) -> str:
    """Return how many of the sites are behind a figure, where it is not all of them."""
    return "" if known.all() else f", {known.sum()} of {plural(len(known), 'site')}"


def _proportion(triples: Numbers, images: Any) -> Numbers:
    """Return the share of right images of all with its interval: the mean of sites but for the last digit."""
    value = np.round(triples[:, 0] * images).sum() / images.sum()
    _, low, high = pooled(triples, images / images.sum())
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
            columns[k] = _proportion(triples[known[:, k], k], behind[known[:, k], k])
        per_class[name] = _by_class(columns, np.where(known.any(axis=0), KNOWN, TOO_FEW))
    visible = np.where(of_class == UNKNOWN, 0, of_class).sum(axis=0)
    return per_class, [int(number) or None for number in visible]


def mix(sites: Sequence[Named], classes: Sequence[str]) -> Mix:
    r"""Return how the class mixes of sites' test images differ.

    The distance of two sites is the total variation of their shares of classes, :math:`\frac12\sum_k|p_k-q_k|`. Classes
    of which a site does not tell the number of images are one class together, so that it is not overestimated.
    """
    names = np.array(classes)
    hidden_of = {site.name: tuple(names[site.given.of_class == UNKNOWN].tolist()) for site in sites}
    lacking = {name: hidden for name, hidden in hidden_of.items() if hidden}
    shown = {name: hidden for name, hidden in hidden_of.items() if len(hidden) < len(classes)}
    distance, between = _farthest(sites)
    differ = [f"{distance:.2f} between {' and '.join(between)}, above {MIX_BOUND}"] if distance > MIX_BOUND else []
    differ += [
        f"{name} has no image, or too few, of {some(hidden, MOST_NAMED)}"
        for name, hidden in shown.items()
        if hidden and {*shown.values()} != {hidden}
    ]
    warnings = []
    if shown and len(shown) < len(sites):
        warnings.append(
            f"the class mix of {some([name for name in hidden_of if name not in shown], MOST_NAMED)} is not known, as "
            "no class there has enough images to be shown: means over classes are of the other sites"
        )
    if differ:
        warnings.append(
            f"class mixes of sites differ ({some(differ, MOST_NAMED, '; ')}): accuracy and means over classes also "
            "rank sites by the classes that they have; compare them class by class"
        )
    return Mix(
        distance=distance if len(sites) > 1 else None, between=between, lacking=lacking, warning="; ".join(warnings)
    )


def _farthest(sites: Sequence[Named]) -> tuple[float, tuple[str, ...]]:
    """Return the largest distance of two sites' class mixes, and their names; 0 of fewer than two sites with images."""
    given = [site for site in sites if site.given.images]
    of_class = np.array([site.given.of_class for site in given])
    images = np.array([[site.given.images] for site in given], np.float64)
    farthest: tuple[float, tuple[str, ...]] = 0.0, ()
    for i in range(1, len(given)):
        visible = (of_class[:i] != UNKNOWN) & (of_class[i] != UNKNOWN)
        others, last = (np.where(visible, of_class[at], 0) / images[at] for at in (slice(i), i))
        apart = np.abs(others - last).sum(axis=1) + np.abs(others.sum(axis=1) - last.sum(axis=1))
        if apart.max() / 2 > farthest[0]:
            farthest = float(apart.max() / 2), (given[int(apart.argmax())].name, given[i].name)
    return farthest

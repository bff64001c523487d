"""Shown of segmentation: ``segmentation`` of ``results.json``, by site and class, with the mean over sites."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedshift_app.tasks.segmentation.figures import ABSENT, METRICS, PARTS
from fedshift_core.shown import FromFile, History, Shown, Table

KEY = "mask_figures"
TITLES = {"dice": "Dice", "iou": "IoU", "hd95": "95 % Hausdorff", "surface_dice": "surface Dice"}
OF_DISTANCES = ("hd95", "surface_dice")  # which have no mean over sites of different units
MOST_SITES, MOST_CLASSES = 10_000, 255  # of a results file


class Figure(FromFile):
    """A figure of a class: the mean over patients with its 95 % interval; None where it is hidden or undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None
    images: int | None = None
    patients: int | None = None


class Site(FromFile):
    """The figures of a site by metric and class; the unit is that of distances and of the tolerance."""

    node: int
    domain: str
    unit: Literal["px", "mm"] = "px"
    metrics: dict[str, tuple[Figure, ...]] = Field(max_length=len(METRICS))


class Section(FromFile):
    """The key ``segmentation`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = Field((), max_length=MOST_CLASSES)
    sites: tuple[Site, ...] = Field((), max_length=MOST_SITES)
    mean: dict[str, tuple[float | None, ...]] = Field(default_factory=dict, max_length=len(METRICS))


def show(history: History) -> Shown:
    """Return the figures of the last round that has them; a table of sites by class."""
    section = _section(history) if history.rounds else history.results.get("segmentation")
    if not section:
        return Shown()
    return Shown(section=section, tables=(_table(Section.model_validate(section)),))


def _section(history: History) -> Mapping[str, Any] | None:
    given = history.rounds[-1].passing.get(KEY, ())
    if not given:
        return None
    sites: list[dict[str, Any]] = [
        {
            "node": node,
            "domain": domain,
            "unit": numbers.unit,
            "metrics": {
                name: [_figure(of_class) for of_class in of_metric]
                for name, of_metric in zip(METRICS, numbers.figures.tolist(), strict=True)
            },
        }
        for node, domain, numbers in given
    ]
    means = {name: _means([site["metrics"][name] for site in sites]) for name in METRICS}
    if len({site["unit"] for site in sites}) > 1:
        means |= {name: [None] * len(means[name]) for name in OF_DISTANCES}
    return {"round": history.rounds[-1].server_round, "classes": [*history.classes[1:]], "sites": sites, "mean": means}


def _figure(numbers: Sequence[float]) -> dict[str, float | int | None]:
    return {
        part: None if number == ABSENT else int(number) if part in ("images", "patients") else number
        for part, number in zip(PARTS, numbers, strict=True)
    }


def _means(of_sites: Sequence[Sequence[Mapping[str, Any]]]) -> list[float | None]:
    """Return by class the mean over sites; None where one of them has no figure, as over fewer it is another."""
    means: list[float | None] = []
    for of_class in zip(*of_sites, strict=True):
        values = [figure["value"] for figure in of_class]
        means.append(None if None in values else float(np.mean(values)))
    return means


def _table(section: Section) -> Table:
    rows = [
        (site.domain, name, *_texts(site, k), _number(site.metrics["dice"][k]))
        for site in section.sites
        for k, name in enumerate(section.classes)
    ]
    metrics = {metric: tuple(Figure(value=value) for value in values) for metric, values in section.mean.items()}
    mean = Site(node=0, domain="mean of sites", unit=section.sites[0].unit if section.sites else "px", metrics=metrics)
    means = [(mean.domain, name, *_texts(mean, k), "") for k, name in enumerate(section.classes)]
    head = ("site", "class", *(TITLES[metric] for metric in METRICS), "images")
    note = "means over patients, 95 % intervals; images whose mask or prediction has the class"
    return Table(head, (*rows, *means), len(means), (note,))


def _texts(site: Site, k: int) -> list[str]:
    """Return a class's figures of a site; distances with their unit."""
    texts = {metric: _text(site.metrics[metric][k]) for metric in METRICS}
    return [f"{text} {site.unit}" if metric == "hd95" and text != "-" else text for metric, text in texts.items()]


def _text(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    interval = "" if figure.low is None else f" ({figure.low:.2f} to {figure.high:.2f})"
    return f"{figure.value:.3f}{interval}"


def _number(figure: Figure) -> str:
    return "-" if figure.images is None else str(figure.images)

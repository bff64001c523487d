"""The sections about the last weights and what nodes counted: classes, sites, confusion, features."""

from typing import Any

import numpy as np

from fedshift.lab.pages.report import by_class, examples, maps, site_images
from fedshift.lab.pages.report.predictions import Sight
from fedshift.run.html import site_section
from fedshift.run.html.confusion import Ints, confusion_of
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_app.features.figures.show import Figures, images_text
from fedshift_core.limits import MOST_SHOWN
from fedshift_core.plural import plural
from fedshift_core.rounds import round_name
from fedshift_core.seeding import generator

TSNE_IMAGES = 150  # of each domain


def sections(record: Record, sight: Sight, numbers: dict[str, Any]) -> list[Section]:
    """Return the sections of the page that need test images, weights, or counts of nodes.

    Args:
        record: The run.
        sight: The predictions on the test images.
        numbers: Receives the numbers behind the figures, for ``report.json``.
    """
    numbers |= {"classes": list(record.classes), "missing": sight.missing or sight.nothing, "domains": {}}
    if record.task.score_of_each:
        return [examples.section(record, sight, numbers)]
    counted = _counted(record, sight)
    parts = [_confusions(record, sight, counted, numbers), _features(record, sight)]
    for part in parts:
        shown = counted if part.id == "confusion" else ()
        part.missing = sight.missing_text(shown) or part.missing
        part.lacks |= {f"{part.name} of {name}": why for name, why in sight.missing.items() if name not in shown}
    of_classes = by_class.section(record.sections.get("figures"), requested=record.config.evaluate.figures)
    images = [site_images.section(known)] if (known := record.sections.get("statistics")) else []
    return [*images, of_classes, site_section.section(record.sections.get("site_figures")), *parts]


def _counted(record: Record, sight: Sight) -> dict[str, tuple[Ints, str]]:
    """Return the nodes' matrices of domains that the report does not score completely, and which images they are of."""
    figures: Figures | None = record.sections.get("figures")
    classes, matrices = len(record.classes), {}
    for domain in record.config.dataset.domains:
        of = figures.domains.get(domain) if figures is not None else None
        complete = of is not None and of.confusion and [len(row) for row in of.confusion] == [classes] * classes
        if of is not None and complete and (sight.personal or domain not in sight.views):
            matrix = np.array(of.confusion, np.int64)
            number = images_text(int(matrix.sum()), of.images, " test images", ",")
            matrices[domain] = matrix, f"{domain}: all {number}, as its nodes counted them in the run"
    return matrices


def _who(record: Record, sight: Sight) -> str:
    """Return which weights scored which images."""
    assert record.checkpoint is not None
    views = list(sight.views.values())
    sentences = [f"Of the weights of {round_name(record.checkpoint.server_round)}."]
    if sight.personal:
        nodes = ", ".join(f"{view.domain}: node {view.node.index}" for view in views)
        sentences.append(
            f"Each domain with the private parts of one of its nodes ({nodes}); the table counts all nodes of a domain."
        )
        if unheld := [view.domain for view in views if view.node.domain != view.domain]:
            sentences.append(f"{', '.join(unheld)}: held by no node, so scored by the first of all.")
        if anew := [f"node {view.node.index}" for view in views if view.anew]:
            sentences.append(f"{', '.join(anew)}: has not trained yet; its private parts are as they were initialised.")
    if record.config.evaluate.bn[0] != (keep := record.config.model.bn_keep):
        sentences.append(
            f"BatchNorm's statistics are those of the kept model ({BN_STATISTICS_TEXT[keep]}), "
            "not those of the run's first score."
        )
    if not sight.alone:
        sentences.append("The method adapts to the test images before it predicts, here to those that were drawn.")
    return " ".join(sentences)


def _confusions(record: Record, sight: Sight, counted: dict[str, tuple[Ints, str]], numbers: dict[str, Any]) -> Section:
    section, c = Section("confusion", "Confusion"), len(record.classes)
    matrices: dict[str, tuple[Ints, str]] = {}
    for domain, view in sight.views.items():
        counts = np.bincount(view.y * c + view.predicted, minlength=c * c).reshape(c, c)
        part = f"{len(view.y):,} of" if len(view.y) < view.total else "all"
        matrices[domain] = counts, f"{domain}: on {part} {plural(view.total, 'test image', form=',')}"
        numbers["domains"][domain] = {
            "node": view.node.index,
            "scored": len(view.y),
            "test_images": view.total,
            "accuracy": view.accuracy,
            "confusion": counts.tolist(),
        }
    matrices |= counted
    if not matrices:
        section.leave_out(sight.nothing)
        return section

    def accuracy(domain: str) -> float:
        return float(matrices[domain][0].trace()) / max(int(matrices[domain][0].sum()), 1)

    places = {domain: i for i, domain in enumerate(record.config.dataset.domains) if domain in matrices}
    drawn = set(sorted(places, key=accuracy)[:MOST_SHOWN])
    section.figures = [
        confusion_of(domain, matrices[domain][0], record.classes, place, matrices[domain][1])
        for domain, place in places.items()
        if domain in drawn
    ]
    section.notes = [_who(record, sight)] if sight.views else []
    section.notes.append("A row is a true class, in percent of its images (rounded).")
    if left := len(matrices) - len(drawn):
        section.notes.append(
            f"Drawn are {plural(len(drawn), 'domain')}, those of the lowest accuracy; "
            f"{plural(left, 'more is', 'more are')} in report.json or figures.json."
        )
    return section


def _features(record: Record, sight: Sight) -> Section:
    section = Section("features", "Features")
    if sight.nothing:
        section.leave_out(sight.nothing)
        return section
    views = {domain: view for domain, view in sight.views.items() if np.isfinite(view.features).all()}
    if broken := sight.views.keys() - views:
        section.notes.append(f"Not shown: {', '.join(sorted(broken))}, whose features are not finite.")
        section.lacks |= {f"features of {domain}": "they are not finite" for domain in sorted(broken)}
    if sight.personal:
        section.notes.append("Features of different domains come from different networks here.")
    widths = sorted({view.features.shape[1] for view in views.values()})
    if len(widths) > 1:
        section.notes.append(f"No t-SNE: the networks' features are {', '.join(map(str, widths))} wide.")
        return section
    domains, seed = record.config.dataset.domains, record.config.seed
    chosen = {
        domain: generator(seed, f"report-tsne-{domain}").permutation(len(view.y))[:TSNE_IMAGES]
        for domain, view in views.items()
    }
    number = sum(map(len, chosen.values()))
    if number < maps.TSNE_LEAST:
        section.notes.append(f"No t-SNE: {plural(number, 'image is', 'images are')} too few.")
        return section
    features = np.concatenate([views[domain].features[index] for domain, index in chosen.items()])
    y = np.concatenate([views[domain].y[index] for domain, index in chosen.items()])
    where = np.concatenate([np.full(len(index), domains.index(domain)) for domain, index in chosen.items()])
    section.figures = maps.by_class_and_domain(maps.tsne(features, seed), y, where, domains, record.classes)
    section.notes.append(
        f"t-SNE: {plural(number, 'image')}, at most {TSNE_IMAGES} of a domain, drawn with seed {seed}. Distances "
        "between far clusters mean little."
    )
    return section

"""The sections about the last weights: confusion, features, prototypes, clusters, Grad-CAM."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedshift.lab.pages.report import analysis, by_class, grad_cam, maps, site_images
from fedshift.lab.pages.report.analysis import Floats, Ints
from fedshift.lab.pages.report.predictions import Example, Sight, View
from fedshift.run.html import site_section as report_sites
from fedshift.run.html.confusion import confusion_of
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_app.config import registry
from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_app.features.figures.show import Figures, images_text
from fedshift_core.limits import MOST_SHOWN
from fedshift_core.plural import capital, plural
from fedshift_core.rounds import round_name
from fedshift_core.seeding import generator

MATRIX_ROWS = 400  # of class means by domain; with more, a cell would be smaller than a pixel


def sections(record: Record, sight: Sight, numbers: dict[str, Any]) -> list[Section]:
    """Return the sections of the page that need test images or weights.

    Args:
        record: The run.
        sight: The predictions on the test images.
        numbers: Receives the numbers behind the figures, for ``report.json``.
    """
    classes = record.classes
    numbers["classes"] = list(classes)
    numbers["missing"] = sight.missing or sight.nothing
    numbers["domains"] = {}
    who = [] if sight.nothing else _who(record, sight)
    parts = [
        _confusions(record, sight, classes, numbers),
        _features(record, sight, classes, numbers),
        _prototypes(record, sight, classes, numbers),
        _attention(sight, classes),
    ]
    counted = _counted(record, sight, classes)
    for part in parts:
        missing = {d: why for d, why in sight.missing.items() if part.id != "confusion" or d not in counted}
        if missing and part.id != "prototypes":
            part.missing = " ".join(f"{domain} is not shown: {why}." for domain, why in missing.items())
            part.lacks |= {f"{part.name} of {domain}": why for domain, why in missing.items()}
    parts[0].notes = [*who, *parts[0].notes]
    counted_by_class = by_class.section(record.sections.get("figures"), requested=record.config.evaluate.figures)
    images = [site_images.section(known)] if (known := record.sections.get("statistics")) else []
    return [*images, counted_by_class, report_sites.section(record.sections.get("site_figures")), *parts]


def _counted(record: Record, sight: Sight, classes: tuple[str, ...]) -> dict[str, Ints]:
    """Return the nodes' confusion matrices of domains that the report does not score completely."""
    figures: Figures | None = record.sections.get("figures")
    matrices: dict[str, Ints] = {}
    for domain in record.config.dataset.domains if figures is not None else ():
        of_domain = figures.domains.get(domain) if figures is not None else None
        rows = of_domain.confusion if of_domain is not None else None
        complete = rows is not None and [len(row) for row in rows] == [len(classes)] * len(classes)
        if complete and (sight.personal or domain not in sight.views):
            matrices[domain] = np.array(rows, np.int64)
    return matrices


def _leave_out(section: Section, sight: Sight) -> None:
    section.missing = f"{capital(sight.nothing)}."
    section.lacks[section.name] = sight.nothing


def _who(record: Record, sight: Sight) -> list[str]:
    """Return a note on which weights scored which images."""
    assert record.checkpoint is not None
    views = list(sight.views.values())
    sentences = [f"Of the weights of {round_name(record.checkpoint.server_round)}."]
    if sight.personal:
        nodes = ", ".join(f"{view.domain}: node {view.node.index}" for view in views)
        sentences.append(
            f"Each domain with the private parts of one of its nodes ({nodes}); the table counts all nodes of a domain."
        )
        unheld = [view.domain for view in views if view.node.domain != view.domain]
        if unheld:
            sentences.append(f"{', '.join(unheld)}: held by no node, so scored by the first of all.")
        anew = [f"node {view.node.index}" for view in views if view.anew]
        if anew:
            sentences.append(f"{', '.join(anew)}: has not trained yet; its private parts are as they were initialised.")
    if record.config.evaluate.bn[0] != (keep := record.config.model.bn_keep):
        sentences.append(
            f"BatchNorm's statistics are those of the kept model ({BN_STATISTICS_TEXT[keep]}), "
            "not those of the run's first score."
        )
    if not sight.alone:
        sentences.append("The method adapts to the test images before it predicts, here to those that were drawn.")
    return [" ".join(sentences)]


def _confusions(record: Record, sight: Sight, classes: tuple[str, ...], numbers: dict[str, Any]) -> Section:
    section = Section("confusion", "Confusion")
    counted = _counted(record, sight, classes)
    if sight.nothing and not counted:
        _leave_out(section, sight)
    drawn = _worst_matrices(record, sight, counted)
    for place, domain in enumerate(record.config.dataset.domains):
        if domain in counted and domain in drawn:
            of_domain = record.sections["figures"].domains[domain]
            number = images_text(int(counted[domain].sum()), of_domain.images, " test images", ",")
            scored = f"{domain}: all {number}, as its nodes counted them in the run"
            section.figures.append(confusion_of(domain, counted[domain], classes, place, scored))
        if view := sight.views.get(domain):
            counts = analysis.confusion(view.y, view.predicted, len(classes))
            numbers["domains"][domain] = {
                "node": view.node.index, "scored": len(view.y), "test_images": view.total, "accuracy": view.accuracy,
                "confusion": counts.tolist(),
            }  # fmt: skip
            if domain not in counted and domain in drawn:
                section.figures.append(maps.confusion(view, counts, classes, place))
    if section.figures:
        section.notes = ["A row is a true class, in percent of its images (rounded)."]
        if left := len(counted.keys() | sight.views.keys()) - len(drawn):
            section.notes.append(
                f"Drawn are {plural(len(drawn), 'domain')}, those of the lowest accuracy; "
                f"{plural(left, 'more is', 'more are')} in report.json or figures.json."
            )
    return section


def _worst_matrices(record: Record, sight: Sight, counted: Mapping[str, Ints]) -> set[str]:
    """Return the domains whose matrices are drawn: all, or of very many those of the lowest accuracy."""
    accuracy = {domain: view.accuracy for domain, view in sight.views.items()}
    accuracy |= {domain: 100 * float(counts.trace()) / max(int(counts.sum()), 1) for domain, counts in counted.items()}
    known = [domain for domain in record.config.dataset.domains if domain in accuracy]
    return set(sorted(known, key=accuracy.__getitem__)[:MOST_SHOWN])


def _features(record: Record, sight: Sight, classes: tuple[str, ...], numbers: dict[str, Any]) -> Section:
    section = Section("features", "Features")
    if sight.nothing:
        _leave_out(section, sight)
        return section
    domains, views = record.config.dataset.domains, sight.views
    broken = [view.domain for view in views.values() if not np.isfinite(view.features).all()]
    finite = {domain: view for domain, view in views.items() if domain not in broken}
    if broken:
        section.notes.append(f"Not shown: {', '.join(broken)}, whose features are not finite.")
        section.lacks |= {f"features of {domain}": "they are not finite" for domain in broken}
    if sight.personal:
        section.notes.append("Features of different domains come from different networks here.")
    widths = {view.features.shape[1] for view in finite.values()}
    if len(widths) > 1:
        section.notes.append(f"No t-SNE: the networks' features are {', '.join(map(str, sorted(widths)))} wide.")
    elif finite:
        _add_tsne(section, record, finite, classes)
    values = {domain: analysis.singular_values(view.features) for domain, view in finite.items()}
    ranks = {domain: analysis.effective_rank(spectrum) for domain, spectrum in values.items()}
    for domain, spectrum in values.items():
        numbers["domains"][domain] |= {"singular_values": spectrum.tolist(), "effective_rank": ranks[domain]}
    if values:
        section.figures.append(maps.singular_values(values, [domains.index(domain) for domain in values], ranks))
    return section


def _add_tsne(section: Section, record: Record, views: dict[str, View], classes: tuple[str, ...]) -> None:
    domains, seed = record.config.dataset.domains, record.config.seed
    rows: list[Floats] = []
    y: list[Ints] = []
    where: list[Ints] = []
    for domain, view in views.items():
        order = generator(seed, f"report-tsne-{domain}").permutation(len(view.y))[: analysis.TSNE_IMAGES]
        rows.append(view.features[order])
        y.append(view.y[order])
        where.append(np.full(len(order), domains.index(domain)))
    features = np.concatenate(rows)
    if len(features) < analysis.TSNE_LEAST:
        section.notes.append(f"No t-SNE: {plural(len(features), 'image is', 'images are')} too few.")
        return
    placed = analysis.tsne(features, seed)
    section.figures += maps.tsne(placed, np.concatenate(y), np.concatenate(where), domains, classes)
    section.notes.append(
        f"t-SNE: {plural(len(features), 'image')}, at most {analysis.TSNE_IMAGES} of a domain, drawn with seed "
        f"{seed}. Distances between far clusters mean little."
    )


def _prototypes(record: Record, sight: Sight, classes: tuple[str, ...], numbers: dict[str, Any]) -> Section:
    section = Section("prototypes", "Prototypes")
    knowledge = record.checkpoint.knowledge if record.checkpoint else {}
    held = analysis.global_prototypes(knowledge)
    if held is not None:
        prototypes, labels = held
        matrix = analysis.cosines(prototypes)
        names = _names(labels, classes)
        numbers["prototype_similarity"] = {"labels": labels.tolist(), "matrix": matrix.tolist()}
        section.figures.append(
            maps.similarity(
                matrix, names, "prototypes", "the global prototypes",
                f"Cosine of the {plural(len(labels), 'global prototype')} that the server holds.",
            )
        )  # fmt: skip
    else:
        section.notes.append(f"{registry.label(record.config.method['name'])} has no global prototypes.")
    _add_class_means(section, record, sight, classes, numbers)
    _add_node_clusters(section, record, numbers)
    if held is not None and len(set(labels.tolist())) < len(labels):
        _add_image_clusters(section, record, sight, held, classes, numbers)
    return section


def _names(labels: Ints, classes: tuple[str, ...]) -> list[str]:
    """Name prototypes by their class; several of one class get a letter too."""
    seen: dict[int, int] = {}
    several = len(set(labels.tolist())) < len(labels)
    names = []
    for label in labels.tolist():
        seen[label] = seen.get(label, -1) + 1
        names.append(f"{classes[label]} {chr(97 + seen[label] % 26)}" if several else classes[label])
    return names


def _add_class_means(
    section: Section, record: Record, sight: Sight, classes: tuple[str, ...], numbers: dict[str, Any]
) -> None:
    """Add the cosines of the mean features of each class in different domains.

    All methods have them if test images are available.
    """
    if sight.nothing:
        section.lacks["mean features of each domain"] = sight.nothing
        section.missing = f"{capital(sight.nothing)}."
        if section.figures:
            section.missing = f"The mean features of each domain are not shown: {sight.nothing}."
        return
    views = [view for view in sight.views.values() if np.isfinite(view.features).all()]
    if len({view.features.shape[1] for view in views}) != 1:
        why = "the networks' features differ in width" if views else "no domain has finite features"
        section.notes.append(f"No cosines of the mean features of each class and domain: {why}.")
        return
    if len(views) * len(classes) > MATRIX_ROWS:
        section.notes.append(
            f"No cosines of the mean features of each class and domain: {plural(len(classes), 'class', 'classes')} in "
            f"{plural(len(views), 'domain')} are more than {MATRIX_ROWS} rows."
        )
        return
    means = {view.domain: analysis.class_means(view.features, view.y, len(classes)) for view in views}
    rows = [(k, domain) for k in range(len(classes)) for domain, (_, present) in means.items() if present[k]]
    matrix = analysis.cosines(np.stack([means[domain][0][k] for k, domain in rows]))
    alike = np.array([[a[0] == b[0] and a[1] != b[1] for b in rows] for a in rows])
    other = np.array([[a[0] != b[0] for b in rows] for a in rows])
    averages = ""
    if alike.any() and other.any():
        near, far = matrix[alike].mean(), matrix[other].mean()
        averages = f" One class in two domains: {near:.2f} on average; two classes: {far:.2f}."
    numbers["class_mean_similarity"] = {
        "rows": [[classes[k], domain] for k, domain in rows], "matrix": matrix.tolist(),
    }  # fmt: skip
    section.figures.append(
        maps.similarity(
            matrix, [classes[k] for k, _ in rows], "means", "the mean test features of each class and domain",
            f"Cosine of the mean test features of each class (blocks) in each domain ({', '.join(means)}).{averages}",
        )
    )  # fmt: skip


def _add_node_clusters(section: Section, record: Record, numbers: dict[str, Any]) -> None:
    """Add FINCH's clusters of the nodes' style prototypes (FedCode, Eq. 9) by domain."""
    state = record.checkpoint.state if record.checkpoint else {}
    if "pseudo-labels" not in state:
        return
    domains = record.config.dataset.domains
    domain_of = {node.index: domains.index(node.domain) for node in record.nodes}
    rows = np.array([domain_of[index] for index in state["nodes"].tolist()], dtype=np.int64)
    columns = state["pseudo-labels"].astype(np.int64)
    count = int(columns.max()) + 1
    table = analysis.contingency(rows, columns, (len(domains), count))
    agreement = analysis.mutual_information(rows, columns)
    numbers["style_clusters"] = {
        "domains": list(domains), "nodes_by_cluster": table.tolist(), "mutual_information": agreement,
    }  # fmt: skip
    section.figures.append(
        maps.clusters(
            table, domains, [str(j) for j in range(count)], "styles", "Nodes of each domain by cluster of styles",
            f"FINCH's {plural(count, 'cluster')} of the nodes' style prototypes (columns) against their true "
            "domains: numbers of "
            f"nodes. Normalised mutual information {agreement:.2f} (1: the clusters are the domains).",
        )
    )  # fmt: skip


def _add_image_clusters(
    section: Section, record: Record, sight: Sight, held: tuple[Floats, Ints], classes: tuple[str, ...],
    numbers: dict[str, Any],
) -> None:  # fmt: skip
    """Add FINCH's clusters of class prototypes (FPL) by domain.

    Each image counts for the nearest prototype of its class.
    """
    prototypes, labels = held
    domains = record.config.dataset.domains
    views = [view for view in sight.views.values() if view.features.shape[1] == prototypes.shape[1]]
    if not views:
        counts = np.bincount(labels, minlength=len(classes))
        counts_text = ", ".join(f"{name} {number}" for name, number in zip(classes, counts, strict=True))
        section.notes.append(f"FINCH's clusters by class: {counts_text}.")
        return
    near = [analysis.nearest_of_class(view.features, view.y, prototypes, labels) for view in views]
    rows = np.concatenate([np.full(len(part), domains.index(v.domain)) for v, part in zip(views, near, strict=True)])
    columns = np.concatenate(near)
    y = np.concatenate([view.y for view in views])
    matched = columns >= 0
    table = analysis.contingency(rows[matched], columns[matched], (len(domains), len(labels)))
    several = [k for k in range(len(classes)) if (labels == k).sum() > 1 and (matched & (y == k)).any()]
    each = [analysis.mutual_information(rows[matched & (y == k)], columns[matched & (y == k)]) for k in several]
    agreement = float(np.mean(each)) if each else 0.0
    numbers["prototype_clusters"] = {
        "domains": list(domains), "labels": labels.tolist(), "images_by_prototype": table.tolist(),
        "mutual_information": agreement,
    }  # fmt: skip
    section.figures.append(
        maps.clusters(
            table, domains, _names(labels, classes), "clusters", "Test images of each domain by nearest cluster",
            f"FINCH's {plural(len(labels), 'cluster')} of class prototypes (columns) against true domains: test "
            "images by the "
            f"prototype of their class that is nearest. Normalised mutual information {agreement:.2f}, mean over the "
            "classes with several (1: the clusters are the domains).",
        )
    )  # fmt: skip


def _attention(sight: Sight, classes: tuple[str, ...]) -> Section:
    section = Section("attention", "Grad-CAM")
    if sight.nothing:
        _leave_out(section, sight)
        return section
    if not sight.layer:
        section.missing = "The network has no convolution to look at."
        return section
    section.notes = [
        f"By domain test images, and next to each what speaks for the predicted class (red), at the {sight.layer} (all "
        "dark: nothing there does). Drawn at random, of different classes; the last one among those that are taken for "
        "another class, if there are any."
    ]
    section.strips = [
        (domain, [_strip(domain, example, classes) for example in view.examples])
        for domain, view in sight.views.items()
    ]
    return section


def _strip(domain: str, example: Example, classes: tuple[str, ...]) -> dict[str, str]:
    true, predicted = classes[example.true], classes[example.predicted]
    said = f"{true}, taken for {predicted}" if true != predicted else f"{true}, recognised"
    return {
        "source": grad_cam.pair(example.image, example.heat),
        "alt": f"test image of {domain}, {said}, with its Grad-CAM",
        "caption": said,
    }

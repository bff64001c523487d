"""Figures of predictions and features of the last weights, and of the server's prototypes."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedshift.lab.pages.report.analysis import Floats, Ints
from fedshift.lab.pages.report.predictions import View
from fedshift.run.html.confusion import NAMED, confusion_of, label, row_shares
from fedshift.run.html.drawing import (
    CLASSES,
    GRID,
    LABELLED,
    NAMED_DOMAINS,
    ROW_NAME,
    TEXT,
    Drawing,
    canvas,
    class_colour,
    class_key,
    domain_colour,
    domain_dash,
    domain_marker,
    finish,
    heat_key,
    heat_map,
    legend_above,
    short,
)  # fmt: skip
from fedshift_core.plural import plural
from fedshift_strategies.federation.roster import Node

EACH_NODE = 48  # up to this number, each node has a row of its own
FLOOR = 1e-8  # of the largest singular value; smaller values are rounding errors


def confusion(view: View, counts: Ints, classes: Sequence[str], place: int) -> Drawing:
    """Draw a domain's confusion matrix, rows in percent of the class."""
    part = f"{len(view.y):,} of" if len(view.y) < view.total else "all"
    scored = f"{view.domain}: on {part} {plural(view.total, 'test image', form=',')}"
    return confusion_of(view.domain, counts, classes, place, scored)


def class_counts(nodes: Sequence[Node], domains: Sequence[str], classes: Sequence[str]) -> Drawing:
    """Draw the number of training images of each class on each node; many nodes are summed by domain."""
    ordered = sorted(nodes, key=lambda node: (domains.index(node.domain), node.index))
    each = len(ordered) <= EACH_NODE
    if each:
        names = [node.domain for node in ordered]
        counts = np.array([node.class_counts for node in ordered], dtype=np.int64)
    else:
        names = [domain for domain in domains if any(node.domain == domain for node in ordered)]
        counts = np.array(
            [np.sum([node.class_counts for node in ordered if node.domain == domain], axis=0) for domain in names]
        )
    most = max(int(counts.max()), 1)
    figure, (axes,) = canvas(1.3 + 0.24 * max(len(counts), 4))
    texts = None
    if len(classes) <= NAMED and len(str(most)) <= 4:
        texts = [list(map(str, row)) for row in counts]
    heat_map(axes, (counts / most).tolist(), texts)
    label(axes, classes, names)
    heat_key(figure, axes, 0, most, "training images of the class")
    who = f"{plural(len(ordered), 'node')}" if each else f"{plural(len(ordered), 'node')}, those of a domain together,"
    title = f"Training images of each class on {who.rstrip(',')}: at most {most} of one class."
    rows = (
        "A row is a node, by domain" if each else f"A row is a domain, all its nodes together ({len(ordered)} in all)"
    )
    caption = f"{rows}; a column is a class: how many training images it holds."
    return finish(figure, "class-counts", title, caption)


def tsne(
    placed: Floats, y: Ints, domain_of: Ints, domains: Sequence[str], classes: Sequence[str]
) -> tuple[Drawing, Drawing]:
    """Draw t-SNE twice: coloured by class and by domain; markers show the domain.

    Args:
        placed: (N, 2).
        y: Classes, (N,).
        domain_of: Index of the domain of each, (N,).
        domains: Names of all domains.
        classes: Names of all classes.
    """
    shown = [i for i in range(len(domains)) if (domain_of == i).any()]
    named = len(shown) <= NAMED_DOMAINS
    drawings = []
    for by in ("class", "domain"):
        figure, (axes,) = canvas(4.4)
        for i in shown:
            own = domain_colour(i)
            x, up = placed[domain_of == i].T
            colours = [class_colour(int(k), len(classes)) if by == "class" else own for k in y[domain_of == i]]
            axes.scatter(x, up, s=11, c=colours, marker=domain_marker(i), linewidths=0, alpha=0.85)
            shown_as = TEXT if by == "class" else own
            if named:
                axes.scatter([], [], s=22, color=shown_as, marker=domain_marker(i), label=domains[i])
        if by == "class" and len(classes) > CLASSES:
            class_key(figure, axes, classes)
        elif by == "class":
            for k in sorted(set(y.tolist())):
                axes.scatter([], [], color=class_colour(k, len(classes)), marker="o", s=22, label=short(classes[k]))
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        legend_above(figure, axes)
        names = ", ".join(domains[i] for i in shown)
        title = (
            f"t-SNE of the features of {plural(len(y), 'test image')} of {names}, coloured by {by}; the "
            "marker is the domain."
        )
        more = " The colour wheel stands for the classes." if by == "class" and len(classes) > CLASSES else ""
        more += "" if named else unnamed(len(shown))
        drawings.append(finish(figure, f"tsne-{by}", title, f"Coloured by {by}; the marker is the domain.{more}"))
    return drawings[0], drawings[1]


def unnamed(domains: int) -> str:
    """Return a sentence on domains that are too many to have a key."""
    return f" Markers of the {domains} domains repeat, and no key names them."


def singular_values(values: Mapping[str, Floats], places: Sequence[int], ranks: Mapping[str, float]) -> Drawing:
    """Draw the singular values of the features' covariance, largest first, of each domain.

    Args:
        values: By domain, largest first.
        places: The place of each in the order of domains.
        ranks: Effective rank by domain.
    """
    figure, (axes,) = canvas(3.2)
    extremes = {min(ranks, key=ranks.__getitem__), max(ranks, key=ranks.__getitem__)} if ranks else set()
    named = set(values) if len(values) <= NAMED_DOMAINS else extremes
    for place, (domain, spectrum) in zip(places, values.items(), strict=True):
        largest = spectrum[0] if len(spectrum) else 0.0
        shown = np.log10(spectrum[spectrum > FLOOR * largest])
        at = np.arange(1, len(shown) + 1)
        if domain in named:
            axes.plot(at, shown, color=domain_colour(place), linestyle=domain_dash(place), label=domain, zorder=3)
        else:
            axes.plot(at, shown, color=GRID, linewidth=0.6)
    axes.set_xlabel("place by size")
    axes.set_ylabel("log10 of singular value")
    axes.grid(axis="y")
    legend_above(figure, axes)
    ranks_text = ", ".join(f"{domain} {rank:.1f}" for domain, rank in ranks.items())
    few_named = " Named: the domains of the least and the largest effective rank." if len(named) < len(values) else ""
    title = f"Singular values of the covariance of the features; effective rank: {ranks_text}."
    return finish(
        figure, "singular", title,
        f"Each domain's features, largest first (F2DC, figure 1): a steep fall is dimensional collapse. Not drawn: "
        f"below 1e{int(np.log10(FLOOR))} of the largest.{few_named} Effective rank (Roy & Vetterli, 2007): "
        f"{ranks_text}.",
    )  # fmt: skip


def similarity(matrix: Floats, groups: Sequence[str], key: str, what: str, caption: str) -> Drawing:
    """Draw cosines (P, P); the palest cell is the smallest of them.

    Args:
        matrix: (P, P).
        groups: The group of each row, (P,); neighbours with the same name are named once.
        key: Name of the figure.
        what: What the rows are, for the text alternative.
        caption: The text under it.
    """
    least = float(matrix.min())
    shares = (matrix - least) / (1 - least) if least < 1 else np.ones_like(matrix)
    figure, (axes,) = canvas(4.2)
    texts = [[f"{value:.2f}" for value in row] for row in matrix] if len(matrix) <= NAMED else None
    heat_map(axes, shares.tolist(), texts)
    label(axes, groups)
    heat_key(figure, axes, least, 1.0, "cosine")
    off = matrix[~np.eye(len(matrix), dtype=bool)]
    mean = f", on average {off.mean():.2f}" if len(off) else ""
    title = f"Cosine similarity of {what}: {len(matrix)} by {len(matrix)}, the smallest is {least:.2f}{mean}."
    return finish(figure, key, title, f"{caption} Smallest {least:.2f}{mean}.")


def clusters(table: Ints, rows: Sequence[str], columns: Sequence[str], key: str, what: str, caption: str) -> Drawing:
    """Draw the share of each domain's nodes or images (row) in each cluster (column)."""
    figure, (axes,) = canvas(0.9 + 0.32 * len(rows))
    texts = None
    if len(columns) <= 2 * NAMED:
        texts = [[str(value) if value else "" for value in row] for row in table]
    heat_map(axes, row_shares(table).tolist(), texts)
    axes.set_yticks(range(len(rows)), [short(name, ROW_NAME) for name in rows])
    if len(columns) <= LABELLED:
        turned = 90 if len(columns) > 8 else 0
        axes.set_xticks(range(len(columns)), columns, rotation=turned)
    else:
        axes.set_xticks([])
    title = f"{what}: {plural(len(rows), 'domain')} and {plural(len(columns), 'cluster')}."
    return finish(figure, key, title, caption)

"""Figures of what nodes held, and of features in the plane."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedshift.run.html.confusion import NAMED, Ints, label
from fedshift.run.html.drawing import (
    CLASSES,
    NAMED_DOMAINS,
    TEXT,
    Plot,
    bare,
    canvas,
    class_colour,
    domain_colour,
    domain_marker,
    heat_key,
    heat_map,
    legend_above,
    short,
)
from fedshift_core.plural import plural
from fedshift_strategies.federation.roster import Node

EACH_NODE = 48  # up to this number, each node has a row of its own
TSNE_LEAST = 5  # smallest number of points for t-SNE
TSNE_STEPS = 1000
PERPLEXITY = 30.0

Floats = NDArray[np.float64]


def class_counts(nodes: Sequence[Node], domains: Sequence[str], classes: Sequence[str]) -> Plot:
    """Draw the number of training images of each class on each node; many nodes are summed by domain."""
    rows = [
        (node.domain, list(node.class_counts))
        for node in sorted(nodes, key=lambda n: (domains.index(n.domain), n.index))
    ]
    said = "a row is a node, by domain"
    if len(nodes) > EACH_NODE:
        said = f"a row is a domain, all its nodes together ({len(nodes)} in all)"
        sums = {domain: np.sum([counts for of, counts in rows if of == domain], axis=0).tolist() for domain, _ in rows}
        rows = list(sums.items())
    most = max(max(max(counts) for _, counts in rows), 1)
    figure, (axes,) = canvas(1.3 + 0.24 * max(len(rows), 4))
    texts = [list(map(str, counts)) for _, counts in rows] if len(classes) <= NAMED and most < 10_000 else ()
    heat_map(axes, [[count / most for count in counts] for _, counts in rows], texts)
    label(axes, classes, [name for name, _ in rows])
    heat_key(figure, axes, most)
    return Plot(figure, "class-counts", f"Training images of each class on {plural(len(nodes), 'node')}: {said}.")


def tsne(features: Floats, seed: int) -> Floats:
    """Return the t-SNE of features (N, D) in the plane, (N, 2); N is at least ``TSNE_LEAST``."""
    from sklearn.manifold import TSNE  # type: ignore[import-untyped]

    scaled = (features - features.mean(axis=0)) / (features.std() or 1.0)
    if not scaled.any():  # all alike: PCA has no direction to start from
        return np.zeros((len(features), 2))
    start = "pca" if scaled.shape[1] > 1 else "random"
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    made = TSNE(init=start, perplexity=perplexity, random_state=seed % 2**32, max_iter=TSNE_STEPS)
    placed: Floats = made.fit_transform(scaled)
    return placed


def by_class_and_domain(
    placed: Floats, y: Ints, domain_of: Ints, domains: Sequence[str], classes: Sequence[str]
) -> list[Plot]:
    """Draw t-SNE (N, 2) twice: coloured by class and by domain; markers show the domain.

    Args:
        placed: (N, 2).
        y: Classes, (N,).
        domain_of: Index of the domain of each, (N,).
        domains: Names of all domains.
        classes: Names of all classes.
    """
    shown = sorted(set(domain_of.tolist()))
    named = len(shown) <= NAMED_DOMAINS
    unnamed = "" if named else f" Markers of the {plural(len(shown), 'domain')} repeat, and no key names them."
    drawn = []
    for by in ("class", "domain"):
        figure, (axes,) = canvas(4.4)
        for i in shown:
            of, own = domain_of == i, domain_colour(i)
            colours = [class_colour(int(k), len(classes)) if by == "class" else own for k in y[of]]
            x, up = placed[of].T
            axes.scatter(x, up, s=11, c=colours, marker=domain_marker(i), linewidths=0, alpha=0.85)
            if named:
                key = TEXT if by == "class" else own
                axes.scatter([], [], s=22, color=key, marker=domain_marker(i), label=domains[i])
        for k in sorted(set(y.tolist())) if by == "class" and len(classes) <= CLASSES else ():
            axes.scatter([], [], color=class_colour(k, len(classes)), marker="o", s=22, label=short(classes[k]))
        bare(axes)
        legend_above(figure, axes)
        caption = f"t-SNE coloured by {by}; the marker is the domain.{unnamed}"
        drawn.append(Plot(figure, f"tsne-{by}", caption))
    return drawn

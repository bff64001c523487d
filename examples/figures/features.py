"""Draws t-SNE over the rounds (FedSeProto, figure 2; FedCode, figures 1a and 4) and singular values (F2DC, figure 1).

    python examples/figures/features.py RUN [--rounds 1 4 12] [--node K] [--images 150] [--output features.png]

Colour is the class, the marker the domain; the same images in each panel. Rounds: those whose checkpoints are kept
(`keep_rounds=1,4`). With --node: that node's model right after one more local round, on the images of all domains.
A steep fall of the singular values of the features' covariance is dimensional collapse; the effective rank is the
exponential of the entropy of their shares (Roy & Vetterli, EUSIPCO 2007).
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from opened import features_of, kept_rounds, model_of, show, test_images
from sklearn.manifold import TSNE

import fedshift as fs

MARKERS = "os^DvPX*"


def singular_values(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the singular values of the covariance of features (N, D), largest first."""
    values: NDArray[np.float64] = np.linalg.svd(features - features.mean(axis=0), compute_uv=False) ** 2
    return values[: min(len(features) - 1, features.shape[1])] / (len(features) - 1)


def effective_rank(values: NDArray[np.float64]) -> float:
    """Return the exponential of the entropy of the values' shares; 0 if all are 0."""
    shares = values[values > 0] / max(values.sum(), 1e-300)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0


def draw_tsne(axes: Axes, by_domain: dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]], title: str) -> None:
    """Draw t-SNE of all domains' features together."""
    every = np.concatenate([features for features, _ in by_domain.values()])
    scaled = (every - every.mean(axis=0)) / max(every.std(), 1e-12)
    placed = TSNE(init="pca", random_state=0, perplexity=min(30, (len(scaled) - 1) / 3)).fit_transform(scaled)
    start = 0
    for (domain, (_, y)), marker in zip(by_domain.items(), MARKERS, strict=False):
        x, up = placed[start : start + len(y)].T
        start += len(y)
        axes.scatter(x, up, c=y, cmap="tab10" if y.max() < 10 else "hsv", s=9, marker=marker, linewidths=0)
        axes.scatter([], [], c="grey", s=9, marker=marker, label=domain)
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=9)


def main(arguments: list[str] | None = None) -> Path:
    """Draw the figure and return its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=fs.load, metavar="RUN")
    parser.add_argument("--rounds", type=int, nargs="*", help="by default the first and the last that are kept")
    parser.add_argument("--node", type=int)
    parser.add_argument("--images", type=int, default=150, help="of each domain")
    parser.add_argument("--output", type=Path, default=Path("features.png"))
    given = parser.parse_args(arguments)
    tests, kept = test_images(given.run, given.images), kept_rounds(given.run)
    if given.node is None:
        rounds = given.rounds or sorted({kept[0], kept[-1]})
        models = {f"round {n}": model_of(given.run, server_round=n) for n in rounds}
    else:
        models = {f"node {given.node} after local training": model_of(given.run, node=given.node)}
    figure = Figure(figsize=(3.2 * (len(models) + 1), 3.2), layout="constrained")
    *panels, last = figure.subplots(1, len(models) + 1)
    for axes, (title, scorer) in zip(panels, models.items(), strict=True):
        by_domain = {domain: (features_of(scorer, x), y) for domain, (x, y) in tests.items()}
        draw_tsne(axes, by_domain, title)
    panels[0].legend(fontsize=6)
    for domain, (features, _) in by_domain.items():
        values = singular_values(features)
        last.semilogy(values[values > 1e-8 * values[0]], label=f"{domain}: effective rank {effective_rank(values):.1f}")
    last.set_xlabel("place by size")
    last.set_title(f"singular values, {title}", fontsize=9)
    last.legend(fontsize=6)
    figure.savefig(given.output, dpi=100)
    return Path(given.output)


if __name__ == "__main__":
    show(main)

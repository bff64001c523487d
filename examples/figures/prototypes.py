"""Draws the variance of prototypes over domains (I2PFL, figures 1 and 3), and their cosines.

    python examples/figures/prototypes.py RUN [--images 150] [--output prototypes.png]

A prototype is the mean feature of a domain's test images of a class, scaled to length 1; I2PFL's text does not say how
it measures the variance. It is 0 if all domains agree: by class in the last round, and over the kept rounds with the
least and the largest of the classes. A block of the cosines is a class, a row in it a domain.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from opened import Images, classes_of, features_of, kept_rounds, model_of, show, test_images

import fedshift as fs
from fedshift.export.scorer import Scorer

Floats = NDArray[np.float64]


def prototypes(scorer: Scorer, tests: dict[str, Images], classes: int) -> Floats:
    """Return the mean feature of each class and domain at length 1, (C, Q, D); NaN where there are no images."""
    means = np.full((classes, len(tests), 0), np.nan)
    for place, (x, y) in enumerate(tests.values()):
        features = features_of(scorer, x)
        means = means if means.shape[2] else np.full((classes, len(tests), features.shape[1]), np.nan)
        for k in set(y.tolist()):
            means[k, place] = features[y == k].mean(axis=0)
    return means / np.linalg.norm(means, axis=2, keepdims=True)


def variance(unit: Floats) -> Floats:
    """Return the mean squared distance of each class's prototypes from their mean, (C,); NaN for fewer than two."""
    there = ~np.isnan(unit[:, :, 0])
    centre = np.where(there[..., None], unit, 0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)[:, None]
    distances = np.where(there, np.square(unit - centre[:, None]).sum(axis=2), 0).sum(axis=1)
    return np.where(there.sum(axis=1) > 1, distances / np.maximum(there.sum(axis=1), 1), np.nan)


def main(arguments: list[str] | None = None) -> Path:
    """Draw the figure and return its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=fs.load, metavar="RUN")
    parser.add_argument("--images", type=int, default=150, help="of each domain")
    parser.add_argument("--output", type=Path, default=Path("prototypes.png"))
    given = parser.parse_args(arguments)
    tests, names = test_images(given.run, given.images), classes_of(given.run)
    by_round = {n: prototypes(model_of(given.run, server_round=n), tests, len(names)) for n in kept_rounds(given.run)}
    last = by_round[max(by_round)]
    each = np.array([variance(unit) for unit in by_round.values()])
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    bars, curve, cells = figure.subplots(1, 3)
    bars.bar(names, each[-1], color="tab:blue")
    bars.axhline(np.nanmean(each[-1]), color="black", linestyle="--")
    bars.tick_params(axis="x", rotation=90)
    bars.set_title(f"variance over domains, mean {np.nanmean(each[-1]):.3f}", fontsize=9)
    curve.fill_between(list(by_round), np.nanmin(each, axis=1), np.nanmax(each, axis=1), alpha=0.3)
    curve.plot(list(by_round), np.nanmean(each, axis=1), marker="o")
    curve.set(xlabel="round", ylim=(0, None))
    curve.xaxis.get_major_locator().set_params(integer=True)
    curve.set_title("variance over the rounds", fontsize=9)
    flat = last.reshape(-1, last.shape[2])
    figure.colorbar(cells.imshow(flat @ flat.T, cmap="viridis"), ax=cells)
    cells.set_title(f"cosines: classes, of {', '.join(tests)}", fontsize=9)
    middles = [k * len(tests) + (len(tests) - 1) / 2 for k in range(len(names))]
    cells.set_xticks(middles, names, rotation=90)
    cells.set_yticks(middles, names)
    figure.savefig(given.output, dpi=100)
    return Path(given.output)


if __name__ == "__main__":
    show(main)

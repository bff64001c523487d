"""Share of 95 % intervals of a site's figures that include the truth: ``python benchmarks/interval_coverage.py``."""

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fedshift_app.features.site_figures.numbers import Scored, figures
from fedshift_app.features.site_figures.show import content
from fedshift_core.wire.counts import CALIBRATION_BINS

Floats = NDArray[np.float64]

IMAGES, OF_A_PATIENT, RIGHT = (30, 100, 1000), (1, 3, 10), (0.5, 0.9, 1.0)
#: How alike images of a patient are: the correlation of their scores, and whether patients have equally many.
ALIKE = {"identical": (1.0, True), "alike": (0.5, True), "alike, unequal numbers": (0.5, False)}
SHARPNESS = 2.0  # of the softmax of two classes: calibrated at none of RIGHT
PERFECT = 8.0  # standard deviations between a class and the decision, in place of infinitely many
FIGURES = ("accuracy", "sensitivity", "specificity", "balanced_accuracy", "auroc", "auprc", "brier", "ece")


def sizes(images: int, of_a_patient: int, *, equal: bool) -> NDArray[np.int64]:
    """Return the number of images of each patient: as equal as can be, or rising from the first to the last."""
    patients = images // of_a_patient
    weights = np.ones(patients) if equal else np.arange(1.0, patients + 1)
    edges = np.round(np.cumsum(weights) / weights.sum() * images).astype(np.int64)
    return np.diff(edges, prepend=0)


def drawn(rng: np.random.Generator, of: NDArray[np.int64], alike: float, distance: float) -> Scored:
    """Return scored images of patients, every other one of class 1, each image right with the same probability."""
    patient = np.repeat(np.arange(len(of)), of)
    y = patient % 2
    noise = np.sqrt(alike) * rng.normal(size=len(of))[patient] + np.sqrt(1 - alike) * rng.normal(size=len(y))
    x = (2 * y - 1) * distance + noise
    p = 1 / (1 + np.exp(-SHARPNESS * np.stack([-x, x], axis=1)))
    return Scored(p, (x > 0).astype(np.int64), y, patient.astype(str))


def truths(right: float) -> Mapping[str, float]:
    """Return the figures of infinitely many images, half of them of each class, by integration."""
    distance = PERFECT if right == 1 else float(ndtri(right))
    z = np.linspace(-9, 9, 1_000_001)
    weight = np.exp(-(z**2) / 2)
    weight /= weight.sum()
    x = z + distance
    confidence = 1 / (1 + np.exp(-SHARPNESS * np.abs(x)))
    bins = np.minimum(np.ceil(confidence * CALIBRATION_BINS).astype(int) - 1, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weight * ((x > 0) - confidence))
    above, of_others = 1 - ndtr(z), 1 - ndtr(x + distance)  # shares of either class that score x or more
    precision = np.divide(above, above + of_others, out=np.ones_like(z), where=above > 0)
    return dict.fromkeys(FIGURES[:4], float(ndtr(distance))) | {
        "auroc": float(ndtr(np.sqrt(2) * distance)), "auprc": float(weight @ precision),
        "brier": float(weight @ (1 / (1 + np.exp(SHARPNESS * x))) ** 2), "ece": float(np.abs(gaps).sum()),
    }  # fmt: skip


def _triple(site: Mapping[str, Any], name: str) -> list[float] | None:
    """Return a figure with its interval, of one by class that of class 1; None if there is none."""
    parts = ("value", "low", "high")
    of_class = site["per_class"].get(name) if name not in site else None
    triple = [of_class[part][1] if of_class else site[name][part] for part in parts]
    return None if None in triple else triple


def coverage(
    images: int, of_a_patient: int, kind: str, right: float, repetitions: int, sites: int = 1
) -> dict[str, tuple[float, float]]:
    """Return by figure the percentage of intervals that include the truth, and the mean width.

    Args:
        images: Number of test images of a site.
        of_a_patient: Images of a patient, on average.
        kind: One of ``ALIKE``.
        right: The true accuracy.
        repetitions: How often the sites are drawn.
        sites: Number of sites; of several the figures are those over all sites.
    """
    alike, equal = ALIKE[kind]
    rng = np.random.default_rng([images, of_a_patient, list(ALIKE).index(kind), round(100 * right), sites])
    of, truth = sizes(images, of_a_patient, equal=equal), truths(right)
    known: dict[str, list[tuple[bool, float]]] = {name: [] for name in FIGURES}
    distance = PERFECT if right == 1 else float(ndtri(right))
    for _ in range(repetitions):
        made = [(i, f"site {i}", figures(drawn(rng, of, alike, distance))) for i in range(sites)]
        section = content(made, 1, ("benign", "malignant"))
        for name in FIGURES:
            if (triple := _triple(section["overall"] or section["sites"][0], name)) is not None:
                value, low, high = triple
                assert low <= value <= high
                assert low < high
                # At 8 standard deviations the truth is 1 but for 1e-15.
                known[name].append((low <= truth[name] + 1e-12 and truth[name] - 1e-12 <= high, high - low))
    return {
        name: (100 * float(np.mean([hit for hit, _ in each])), float(np.mean([width for _, width in each])))
        for name, each in known.items()
    }


def main() -> None:
    """Print a Markdown table: coverage in percent at each true accuracy, and the mean width of accuracy's interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2000, help="sites drawn for each cell")
    repetitions = parser.parse_args().repetitions
    heads = [name.replace("_", " ") for name in FIGURES]
    print(f"| sites x images | of a patient | {' | '.join(heads)} | width of accuracy's |")
    print(f"|--:|---|{'--:|' * (len(heads) + 1)}")
    cells = [(images, number, 1) for images in IMAGES for number in OF_A_PATIENT]
    for images, number, sites in [*cells, (100, 1, 3), (100, 10, 3)]:
        for kind in ALIKE if number > 1 else ("identical",):
            each = [coverage(images, number, kind, right, repetitions, sites) for right in RIGHT]
            shown = [" / ".join(f"{cell[name][0]:.1f}" for cell in each) for name in FIGURES]
            widths = " / ".join(f"{cell['accuracy'][1]:.2f}" for cell in each)
            whose = f"{number}, {kind}" if number > 1 else "1"
            print(f"| {sites} x {images} | {whose} | {' | '.join(shown)} | {widths} |", flush=True)


if __name__ == "__main__":
    main()

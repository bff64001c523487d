r"""Figures of masks: Dice, IoU, 95 % Hausdorff distance and surface Dice, by image, patient and site.

Of a class, with M its pixels in the mask, P those predicted, and d the distances of each outline's pixels to the other
outline, in millimetres where the spacing of all images is known, else in pixels:

.. math::
    \mathrm{Dice}=\frac{2|M\cap P|}{|M|+|P|},\quad \mathrm{IoU}=\frac{|M\cap P|}{|M\cup P|},\quad
    \mathrm{HD}_{95}=\max(q_{95}(d_{P\to M}),q_{95}(d_{M\to P})),

    \mathrm{SD}_\tau=\frac{|d_{P\to M}\le\tau|+|d_{M\to P}\le\tau|}{|d_{P\to M}|+|d_{M\to P}|}

An image counts for a class that its mask or the prediction has; where only one has it, Dice, IoU and surface Dice are
0, and the Hausdorff distance, which is then undefined, does not count the image (Maier-Hein et al., "Metrics
reloaded", Nature Methods 2024). MONAI's functions give the same numbers (tests). A site's figure is the mean over
patients of their images' means, with the interval of Student's t over patients.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedshift_app.features.site_figures.numbers import units_of, visible_classes
from fedshift_core.intervals import LEAST_PATIENTS
from fedshift_datasets.listing import IGNORED

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]
Flags = NDArray[np.bool_]

METRICS = ("dice", "iou", "hd95", "surface_dice")
PARTS = ("value", "low", "high", "images", "patients")
ABSENT = -1.0  # of a part that nobody may know, or that is undefined
TAIL = 0.975


def of_images(
    masks: Pixels, predicted: Pixels, classes: int, tolerance: float, spacing: Floats | None = None
) -> Floats:
    """Return the figures of each image and class besides the background, (4, N, C - 1); NaN where undefined.

    Args:
        masks: (N, H, W); where they are ignored, the prediction is too.
        predicted: (N, H, W).
        classes: C.
        tolerance: tau, in the unit of distances.
        spacing: The distance from pixel to pixel, down and across, (N, 2); None: 1.
    """
    figures = np.full((len(METRICS), len(masks), classes - 1), np.nan)
    for i, (mask, said) in enumerate(zip(masks, predicted, strict=True)):
        counts, between = mask != IGNORED, None if spacing is None else spacing[i]
        for k in range(1, classes):
            figures[:, i, k - 1] = _of_pair((mask == k) & counts, (said == k) & counts, tolerance, between)
    return figures


def _of_pair(own: Flags, said: Flags, tolerance: float, spacing: Floats | None) -> tuple[float, float, float, float]:
    both, either = np.count_nonzero(own & said), np.count_nonzero(own | said)
    if not either:
        return np.nan, np.nan, np.nan, np.nan
    if not (own.any() and said.any()):
        return 0.0, 0.0, np.nan, 0.0
    there, back = _distances(said, own, spacing), _distances(own, said, spacing)
    far = max(float(np.quantile(there, 0.95)), float(np.quantile(back, 0.95)))
    near = np.count_nonzero(there <= tolerance) + np.count_nonzero(back <= tolerance)
    return 2 * both / (both + either), both / either, far, near / (len(there) + len(back))


def _distances(of: Flags, to: Flags, spacing: Floats | None) -> Floats:
    """Return the distance of each pixel of one outline to another outline."""
    from scipy import ndimage  # here: it takes a second to import

    outline, other = (region & ~ndimage.binary_erosion(region) for region in (of, to))
    distances: Floats = ndimage.distance_transform_edt(~other, sampling=spacing)[outline]
    return distances


def of_site(figures: Floats, patients: NDArray[np.str_] | None, least: int) -> Floats:
    """Return the figures of a site, (4, C - 1, 5): value, low and high of an interval, images, patients.

    Args:
        figures: Of its images, (4, N, C - 1).
        patients: Of each image, (N,), texts; empty: an image on its own. None if nobody says.
        least: Least images of a class behind a number; the numbers of a class of fewer are ``ABSENT``, and so are those
            of another, if the difference to all images would give them away.
    """
    units, _ = units_of(patients, figures.shape[1])
    held = np.array([np.isfinite(figures[0, :, k]).sum() for k in range(figures.shape[2])])
    visible = visible_classes(held, least)
    site = np.full((len(METRICS), figures.shape[2], len(PARTS)), ABSENT)
    for k in np.flatnonzero(visible):
        for m in range(len(METRICS)):
            known = np.isfinite(figures[m, :, k])
            if known.sum() >= max(least, 1):
                most = np.inf if METRICS[m] == "hd95" else 1.0
                site[m, k] = _over_patients(figures[m, known, k], units[known], most, known=patients is not None)
    return site


def rounded(site: Floats, rate: Callable[[str, float, int], float], least: int) -> Floats:
    """Return the figures of a site whose owner lets numbers out in steps alone, without intervals and distances.

    Args:
        site: As :func:`of_site` returns them.
        rate: Takes the name of a figure, its value and the number of images behind it, and returns the rounded value.
        least: Fewer patients are not counted.
    """
    steps = site.copy()
    steps[..., 1:3] = steps[METRICS.index("hd95")] = ABSENT
    for m, k in zip(*np.nonzero(steps[..., 0] != ABSENT), strict=True):
        steps[m, k, 0] = rate(f"{METRICS[m]}/{k}", float(site[m, k, 0]), int(site[m, k, 3]))
    steps[..., 4][steps[..., 4] < least] = ABSENT
    return steps


def _over_patients(values: Floats, units: NDArray[np.int64], most: float, *, known: bool) -> tuple[float, ...]:
    """Return the mean over patients of their images' mean values, its interval, and the numbers of both."""
    from scipy import stats  # here: it takes a second to import

    _, places = np.unique(units, return_inverse=True)
    means = np.bincount(places, values) / np.bincount(places)
    value, low, high = float(means.mean()), ABSENT, ABSENT
    if len(means) >= LEAST_PATIENTS:
        half = float(stats.t.ppf(TAIL, len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means)))
        low, high = max(value - half, 0.0), min(value + half, most)
    return value, low, high, len(values), len(means) if known else ABSENT

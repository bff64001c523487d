r"""Figures beyond accuracy from the counts that nodes send: by domain and overall (docs/guide/figures.md).

With N_ij how often class i is taken for j, n_i = sum_j N_ij and m_j = sum_i N_ij:

.. math::
    R_i=\frac{N_{ii}}{n_i},\quad P_i=\frac{N_{ii}}{m_i},\quad F_i=\frac{2N_{ii}}{n_i+m_i},\quad
    \mathrm{balanced}=\operatorname*{mean}_{n_i>0}R_i,\quad \mathrm{macroF1}=\operatorname*{mean}_{n_i>0}F_i

.. math:: \mathrm{ECE}=\sum_b\frac{n_b}{n}\left|\frac{c_b}{n_b}-\frac{s_b}{n_b}\right|

over 15 bins of equal width with n_b images, c_b of them right, and summed confidence s_b (Guo et al., "On Calibration
of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599). AUC is that of each class against all
others, averaged over the classes that have both.
"""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from fedshift_app.run import checkpoints
from fedshift_app.run.config_file import first_problem
from fedshift_core.limits import as_found
from fedshift_core.wire.counts import Counts, Ints
from strategies.federation.context import RoundResult
from strategies.federation.roster import Node

log = logging.getLogger("fedshift")

FILE = "figures.json"  # in the run folder: the figures of the last round scored on all test images
OF_ROUND = "figures-{:05d}.json"  # next to the checkpoint of a round that may be chosen: its figures
#: The figures that are one number, all in percent.
SHORT = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece")
MOST_DOMAINS, MOST_CLASSES = 500, 20_000  # of a results file

Shares = NDArray[np.float64]


class _FromFile(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A part of the figures of a run folder."""


class PerClass(_FromFile):
    """Figures by class in percent; None if a class has no test image or is never predicted."""

    recall: tuple[float | None, ...] = Field((), max_length=MOST_CLASSES)
    precision: tuple[float | None, ...] = Field((), max_length=MOST_CLASSES)
    n: tuple[int, ...] = Field((), max_length=MOST_CLASSES)


class Of(_FromFile):
    """The figures of a domain, or of all domains."""

    n: int = Field(ge=0)  # scores: an image counts once for each model scored on it
    images: int | None = Field(None, ge=0)  # distinct images; None if unknown
    accuracy: float | None
    balanced_accuracy: float | None
    macro_f1: float | None
    auc: float | None
    auc_within: float | None = None
    ece: float | None
    per_class: PerClass = PerClass()
    confusion: tuple[tuple[int, ...], ...] | None = Field(None, max_length=MOST_CLASSES)

    @property
    def images_text(self) -> str:
        """The number of distinct test images, with the number of scores if it differs."""
        return images_text(self.n, self.images)


class Figures(_FromFile):
    """The key ``figures`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = Field((), max_length=MOST_CLASSES)
    domains: dict[str, Of | None] = Field(max_length=MOST_DOMAINS)
    overall: Of | None = None


def images_text(scores: int, images: int | None, noun: str = "", mark: str = "") -> str:
    """Return the number of distinct images behind some scores, with the number of scores if it differs.

    Args:
        scores: Number of scores; an image counts once for each model scored on it.
        images: Number of distinct images; None if unknown.
        noun: Text after the number of images.
        mark: Separator of thousands.
    """
    if images is None or images == scores:
        return f"{scores:{mark}}{noun}"
    return f"{images:{mark}}{noun} ({scores:{mark}} scores)"


def total_images_text(domains: Sequence[Of]) -> str:
    """Return :func:`images_text` of several domains together."""
    distinct = [figures.images for figures in domains if figures.images is not None]
    total = sum(distinct) if len(distinct) == len(domains) else None
    return images_text(sum(figures.n for figures in domains), total, mark=",")


def test_images(nodes: Sequence[Node], domain: str, *, drawn: bool) -> int | None:
    """Return the number of distinct test images of a domain; None if unknown.

    Args:
        nodes: All nodes of the run.
        domain: The domain.
        drawn: Each node drew test images of its own (``shift.label_mix=own``), which may overlap.
    """
    if drawn:
        return None
    counts = [node.tests_of(domain) for node in nodes if node.domain == domain]
    if not counts:
        return next((count for node in nodes if (count := node.tests_of(domain))), None)
    shared = any(node.shared_test for node in nodes if node.domain == domain)
    return (max(counts) if shared else sum(counts)) or None


def section(
    result: RoundResult, classes: Sequence[str], nodes: Sequence[Node] = (), *, drawn: bool = False
) -> dict[str, Any] | None:
    """Return the section of ``results.json`` on a round's counts; None if no node counted.

    Args:
        result: The round.
        classes: Names of the classes.
        nodes: All nodes of the run.
        drawn: Each node drew test images of its own (``shift.label_mix=own``).
    """
    if not result.counts:
        return None
    images = {name: test_images(nodes, name, drawn=drawn) for name in result.counts}
    distinct = [number for number in images.values() if number is not None]
    known = [counts for counts in result.counts.values() if counts is not None]
    overall = sum(known[1:], known[0]) if len(known) == len(result.counts) else None
    return {
        "round": result.server_round,
        "classes": list(classes),
        "domains": {
            name: None if counts is None else of(counts, images[name]) for name, counts in result.counts.items()
        },
        "overall": None if overall is None else of(overall, sum(distinct) if len(distinct) == len(images) else None),
    }


def of(counts: Counts, images: int | None = None) -> dict[str, Any]:
    """Return the figures of counts, in percent; None for one that is not defined.

    Args:
        counts: The counts of the nodes.
        images: Number of distinct images behind them; None if unknown.
    """
    of_class, right, predicted = counts.classes
    n = counts.images
    recall, precision = shares(right, of_class), shares(right, predicted)
    f1 = np.where(of_class > 0, 2 * right / np.maximum(of_class + predicted, 1), np.nan)
    auc, within = (np.full(1, np.nan),) * 2 if counts.scores is None else aucs(counts.scores)
    return {
        "n": n,
        "images": images,
        "accuracy": _percent(right.sum() / n if n else np.nan),
        "balanced_accuracy": _percent(_mean(recall)),
        "macro_f1": _percent(_mean(f1)),
        "auc": _percent(_mean(auc)),
        "auc_within": _percent(_mean(within)),
        "ece": _percent(ece(counts.calibration)),
        "per_class": {
            "recall": [_percent(value) for value in recall],
            "precision": [_percent(value) for value in precision],
            "n": of_class.tolist(),
        },
        "confusion": None if counts.confusion is None else counts.confusion.tolist(),
    }


def shares(part: Ints | Shares, whole: Ints | Shares) -> Shares:
    """Return part / whole; NaN where the whole is 0."""
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))


def ece(calibration: Shares) -> float:
    """Return the expected calibration error of counts by bin of confidence, (3, bins); NaN without images."""
    number, right, confidence = calibration
    return float(np.abs(right - confidence).sum() / number.sum()) if number.sum() else float("nan")


def aucs(scores: Ints) -> tuple[Shares, Shares]:
    r"""Return the area under the ROC curve of each class against all others, and its largest error.

    .. math:: A=\frac{1}{PN}\sum_bp_b\Big(\sum_{a<b}n_a+\tfrac12n_b\Big),\quad |A-A'|\le\frac{1}{2PN}\sum_bp_bn_b

    Pairs in different bins are ordered as their scores are; of a pair in one bin, which counts half here, the exact
    area A' counts 0, half or 1.

    Args:
        scores: Histograms of the images of each class (p) and of all others (n), (2, C, B).

    Returns:
        Both (C,), NaN where a class has no image, or all.
    """
    own, others = scores.astype(np.float64)
    pairs = own.sum(axis=1) * others.sum(axis=1)
    below = np.cumsum(others, axis=1) - others
    area, tied = (own * (below + others / 2)).sum(axis=1), (own * others).sum(axis=1) / 2
    return shares(area, pairs), shares(tied, pairs)


def kept(folder: Path, server_round: int | None) -> dict[str, Any] | None:
    """Return the figures of a round in a run folder; None if there are none.

    A warning names a file that cannot be used.
    """
    if server_round is None:
        return None
    files = folder / FILE, folder / checkpoints.FOLDER / OF_ROUND.format(server_round)
    return next((content for file in files if (content := _read(file, server_round))), None)


def _read(file: Path, server_round: int) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        checked = Figures.model_validate(content)
    except ValidationError as error:
        problem, value = first_problem(error)
        log.warning("%s is left out: %s, found %s", file, problem, as_found(value))
        return None
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s is left out: %s", file, error)
        return None
    return content if checked.round == server_round else None


def _mean(values: Shares) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def _percent(value: float) -> float | None:
    return None if np.isnan(value) else 100 * float(value)

r"""Shown of counted test images: ``figures`` of ``results.json``, and a model that predicts one class.

With N_ij how often class i is taken for j, n_i = sum_j N_ij and m_j = sum_i N_ij:

.. math::
    R_i=\frac{N_{ii}}{n_i},\quad P_i=\frac{N_{ii}}{m_i},\quad F_i=\frac{2N_{ii}}{n_i+m_i},\quad
    \mathrm{balanced}=\operatorname*{mean}_{n_i>0}R_i,\quad \mathrm{macroF1}=\operatorname*{mean}_{n_i>0}F_i

.. math:: \mathrm{ECE}=\sum_b\frac{n_b}{n}\left|\frac{c_b}{n_b}-\frac{s_b}{n_b}\right|

over 15 bins of equal width with n_b images, c_b of them right, and summed confidence s_b (Guo et al., "On Calibration
of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599). AUC is that of each class against all
others, averaged over the classes that have both.
"""

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from fedshift_core.accuracies import average, percent
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.losses import Losses
from fedshift_core.rounds import round_name
from fedshift_core.shown import Column, FromFile, History, Shown
from fedshift_core.wire.counts import Counts, Ints

KEY = "figures"
ONE_CLASS = "predicts_one_class"  # of a round in metrics.jsonl, and of results.json
SEVERAL = "one class in each domain, not the same in all"
UNEQUAL = 2.0  # classes are, where the largest has more than so many times the images of the smallest

Shares = NDArray[np.float64]
#: The figures that are one number, all in percent.
SHORT = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece")


class PerClass(FromFile):
    """Figures by class in percent; None if a class has no test image or is never predicted."""

    recall: tuple[float | None, ...] = ()
    precision: tuple[float | None, ...] = ()
    n: tuple[int, ...] = ()


class Of(FromFile):
    """The figures of a domain, or of all domains."""

    n: NonNegativeInt  # scores: an image counts once for each model scored on it
    images: NonNegativeInt | None = None  # distinct images; None if unknown
    accuracy: float | None
    balanced_accuracy: float | None
    macro_f1: float | None
    auc: float | None
    auc_within: float | None = None
    ece: float | None
    per_class: PerClass = PerClass()
    confusion: tuple[tuple[int, ...], ...] | None = None

    @property
    def images_text(self) -> str:
        """The number of distinct test images, with the number of scores if it differs."""
        return images_text(self.n, self.images)


class Figures(FromFile):
    """The key ``figures`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = ()
    domains: dict[str, Of | None]
    overall: Of | None = None

    @classmethod
    def short(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the figures that are one number."""
        domains = {
            name: figure and {key: figure.get(key) for key in ("n", "images", *SHORT)}
            for name, figure in content["domains"].items()
        }
        return {"round": content["round"], "domains": domains}


def images_text(scores: int, images: int | None, noun: str = "", mark: str = "") -> str:
    """Return the number of distinct images behind some scores, with the number of scores if it differs.

    Args:
        scores: Number of scores; an image counts once for each model scored on it.
        images: Number of distinct images; None if unknown.
        noun: Text after the number of images.
        mark: Separator of thousands.
    """
    more = "" if images in (None, scores) else f" ({scores:{mark}} scores)"
    return f"{scores if images is None else images:{mark}}{noun}{more}"


def _total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is unknown."""
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


def show(history: History) -> Shown:
    """Return the figures of a round, their columns, the worst domain, and a line on a model that predicts one class."""
    results = history.results
    section = _section(history) if history.rounds else results.get(KEY)
    constant = _one_class_of(history) or results.get(ONE_CLASS)
    fields = {ONE_CLASS: constant} if constant else {}
    facts = (one_class_text(constant),) if constant else ()
    by_domain = section["domains"] if section else {}
    notes, columns = [], dict[str, Column]()
    if least := Losses.of(results).overall(results.get("domains", {})).worst_domain:
        of_least = by_domain.get(least)
        images = f", of {_images(of_least)}" if of_least else ""
        notes.append(f"worst domain: {least} {percent(results['domains'][least])}{images}")
    if section is None or not any(by_domain.values()):  # no columns of nothing, where all owners keep the counts
        return Shown(fields, section, notes=tuple(notes), facts=facts)
    for name, key in (("balanced^", "balanced_accuracy"), ("macro-F1^", "macro_f1")):
        values = {domain: given and given[key] for domain, given in by_domain.items()}
        columns[name] = (values, average(values), "")
    number = {domain: given and (given.get("images") or given["n"]) for domain, given in by_domain.items()}
    columns["images"] = (number, "", "")
    if all_of := section.get("overall"):
        names = zip(SHORT, ("accuracy", "balanced", "macro-F1", "AUC", "ECE"), strict=True)
        text = ", ".join(f"{name} {percent(all_of[key])}" for key, name in names if all_of[key] is not None)
        notes.append(f"^ of {round_name(section['round'])}; all {_images(all_of)} together: {text}")
    # Of unequal classes of a domain accuracy alone misleads: the columns are there, however wide the table is.
    held = [[n for n in (of_domain or {}).get("per_class", {}).get("n", ()) if n] for of_domain in by_domain.values()]
    unequal = any(each and max(each) > UNEQUAL * min(each) for each in held)
    columns, spare = (columns, {}) if unequal else ({}, columns)
    return Shown(fields, section, columns=columns, spare=spare, notes=tuple(notes), facts=facts)


def _section(history: History) -> dict[str, Any] | None:
    """Return the figures of the last round; None if no node counted."""
    counts: Mapping[str, Counts | None] = history.rounds[-1].passing.get(KEY, {})
    if not counts:
        return None
    images = {name: test_images(history.nodes, name, drawn=history.drawn) for name in counts}
    known = [of_domain for of_domain in counts.values() if of_domain is not None]
    overall = functools.reduce(operator.add, known) if len(known) == len(counts) else None
    return {
        "round": history.rounds[-1].server_round,
        "classes": list(history.classes),
        "domains": {name: of_domain and of(of_domain, images[name]) for name, of_domain in counts.items()},
        "overall": overall and of(overall, _total(images.values())),
    }


# --- a model that predicts one class -----------------------------------------------------------------


def one_class(counts: Iterable[Counts | None], classes: Sequence[str]) -> str:
    """Return the one class that the models of a round predict. Empty if they predict several or no node counted.

    Args:
        counts: By domain. One with images of a single class is ignored: to predict that class is right there.
        classes: Names of the classes.
    """
    found = [np.flatnonzero(c.classes[2]) for c in counts if c is not None and np.count_nonzero(c.classes[0]) > 1]
    if not found or any(len(predicted) != 1 for predicted in found):
        return ""
    names = {classes[predicted[0]] for predicted in found}
    return names.pop() if len(names) == 1 else SEVERAL


def _one_class_of(history: History) -> dict[str, Any] | None:
    """Return class and number of rounds if every scored round predicted one class; else None."""
    names = [result.shown.get(ONE_CLASS) for result in history.scored]
    if not names or not all(names):
        return None
    name = names[-1] if len({*names}) == 1 else SEVERAL
    return {"class": name, "rounds": len(names)}


def one_class_text(fields: Mapping[str, Any]) -> str:
    """Return a sentence on a model that predicts one class."""
    number, name = fields["rounds"], str(fields["class"])
    rounds = "the one scored round" if number == 1 else f"each of {number} scored rounds"
    which = name if name == SEVERAL else f"the one class {plain(name, MOST_NAME)!r}"
    return f"the model predicts {which} for all test images, in {rounds}: it has not learnt to distinguish classes"


# --- figures of counts ---------------------------------------------------------------------------------


def test_images(nodes: Sequence[Any], domain: str, *, drawn: bool) -> int | None:
    """Return the number of distinct test images of a domain; None if unknown.

    Args:
        nodes: All nodes of the run.
        domain: The domain.
        drawn: Each node drew test images of its own (``shift.label_mix=own``), which may overlap.
    """
    if drawn:
        return None
    counts = [node.tests_of(domain) for node in nodes if domain in node.domains]
    if not counts:
        return next((count for node in nodes if (count := node.tests_of(domain))), None)
    shared = any(node.shared_test for node in nodes if domain in node.domains)
    return (max(counts) if shared else sum(counts)) or None


def _images(figures: Mapping[str, Any]) -> str:
    return images_text(figures["n"], figures.get("images"), " test images")


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
    means = {"balanced_accuracy": recall, "macro_f1": f1, "auc": auc, "auc_within": within}
    return {
        "n": n,
        "images": images,
        "accuracy": _percent(right.sum() / n if n else np.nan),
        **{name: _percent(_mean(values)) for name, values in means.items()},
        "ece": _percent(ece(counts.calibration)),
        "per_class": {
            "recall": list(map(_percent, recall)),
            "precision": list(map(_percent, precision)),
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


def _mean(values: Shares) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else float("nan")


def _percent(value: float) -> float | None:
    return None if np.isnan(value) else 100 * float(value)

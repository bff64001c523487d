"""The metrics from nodes' counts: by domain, and recall and precision by class (docs/guide/figures.md)."""

from collections.abc import Mapping

from fedshift.run.html.sections import Section, Table
from fedshift_app.features.figures.show import SHORT, Figures, Of
from fedshift_core.accuracies import percent
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, few, plain
from fedshift_core.plural import plural
from fedshift_core.rounds import round_name

HEADS = ("accuracy", "balanced accuracy", "macro-F1", "AUC", "calibration error")  # of SHORT
ALL = "all together"
OPEN = 24  # the table of classes is open up to this number of classes


def section(figures: Figures | None, *, requested: bool = True) -> Section:
    """Return the section of the page; without figures it has a note instead.

    Args:
        figures: What the nodes counted; None where no node did.
        requested: Whether the run requested figures (evaluate.figures).
    """
    part = Section("by-class", "By class")
    if figures is None:
        part.missing = "No node counted by class (evaluate.figures; runs of earlier versions did not)."
        part.lacks = {part.name: "no node counted by class"} if requested else {}
        return part
    domains = few(figures.domains)
    shown = {name: counts for name, counts in domains.items() if counts is not None}
    if not shown and figures.overall is None:
        part.missing = "No node let out counts by class (docs/deploy/policy.md: figures)."
        return part
    part.notes = [
        f"In percent, of {round_name(figures.round)}, as the nodes counted their test images. Balanced accuracy and "
        "macro-F1: means over the classes that have test images; AUC: each class against all others; "
        "calibration error: 15 bins."
    ]
    if lacking := [name for name in domains if name not in shown]:
        part.notes.append(f"Missing: no node counted the images of {', '.join(lacking)}.")
    if (more := len(figures.domains) - MOST_SHOWN) > 0:
        part.notes.append(f"{plural(more, 'more domain is', 'more domains are')} in results.json.")
    classes = [plain(name, MOST_NAME) for name in figures.classes]
    if figures.overall is not None and len(figures.domains) > 1:
        shown[ALL] = figures.overall
    rows = [
        [name, counts.images_text, *(_percent(getattr(counts, key)) for key in SHORT)] for name, counts in shown.items()
    ]
    part.tables.append(Table("figures", ["domain", "test images", *HEADS], rows, beside=True))
    part.tables += _by_class(classes, shown)
    return part


def _by_class(classes: list[str], shown: Mapping[str, Of]) -> list[Table]:
    """Return recall, precision and number of scores of each class, as a table if any domain has them."""
    per_class = {name: counts.per_class for name, counts in shown.items()}
    complete = {
        name: of
        for name, of in per_class.items()
        if classes and {len(each) for each in (of.recall, of.precision, of.n)} == {len(classes)}
    }
    rows = [[name] for name in classes]
    for k, row in enumerate(rows):
        for of in complete.values():
            row += [_percent(of.recall[k]), _percent(of.precision[k]), str(of.n[k])]
    heads = ["class", *(f"{name}: {what}" for name in complete for what in ("recall", "precision", "images"))]
    folded = "Recall and precision by class"
    return [Table("classes", heads, rows, folded, len(classes) <= OPEN)] if complete else []


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)

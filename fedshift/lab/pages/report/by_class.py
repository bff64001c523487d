"""The metrics from nodes' counts: by domain, and recall and precision by class (docs/guide/figures.md)."""

from collections.abc import Mapping

from fedshift.run.html.drawing import (  # fmt: skip
    GRID,
    LABELLED,
    TEXT,
    Drawing,
    canvas,
    domain_colour,
    finish,
    short,
    titled,
)
from fedshift.run.html.sections import Section, Table
from fedshift_app.features.figures.show import SHORT, Figures, Of
from fedshift_core.accuracies import percent
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, few, plain
from fedshift_core.plural import plural
from fedshift_core.rounds import round_name

HEADS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "auc": "AUC",
    "ece": "calibration error",
}  # fmt: skip
ALL = "all together"
OPEN = 24  # the table of classes is open up to this number of classes
DRAWN = 8  # number of domains whose classes have bars


def section(figures: Figures | None, *, requested: bool = True) -> Section:
    """Return the section of the page; without figures it has a note instead.

    Args:
        figures: What the nodes counted; None where no node did.
        requested: Whether the run requested figures (evaluate.figures).
    """
    part = Section("by-class", "By class")
    if figures is None:
        part.missing = "No node counted by class (evaluate.figures; runs of earlier versions did not)."
        if requested:
            part.lacks[part.name] = "no node counted by class"
        return part
    domains = few(figures.domains)
    shown: dict[str, Of] = {name: counts for name, counts in domains.items() if counts is not None}
    if figures.overall is not None and len(figures.domains) > 1:
        shown[ALL] = figures.overall
    if not shown:
        part.missing = "No node let out counts by class (docs/deploy/policy.md: figures)."
        return part
    part.notes = [
        f"In percent, of {round_name(figures.round)}, as the nodes counted their test images. Balanced accuracy and "
        "macro-F1: means over the classes that have test images; AUC: each class against all others; "
        "calibration error: 15 bins."
    ]
    lacking = [name for name, counts in domains.items() if counts is None]
    if lacking:
        part.notes.append(f"Missing: no node counted the images of {', '.join(lacking)}.")
    if len(figures.domains) > MOST_SHOWN:
        part.notes.append(
            f"{plural(len(figures.domains) - MOST_SHOWN, 'more domain is', 'more domains are')} in results.json."
        )
    rows = [
        [name, counts.images_text, *(_percent(getattr(counts, key)) for key in SHORT)] for name, counts in shown.items()
    ]
    heads = ["domain", "test images", *(HEADS[key] for key in SHORT)]
    part.tables.append(Table("figures", heads, rows, next_to_figure=True))
    if classes := _by_class(figures, shown):
        part.tables.append(classes)
    if bars := _bars(figures, {name: counts for name, counts in shown.items() if name != ALL}, list(figures.domains)):
        part.figures.append(bars)
    return part


def _bars(figures: Figures, shown: Mapping[str, Of], domains: list[str]) -> Drawing | None:
    """Draw the recall of each class by domain; a class without test images has a mark."""
    number = len(figures.classes)
    drawable = {name: counts for name, counts in shown.items() if number and len(counts.per_class.recall) == number}
    complete = few(drawable, DRAWN)
    if not complete:
        return None
    figure, places = canvas(0.9 + 0.75 * len(complete), len(complete), 1, sharex=True, sharey=True)
    least: list[str] = []
    for axes, (name, counts) in zip(places, complete.items(), strict=True):
        recall = counts.per_class.recall
        known = [(value, k) for k, value in enumerate(recall) if value is not None]
        axes.bar([k for _, k in known], [value for value, _ in known], width=0.75,
                 color=domain_colour(domains.index(name)), label=name)  # fmt: skip
        axes.plot([k for k, value in enumerate(recall) if value is None], [4] * (number - len(known)), "x", color=GRID)
        if counts.balanced_accuracy is not None:
            axes.axhline(counts.balanced_accuracy, color=TEXT, linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 100])
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_title(titled(name), loc="left", fontsize=10)
        if known:
            value, k = min(known)
            least.append(f"{name} {plain(figures.classes[k], MOST_NAME)} {percent(value)}")
    last = places[-1]
    names = [short(plain(name, MOST_NAME)) for name in figures.classes]
    turned = 90 if max(map(len, names)) > 2 else 0
    if number <= LABELLED:
        last.set_xticks(range(number), names, rotation=turned)
    else:
        last.set_xticks([])
    marked = any(value is None for counts in complete.values() for value in counts.per_class.recall)
    cross = " A cross: no test image of the class." if marked else ""
    title = f"Recall of each class by domain in percent; lowest: {'; '.join(least) or 'missing'}."
    left = len(drawable) - len(complete)
    more = f" Not drawn: {plural(left, 'more domain')}; the table by class has them." if left else ""
    return finish(figure, "recall", title, f"{title} Dashed: their mean, the balanced accuracy.{cross}{more}")


def _by_class(figures: Figures, shown: dict[str, Of]) -> Table | None:
    """Return recall, precision and number of scores of each class."""
    number = len(figures.classes)
    complete = {
        name: counts.per_class for name, counts in shown.items()
        if {len(counts.per_class.recall), len(counts.per_class.precision), len(counts.per_class.n)} == {number}
    }  # fmt: skip
    if not complete or not number:
        return None
    rows = [
        [
            plain(label, MOST_NAME),
            *(
                cell for counts in complete.values()
                for cell in (_percent(counts.recall[k]), _percent(counts.precision[k]), str(counts.n[k]))
            ),
        ]
        for k, label in enumerate(figures.classes)
    ]  # fmt: skip
    heads = ["class", *(f"{name}: {what}" for name in complete for what in ("recall", "precision", "images"))]
    return Table("classes", heads, rows, "Recall and precision by class", number <= OPEN)


def _percent(value: float | None) -> str:
    return "-" if value is None else percent(value)

"""The figures that nodes' counts give: by domain, and recall and precision by class (docs/figures.md)."""

from collections.abc import Mapping

from fedshift.html.drawing import (  # fmt: skip
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
from fedshift.report.page import Section, Table
from fedshift_app.run.console import percent
from fedshift_app.run.figures import SHORT, Figures, Of
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, few, plain

HEADS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "auc": "AUC",
    "ece": "calibration error",
}  # fmt: skip
ALL = "all together"
OPEN = 24  # up to so many classes the table of classes is open
DRAWN = 8  # domains whose classes have bars


def section(told: Figures | None, *, asked: bool = True) -> Section:
    """Return the part of the page; without figures it says so.

    Args:
        told: What the nodes counted.
        asked: Whether the run asked for it (evaluate.figures).
    """
    found = Section("by-class", "By class")
    if told is None:
        found.missing = "No node counted by class (evaluate.figures; runs of earlier versions did not)."
        if asked:
            found.lacks[found.name] = "no node counted by class"
        return found
    domains = few(told.domains)
    shown: dict[str, Of] = {name: one for name, one in domains.items() if one is not None}
    if told.overall is not None and len(told.domains) > 1:
        shown[ALL] = told.overall
    found.notes = [
        f"In percent, of round {told.round}, as the nodes counted their test images. Balanced accuracy and macro-F1: "
        "means over the classes that have test images; AUC: each class against all others; calibration error: 15 bins."
    ]
    lacking = [name for name, one in domains.items() if one is None]
    if lacking:
        found.notes.append(f"Missing: no node counted the images of {', '.join(lacking)}.")
    if len(told.domains) > MOST_SHOWN:
        found.notes.append(f"{len(told.domains) - MOST_SHOWN} more domains are in results.json.")
    rows = [[name, one.told_images, *(_told(getattr(one, key)) for key in SHORT)] for name, one in shown.items()]
    heads = ["domain", "test images", *(HEADS[key] for key in SHORT)]
    found.tables.append(Table("figures", heads, rows, beside=True))
    if classes := _by_class(told, shown):
        found.tables.append(classes)
    if bars := _bars(told, {name: one for name, one in shown.items() if name != ALL}, list(told.domains)):
        found.figures.append(bars)
    return found


def _bars(told: Figures, shown: Mapping[str, Of], domains: list[str]) -> Drawing | None:
    """Draw the recall of each class by domain, one below the other; a class without test images has a mark."""
    number = len(told.classes)
    whole = {name: one for name, one in few(shown, DRAWN).items() if number and len(one.per_class.recall) == number}
    if not whole:
        return None
    figure, places = canvas(0.9 + 0.75 * len(whole), len(whole), 1, sharex=True, sharey=True)
    least: list[str] = []
    for axes, (name, one) in zip(places, whole.items(), strict=True):
        recall = one.per_class.recall
        known = [(value, k) for k, value in enumerate(recall) if value is not None]
        axes.bar([k for _, k in known], [value for value, _ in known], width=0.75,
                 color=domain_colour(domains.index(name)), label=name)  # fmt: skip
        axes.plot([k for k, value in enumerate(recall) if value is None], [4] * (number - len(known)), "x", color=GRID)
        if one.balanced_accuracy is not None:
            axes.axhline(one.balanced_accuracy, color=TEXT, linestyle="--", linewidth=1)
        axes.set_ylim(0, 100)
        axes.set_yticks([0, 50, 100])
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_title(titled(name), loc="left", fontsize=10)
        if known:
            value, k = min(known)
            least.append(f"{name} {plain(told.classes[k], MOST_NAME)} {percent(value)}")
    last = places[-1]
    names = [short(plain(name, MOST_NAME)) for name in told.classes]
    turned = 90 if max(map(len, names)) > 2 else 0
    if number <= LABELLED:
        last.set_xticks(range(number), names, rotation=turned)
    else:
        last.set_xticks([])
    marked = any(value is None for one in whole.values() for value in one.per_class.recall)
    cross = " A cross: no test image of the class." if marked else ""
    title = f"Recall of each class by domain in percent; lowest: {'; '.join(least) or 'missing'}."
    return finish(figure, "recall", title, f"{title} Dashed: their mean, the balanced accuracy.{cross}")


def _by_class(told: Figures, shown: dict[str, Of]) -> Table | None:
    """Return recall and precision of each class, with how often its test images were scored."""
    number = len(told.classes)
    whole = {
        name: one.per_class for name, one in shown.items()
        if {len(one.per_class.recall), len(one.per_class.precision), len(one.per_class.n)} == {number}
    }  # fmt: skip
    if not whole or not number:
        return None
    rows = [
        [
            plain(label, MOST_NAME),
            *(
                cell for one in whole.values()
                for cell in (_told(one.recall[k]), _told(one.precision[k]), str(one.n[k]))
            ),
        ]
        for k, label in enumerate(told.classes)
    ]  # fmt: skip
    heads = ["class", *(f"{name}: {what}" for name in whole for what in ("recall", "precision", "scores"))]
    return Table("classes", heads, rows, "Recall and precision by class", number <= OPEN)


def _told(value: float | None) -> str:
    return "-" if value is None else percent(value)

"""The figures that nodes' counts give: by domain, and recall and precision by class (docs/figures.md)."""

from fedshift_app.report.page import Section, Table
from fedshift_app.run.console import percent
from fedshift_app.run.figures import SHORT, Figures, Of
from fedshift_wire.bounds import MOST_NAME, MOST_SHOWN, few, plain

HEADS = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "macro_f1": "macro-F1", "auc": "AUC",
    "ece": "calibration error",
}  # fmt: skip
ALL = "all together"
OPEN = 24  # up to so many classes the table of classes is open


def section(told: Figures | None) -> Section:
    """Return the part of the page; without figures it says so."""
    found = Section("by-class", "By class")
    if told is None:
        found.missing = "Not shown: no node counted by class (evaluate.figures; runs of earlier versions did not)."
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
    rows = [[name, str(one.n), *(_told(getattr(one, key)) for key in SHORT)] for name, one in shown.items()]
    found.tables.append(Table("figures", ["domain", "test images", *(HEADS[key] for key in SHORT)], rows))
    if classes := _by_class(told, shown):
        found.tables.append(classes)
    return found


def _by_class(told: Figures, shown: dict[str, Of]) -> Table | None:
    """Return recall and precision of each class, with how many test images it has."""
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
    heads = ["class", *(f"{name}: {what}" for name in whole for what in ("recall", "precision", "images"))]
    return Table("classes", heads, rows, "Recall and precision by class", number <= OPEN)


def _told(value: float | None) -> str:
    return "-" if value is None else percent(value)

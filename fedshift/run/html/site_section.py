"""The figures that sites worked out themselves, with their 95 % intervals (docs/guide/figures.md)."""

from fedshift.run.html.sections import Section, Table
from fedshift_app.features.site_figures.show import AVERAGED, Figure, Site, Sites, how_intervals
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain
from fedshift_core.plural import plural
from fedshift_core.rounds import round_name
from fedshift_core.wire.site_figures import BY_CLASS, OVERALL

HEADS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier",
    "ece": "calibration error",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
}
OPEN = 60  # the table of classes is open up to this number of rows


def section(sites: Sites | None) -> Section:
    """Return the section of the page; without figures it has a note instead."""
    part = Section("sites", "Sites")
    if sites is None:
        part.missing = "No site worked out metrics (evaluate.site_figures; runs of earlier versions did not)."
        return part
    shown = [*sites.sites[:MOST_SHOWN], *([sites.overall] if sites.overall else [])]
    if sites.mix.warning:
        part.notes.append(f"Warning: {sites.mix.warning}.")
    part.notes.append(
        f"From 0 to 1, with 95 % intervals, of {round_name(sites.round)}, as each site worked them out of its own test "
        f"images; {how_intervals([sites])}. AUROC and AUPRC: one class against the rest, mean over the classes that a "
        "site has."
    )
    if sites.overall:
        part.notes += _of_all(sites.overall)
    if len(sites.sites) > MOST_SHOWN:
        part.notes.append(f"{plural(len(sites.sites) - MOST_SHOWN, 'more site is', 'more sites are')} in results.json.")
    rows = [
        [
            plain(site.site, MOST_NAME),
            str(site.images),
            _count(site.patients),
            *(_over_classes(site, name) for name in OVERALL),
        ]
        for site in shown
    ]
    heads = ["site", "test images", "patients", *(HEADS[name] for name in OVERALL)]
    part.tables.append(Table("site-figures", heads, rows, "Metrics by site"))
    by_class = [
        [
            plain(name, MOST_NAME),
            plain(site.site, MOST_NAME),
            _count(site.images_of_class[k] if k < len(site.images_of_class) else None),
            *(_of_class(site, kind, k) for kind in BY_CLASS),
        ]
        for k, name in enumerate(sites.classes)
        for site in shown
    ]
    heads = ["class", "site", "test images", *(HEADS[name] for name in BY_CLASS)]
    part.tables.append(Table("site-classes", heads, by_class, "By class and site", len(by_class) <= OPEN))
    return part


def _of_all(overall: Site) -> list[str]:
    """Return which figures of all sites are averaged, and which are of fewer sites."""
    how = {HEADS[name]: overall.figure(name).how for name in OVERALL}
    notes = []
    if averaged := [name for name, text in how.items() if text.startswith(AVERAGED)]:
        notes.append(f"All sites: {', '.join(averaged)} are the {AVERAGED}; the others are pooled.")
    if fewer := {name: text.rpartition(", ")[2] for name, text in how.items() if ", " in text}:
        parts = [
            f"{', '.join(name for name, of in fewer.items() if of == number)} of {number}"
            for number in dict.fromkeys(fewer.values())
        ]
        notes.append(f"All sites, where some have too few images: {'; '.join(parts)}.")
    return notes


def _over_classes(site: Site, name: str) -> str:
    figure = site.figure(name)
    classes = sum(images is not None for images in site.images_of_class)
    some = figure.classes is not None and figure.value is not None and figure.classes < len(site.images_of_class)
    return text(figure) + (
        f", {figure.classes} of {plural(len(site.images_of_class), 'class', 'classes')}" if some and classes else ""
    )


def _of_class(site: Site, kind: str, k: int) -> str:
    column = site.per_class.get(kind)
    return "-" if column is None or k >= len(column.value) else text(column.at(k))


def text(figure: Figure) -> str:
    """Return a figure with its interval as text."""
    return figure.mark or "-" if figure.value is None else f"{figure.value:.3f} ({figure.interval})"


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)

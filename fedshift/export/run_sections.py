"""Makes what a saved model's card says of the run: notes and tables of its report, protection of its nodes, limits."""

from collections.abc import Sequence

from fedshift.export.saved import MOST_LINES, MOST_TEXT, Shown
from fedshift.run.html import site_section as sites
from fedshift.run.reading import Record
from fedshift_app.run import shown
from fedshift_core.limits import MOST_NAME, plain, shortened
from fedshift_core.plural import capital
from fedshift_core.shown import History


def of_run(record: Record) -> list[Shown]:
    """Return the sections of the card that are about the run; of an unfinished one what protected it, and limits."""
    parts, history = [], History(record.config, results=record.results or {})
    protection = [line for _, each in shown.of_features(history) for line in each.protection]
    if record.finished and record.results is not None:
        evaluated = f"Top-1 accuracy (%) of the {record.results['evaluated']}."
        warning = [f"Warning: {record.contradiction}."] if record.contradiction else []
        facts = [f"{capital(fact)}." for fact in shown.facts(history)]
        parts.append(_shown("What the run says of its scores", [*warning, evaluated, *facts]))
        by_site = sites.section(record.sections.get("site_figures"))
        table = by_site.tables[0] if by_site.tables else None
        parts.append(
            _shown(
                "Metrics of sites, with intervals", [*filter(None, [by_site.missing]), *by_site.notes],
                *([table.heads, *table.rows] if table else ()),
            )
        )  # fmt: skip
    return [*parts, _shown("What protected the nodes", protection), _shown("Use and limits", _limits(record))]


def _shown(title: str, notes: Sequence[str], *table: Sequence[str]) -> Shown:
    return Shown(
        title=title, notes=tuple(_text(note) for note in notes[:MOST_LINES]),
        table=tuple(tuple(map(_text, row)) for row in table[:MOST_LINES]),
    )  # fmt: skip


def _text(text: str) -> str:
    return shortened(plain(text, MOST_TEXT), MOST_TEXT)


def _limits(record: Record) -> list[str]:
    known = [plain(domain, MOST_NAME) for domain in record.config.dataset.domains]
    return [
        f"It is for images like those of {', '.join(known)}, prepared as above. Each image gets one of the classes "
        "above, also an image of none of them.",
        "Its scores are of test images of these sites; images of other sites, devices or years may be recognised "
        "worse. `fedshift evaluate` scores it on images of yours.",
        "It is the outcome of research software, and no medical device.",
    ]

"""Makes what a saved model's card says of the run: notes and tables of its report, protection of its nodes, limits."""

from collections.abc import Sequence

from fedshift.export.saved import MOST_LINES, MOST_TEXT, Shown
from fedshift.report import sites, summary
from fedshift.report.reading import Record
from fedshift_app.run import files
from fedshift_core.limits import MOST_NAME, plain, shortened


def of_run(record: Record) -> list[Shown]:
    """Return the sections of the card that are about the run; of an unfinished one what protected it, and limits."""
    parts = []
    if record.finished and record.results is not None:
        over = files.averaged_over(record.results, record.lines)
        _, notes = summary.columns_of(record.results, record.config, over)
        notes = [note for note in notes if not note.startswith(("*", "+"))]  # of columns that the card has not
        warning = [f"Warning: {record.contradiction}."] if record.contradiction else []
        parts.append(_shown("What the run says of its scores", [*warning, *notes]))
        by_site = sites.section(record.sites)
        table = by_site.tables[0] if by_site.tables else None
        parts.append(
            _shown(
                "Metrics of sites, with intervals", [*filter(None, [by_site.missing]), *by_site.notes],
                *([table.heads, *table.rows] if table else ()),
            )
        )  # fmt: skip
    return [*parts, _shown("What protected the nodes", _protection(record)), _shown("Use and limits", _limits(record))]


def _shown(title: str, notes: Sequence[str], *table: Sequence[str]) -> Shown:
    return Shown(
        title=title, notes=tuple(_text(note) for note in notes[:MOST_LINES]),
        table=tuple(tuple(map(_text, row)) for row in table[:MOST_LINES]),
    )  # fmt: skip


def _text(text: str) -> str:
    return shortened(plain(text, MOST_TEXT), MOST_TEXT)


def _protection(record: Record) -> list[str]:
    privacy = record.config.privacy
    return [
        "Privacy: none was promised; weights can tell of single images."
        if privacy.name == "none"
        else f"Privacy: {privacy.name}, delta {privacy.delta:g}; what it spent is among the notes on scores.",
        "Secure sums: the server saw sums over nodes alone."
        if record.config.federation.secure_sums
        else "Secure sums: none; the server saw the weights of each node.",
    ]


def _limits(record: Record) -> list[str]:
    known = [plain(domain, MOST_NAME) for domain in record.config.dataset.domains]
    return [
        f"It is for images like those of {', '.join(known)}, prepared as above. Each image gets one of the classes "
        "above, also an image of none of them.",
        "Its scores are of test images of these sites; images of other sites, devices or years may be recognised "
        "worse. `fedshift evaluate` scores it on images of yours.",
        "It is the outcome of research software, and no medical device.",
    ]

"""What the page of a run consists of: sections, tables, figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedshift.run.html.drawing import Drawing


@dataclass(frozen=True)
class Table:
    """A table of words and numbers.

    Attributes:
        id: Its name on the page.
        heads: Headings of its columns.
        rows: Its cells.
        folded: The summary line under which it can be folded.
        open: Whether it is open at first.
        next_to_figure: Whether it is placed next to the first figure and cannot be folded.
    """

    id: str
    heads: list[str]
    rows: list[list[str]]
    folded: str = ""
    open: bool = True
    next_to_figure: bool = False


@dataclass
class Section:
    """A part of the page.

    Attributes:
        id: Its anchor.
        name: Its heading.
        missing: Reason why it is missing or incomplete.
        lacks: Reasons why figures could not be drawn, by name; not of figures that a run like this never has.
        notes: Notes on its figures.
        figures: Its figures.
        strips: By domain, images.
        tables: Its tables.
    """

    id: str
    name: str
    missing: str = ""
    lacks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: list[Drawing] = field(default_factory=list)
    strips: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether it has only the reason why it is missing."""
        return bool(self.missing) and not (self.figures or self.strips or self.tables)


def folded(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with content, and one that lists the reasons for the others.

    Otherwise a deployment, or a domain without images, would have five headings with the same sentence.
    """
    why: dict[str, list[str]] = {}
    for section in sections:
        if section.empty:
            why.setdefault(section.missing, []).append(section.name)
    if not why:
        return list(sections)
    lines = [f"{' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}: {reason}"
             for reason, names in why.items()]  # fmt: skip
    return [*(section for section in sections if not section.empty), Section("not-shown", "Not shown", notes=lines)]

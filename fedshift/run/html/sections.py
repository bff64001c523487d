"""What the page of a run consists of: sections, tables, figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedshift.run.html.drawing import Plot


@dataclass(frozen=True)
class Table:
    """A table of words and numbers.

    Attributes:
        id: Its name on the page.
        heads: Headings of its columns; none where each row has one.
        rows: Its cells. A float is an accuracy in percent, None a missing one.
        folded: The summary line under which it can be folded.
        open: Whether it is open at first.
        beside: Whether it is placed next to the first figure and cannot be folded.
        kind: Its style: ``words`` or, of domains, AVG and STD, ``domains``.
        notes: Notes under it.
    """

    id: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    folded: str = ""
    open: bool = True
    beside: bool = False
    kind: str = ""
    notes: Sequence[str] = ()


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
        tables: Its tables.
    """

    id: str
    name: str
    missing: str = ""
    lacks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether it has only the reason why it is missing."""
        return bool(self.missing) and not (self.figures or self.tables)

    def leave_out(self, why: str) -> None:
        """Set the reason why nothing of it can be drawn."""
        self.missing = f"{why[:1].upper()}{why[1:]}."
        self.lacks[self.name] = why


def folded(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with content, and one that lists the reasons for the others, each once."""
    why: dict[str, list[str]] = {}
    for section in sections:
        if section.empty:
            why.setdefault(section.missing, []).append(section.name)
    shown = [section for section in sections if not section.empty]
    return [*shown, Section("not-shown", "Not shown", notes=by_reason(why))] if why else shown


def by_reason(why: dict[str, list[str]]) -> list[str]:
    """Return a line for each reason, with the names that it holds for."""
    return [f"{', '.join(names)}: {reason}" for reason, names in why.items()]

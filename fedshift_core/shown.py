"""Features as a run shows them: the hook ``show(history) -> Shown`` of each that shows anything.

Console, results.json, report, model card, compare and board have from it all that they show of features. It is called
with a round right after it, with all rounds at the end, and with the content of ``results.json`` by whoever reads a
run folder. It imports neither Flower nor torch, as the files of many runs are read with it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from fedshift_core.accuracies import average
from fedshift_core.run_settings import RunSettings


class FromFile(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A part of a file of a run folder."""

    @classmethod
    def short(cls, content: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what ``compare --keep`` keeps of the content."""
        return content


Cell = float | str | None  # an accuracy, None where it is missing; an ``int`` or a text is shown as it is
#: The values of the domains, of AVG and of STD.
Column = tuple[Mapping[str, Cell], Cell, Cell]


@dataclass(frozen=True)
class History:
    """A run as it is known: its rounds while it goes on, its results afterwards.

    Attributes:
        config: The configuration.
        rounds: One round right after it, all at the end of a run (``RoundResult``); none where results are read.
        nodes: All nodes of the run.
        results: Content of ``results.json``.
        classes: Names of the classes.
        repeated: Number of rounds that were begun once more.
        writing: Seconds that writing the run folder took.
    """

    config: RunSettings
    rounds: Sequence[Any] = ()
    nodes: Sequence[Any] = ()
    results: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] = ()
    repeated: int = 0
    writing: float = 0.0

    @property
    def scored(self) -> list[Any]:
        """The rounds that were scored on all test images."""
        return [result for result in self.rounds if result.accuracy and result.evaluated_share == 1]

    @property
    def drawn(self) -> bool:
        """Whether each node drew test images of its own, which may overlap."""
        return bool(self.config.shift.label_mix == "own")

    def of_rounds(self, key: str) -> list[Any]:
        """Return what the rounds have under a key of their lines, first round first."""
        return [result.shown[key] for result in self.rounds if key in result.shown]


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        head: The headings.
        rows: The cells of each row.
        below: How many of the last rows stand under a second rule.
        notes: Lines under it.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    below: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shown:
    """A feature as it is seen.

    Attributes:
        results: Fields of ``results.json``.
        section: Content of its file of one round, which is in ``results.json`` too (``Feature.section``).
        file: Content of its file of the whole run; empty for none.
        log: Text for the end of the log.
        columns: Columns of the final table by heading.
        spare: Columns that are left out where the others leave no room.
        notes: Lines on the columns.
        facts: Lines that change how the numbers of a run are read; they stand wherever it is seen.
        tables: Tables under the final one.
        protection: Lines of the model card on what protected the nodes.
    """

    results: Mapping[str, Any] = field(default_factory=dict)
    section: Mapping[str, Any] | None = None
    file: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    columns: Mapping[str, Column] = field(default_factory=dict)
    spare: Mapping[str, Column] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    protection: tuple[str, ...] = ()


def chosen(result: Any, images: str) -> dict[str, Any]:
    """Return a chosen round with its accuracy on the test images."""
    return {
        "round": result.server_round,
        "chosen_on": images,
        "domains": result.accuracy,
        "avg": average(result.accuracy),
    }


class Named(NamedTuple):
    """What a node gave of one domain, with a name that no other has: the domain, where no other node has it."""

    name: str
    node: int
    domain: str
    given: Any


def named(sites: Sequence[tuple[int, str, Any]]) -> list[Named]:
    """Return what nodes gave, with names; index, domain and what it gave of each."""
    number_of = Counter(domain for _, domain, _ in sites)
    return [
        Named(domain if number_of[domain] == 1 else f"{domain} (node {node})", node, domain, given)
        for node, domain, given in sites
    ]

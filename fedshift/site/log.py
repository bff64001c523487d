"""``fedshift site log``: reads and verifies the log of what left a node (:mod:`fedshift_app.node.out_log`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel

from fedshift.run import columns as tables
from fedshift_app.node import chained_log
from fedshift_app.node.chained_log import HEAD_FILE, INTERRUPTED, LOG_FILE, REPLY, Head, LogError
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural

MOST_PROBLEMS = 20  # that are printed; the rest is counted
_MOST = {"sha256": 16, "first": 19, "last": 19, "time": 19}  # characters that are shown of a value, by its key
_TITLES = {"message": "asked to", "word": "tells", "sha256": "SHA-256"}
_OF_RUN = ("run", "first", "last", "rounds", "replies", "items", "bytes", "epsilon", "delta")
_OF_REPLY = ("time", "round", "message", "images", "items", "bytes", "epsilon", "delta")
_OF_ITEM = ("name", "kind", "word", "shape", "norm", "images", "bytes", "sha256")


class Line(BaseModel, strict=True, extra="allow"):
    """A line of the log: its number, kind, and the hash of the line before.

    The first line of a reply has more: when it left, of which run and round, to which message, and what it spent.

    Attributes:
        lines: Of a mark: so many lines before it were cut off while they were logged, and never sent.
        code: The hash of the node's code; packages that took part and the code of the run have their own.
        place: Its place in the file.
    """

    n: int
    kind: str
    before: str
    lines: int = 0
    time: str = ""
    run: str = ""
    flower_run: str = ""
    round: int = 0
    message: str = ""
    items: int = 0
    bytes: int = 0
    images: int = 0
    epsilon: float | None = None
    delta: float | None = None
    code: str = ""
    code_of_run: str = ""
    packages: dict[str, Any] = {}
    place: int = 0

    @property
    def codes(self) -> str:
        """All code that took part."""
        run = [f"the run brought {self.code_of_run}"] if self.code_of_run else []
        return shown(", ".join([self.code, *(f"{name} {sha256}" for name, sha256 in self.packages.items()), *run]))


@dataclass
class Checked:
    """A log as it was found.

    Attributes:
        folder: The node's folder.
        head: What is kept apart from the log; None where it is missing.
        lines: Number of lines.
        problems: What is missing, changed or in another order; empty where nothing is.
        interrupted: Replies that were cut off while they were logged, and never sent.
        sent: The replies that left, in their order.
    """

    folder: Path
    head: Head | None = None
    lines: int = 0
    problems: list[str] = field(default_factory=list)
    interrupted: int = 0
    sent: list[Line] = field(default_factory=list)


def read(folder: Path) -> Checked:
    """Read a node's log and verify its chain, while no process writes it.

    Raises:
        ConfigError: If there is no log.
        OSError: If it cannot be read.
    """
    checked, path = Checked(folder), folder / LOG_FILE
    if not path.exists() and not (folder / HEAD_FILE).exists():
        raise ConfigError(f"no log is here: {shown(folder)}; nothing has left this node yet, or its log was removed")
    with chained_log.locked(folder):
        try:
            checked.head = Head.read(folder)
            if checked.head is None:
                checked.problems.append(f"{HEAD_FILE} is missing: lines could be missing at the end")
        except LogError as error:
            checked.problems.append(str(error))
        if path.exists():
            with path.open("rb") as file:
                _verify(checked, file)
        elif checked.head and checked.head.lines:
            said = plural(checked.head.lines, "line")
            checked.problems.append(f"{LOG_FILE} is missing; {HEAD_FILE} says that it has {said}")
    known = {sent.flower_run: sent.run for sent in checked.sent if sent.run}
    for sent in checked.sent:  # from before a run had an id
        sent.run = sent.run or known.get(sent.flower_run, f"flower {sent.flower_run}")
    return checked


def _verify(checked: Checked, file: BinaryIO) -> None:
    """Go through a log line by line, hold each against the one before, and all against the head."""
    head, found, number, at_head = checked.head, Head(), 0, Head()
    unread: list[int] = []
    for place, raw in enumerate(file, 1):
        line, before, number = raw.removesuffix(b"\n"), found.sha256, number + 1
        found = chained_log.extended(found, line)
        at_head = found if head is not None and place == head.lines else at_head
        if (entry := _parsed(line)) is None:
            unread.append(place)
            continue
        if entry.n != number:
            checked.problems.append(
                f"line {place} says that it is line {entry.n}, not {number}: lines are missing, added or in another "
                "order before it"
            )
            number = entry.n
        elif entry.before != before:
            checked.problems.append(f"line {place - 1} is not what it was when line {place} was written")
        if entry.kind == INTERRUPTED:
            checked.interrupted += 1
            unread = [other for other in unread if other < place - entry.lines]
            checked.sent = [sent for sent in checked.sent if sent.place < place - entry.lines]
        elif entry.kind == REPLY and (head is None or found.bytes <= head.bytes):
            checked.sent.append(entry.model_copy(update={"place": place}))
    checked.lines, most = found.lines, found.lines if head is None else head.lines
    checked.problems += [f"line {place} cannot be read" for place in unread if place <= most]
    if head is not None:
        size = file.tell()
        checked.interrupted += (
            size > head.bytes
        )  # a process has ended while it wrote: the next one that writes marks it
        if size < head.bytes or found.lines < head.lines:
            checked.problems.append(
                f"lines are missing, maybe at the end: {HEAD_FILE} says {head.lines} of {plural(head.bytes, 'byte')}, "
                f"found are {found.lines} of {size}"
            )
        elif at_head != head:
            checked.problems.append(f"line {head.lines} is not the one of which {HEAD_FILE} has the hash")


def _parsed(line: bytes) -> Line | None:
    """Return a line; None if it is none."""
    try:
        return Line.model_validate_json(line)
    except ValueError:
        return None


# --- as text ----------------------------------------------------------------------------------------


def runs(checked: Checked) -> dict[str, list[Line]]:
    """Return the replies by run, in the order of their first ones."""
    by_run: dict[str, list[Line]] = {}
    for sent in checked.sent:
        by_run.setdefault(sent.run, []).append(sent)
    return by_run


def run_of(checked: Checked, begun: str) -> str:
    """Return the run whose id begins so.

    Raises:
        ConfigError: If there is none, or there are several.
    """
    ids = [run for run in runs(checked) if run.startswith(begun)]
    if len(ids) != 1:
        known = ", ".join(runs(checked)) or "none"
        raise ConfigError(
            f"--run: {as_found(begun)} begins the id of {plural(len(ids), 'run')} in this log; it has {known}"
        )
    return ids[0]


def verdict(checked: Checked) -> str:
    """Return what was verified in one line; problems are for standard error."""
    path, ending = shown(checked.folder / LOG_FILE, WHOLE_PATH), "not as it was written"
    if not checked.problems:
        last = f"; the last one is {_text('sha256', checked.head.sha256)}..." if checked.head else ""
        ending = f"none is missing or changed{last}"
    cut = f"; {checked.interrupted} cut off while logged, never sent" if checked.interrupted else ""
    return f"{path}: {plural(checked.lines, 'line', form=',')}{cut}; {ending}"


def by_run(checked: Checked) -> list[str]:
    """Return a table with a line for each run, and the sums."""
    groups = runs(checked)
    every = groups if len(groups) == 1 else groups | {"all": checked.sent}
    rows = [{"run": run} | _sums(sent) for run, sent in every.items()]
    return _table(_OF_RUN, rows) + _codes(checked.sent)


def of_run(checked: Checked, run: str) -> list[str]:
    """Return a table with a line for each reply of a run."""
    replies = runs(checked)[run]
    return _table(_OF_REPLY, map(dict, replies)) + _codes(replies)


def of_round(checked: Checked, run: str, server_round: int) -> Iterator[str]:
    """Yield each array, number and text that left in a round, as a table for each reply."""
    for sent in runs(checked)[run]:
        if sent.round == server_round:
            with (checked.folder / LOG_FILE).open("rb") as file:
                lines = [*map(_parsed, islice(file, sent.place, sent.place + sent.items))]
            yield f"{_text('time', sent.time)}  round {sent.round}  {_text('message', sent.message)}"
            yield from _table(_OF_ITEM, (line.model_dump() for line in lines if line is not None), "  ")


def as_object(checked: Checked) -> dict[str, Any]:
    """Return all of it as one object for JSON."""
    return {
        "file": str(checked.folder / LOG_FILE),
        "lines": checked.lines,
        "head": checked.head.model_dump() if checked.head else None,
        "problems": checked.problems[:MOST_PROBLEMS],
        "more_problems": len(checked.problems[MOST_PROBLEMS:]),
        "interrupted": checked.interrupted,
        "runs": [{"run": run} | _sums(sent) for run, sent in runs(checked).items()],
        "all": _sums(checked.sent),
    }


def _sums(sent: Sequence[Line]) -> dict[str, Any]:
    spent = [reply.epsilon for reply in sent if reply.epsilon is not None]
    return {
        "first": sent[0].time if sent else None,
        "last": sent[-1].time if sent else None,
        "rounds": len({reply.round for reply in sent if reply.round}),
        "replies": len(sent),
        "code": sorted({reply.codes for reply in sent if reply.codes}),
        "items": sum(reply.items for reply in sent),
        "bytes": sum(reply.bytes for reply in sent),
        "epsilon": sum(spent) if spent else None,
        "delta": sum(reply.delta or 0 for reply in sent) if spent else None,
    }


def _table(keys: Sequence[str], rows: Iterable[Mapping[str, Any]], indent: str = "") -> list[str]:
    cells = [[_text(key, row.get(key)) for key in keys] for row in rows]
    return tables.columns([[_TITLES.get(key, key) for key in keys], *cells], indent, ruled=True)


def _codes(replies: Sequence[Line]) -> list[str]:
    return [f"code: {code}" for code in _sums(replies)["code"]]


def _text(key: str, value: Any) -> str:
    """Return a value in a cell; a stranger may have written it."""
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    text = " x ".join(map(str, value)) if isinstance(value, list) else shown(value or "", MOST_NAME)
    return text[: _MOST.get(key)] or "-"

"""``fedshift site log``: reads and verifies the log of what left a node (:mod:`fedshift_app.node.out_log`)."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel

from fedshift.run import columns as tables
from fedshift_app.node import chained_log
from fedshift_app.node.chained_log import HEAD_FILE, INTERRUPTED, LOG_FILE, NOTHING, REPLY, Head, LogError
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural

MOST_PROBLEMS = 20  # that are printed; the rest is counted
HASH_SHOWN = 16


class Line(BaseModel, strict=True, extra="allow"):
    """A line of the log: its number, kind, and the hash of the line before."""

    n: int
    kind: str
    before: str


class Cut(Line):
    """A line that marks so many lines before it as cut off while they were logged, and never sent."""

    lines: int


class Sent(Line):
    """The first line of a reply, which left: when, of which run and round, to which message, and what it spent.

    Attributes:
        code: The hash of the node's code; packages that took part and the code of the run have their own.
        parts: The lines of its arrays, numbers and texts, where they are asked for.
        place: Its place in the file.
    """

    time: str
    run: str
    flower_run: str
    round: int
    message: str
    items: int
    bytes: int
    images: int
    epsilon: float | None = None
    delta: float | None = None
    code: str = ""
    code_of_run: str = ""
    packages: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    place: int = 0

    @property
    def codes(self) -> str:
        """All code that took part."""
        more = [*(f"{name} {sha256}" for name, sha256 in self.packages.items())]
        more += [f"the run brought {self.code_of_run}"] if self.code_of_run else []
        return shown(", ".join([self.code, *more]))


@dataclass
class Checked:
    """A log as it was found.

    Attributes:
        folder: The node's folder.
        head: What is kept apart from the log; None where it is missing.
        lines: Number of lines.
        problems: What is missing, changed or in another order; empty where nothing is.
        more_problems: Number of problems that are not printed.
        interrupted: Replies that were cut off while they were logged, and never sent.
        sent: The replies that left, in their order.
    """

    folder: Path
    head: Head | None = None
    lines: int = 0
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0
    interrupted: int = 0
    sent: list[Sent] = field(default_factory=list)

    def tell(self, problem: str) -> None:
        """Note a problem."""
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
        else:
            self.more_problems += 1


def read(folder: Path, *, lines_of: tuple[str, int] | None = None) -> Checked:
    """Read a node's log and verify its chain, while no process writes it.

    Args:
        folder: The node's folder.
        lines_of: The beginning of a run's id and a round whose lines are wanted one by one.

    Raises:
        ConfigError: If there is no log.
        OSError: If it cannot be read.
    """
    checked = Checked(folder)
    path = folder / LOG_FILE
    if not path.exists() and not (folder / HEAD_FILE).exists():
        raise ConfigError(f"no log is here: {shown(folder)}; nothing has left this node yet, or its log was removed")
    with chained_log.locked(folder):
        try:
            checked.head = Head.read(folder)
            if checked.head is None:
                checked.tell(f"{HEAD_FILE} is missing: lines could be missing at the end")
        except LogError as error:
            checked.tell(str(error))
        if path.exists():
            with path.open("rb") as file:
                _verify(checked, file, lines_of)
        elif checked.head is not None and checked.head.lines:
            checked.tell(f"{LOG_FILE} is missing; {HEAD_FILE} says that it has {plural(checked.head.lines, 'line')}")
    known = {sent.flower_run: sent.run for sent in checked.sent if sent.run}
    for sent in checked.sent:  # from before a run had an id
        sent.run = sent.run or known.get(sent.flower_run, f"flower {sent.flower_run}")
    return checked


def _verify(checked: Checked, file: BinaryIO, lines_of: tuple[str, int] | None) -> None:
    """Go through a log line by line, hold each against the one before, and all against the head."""
    head, size, before, number = checked.head, 0, NOTHING, 0
    end, at_head = math.inf if head is None else head.bytes, head is None or not head.lines
    unread: list[int] = []
    for place, raw in enumerate(file, 1):
        size, line, checked.lines = size + len(raw), raw.removesuffix(b"\n"), place
        number += 1
        if (entry := _parsed(line)) is None:
            unread.append(place)
        elif entry.n != number:
            checked.tell(
                f"line {place} says that it is line {entry.n}, not {number}: lines are missing, added or in another "
                "order before it"
            )
            number = entry.n
        elif entry.before != before:
            checked.tell(f"line {place - 1} is not what it was when line {place} was written")
        before = chained_log.digest(line)
        if isinstance(entry, Cut):
            checked.interrupted += 1
            unread = [other for other in unread if other < place - entry.lines]
            checked.sent = [sent for sent in checked.sent if sent.place < place - entry.lines]
        elif entry is not None and size <= end:
            _take(checked.sent, entry, place, lines_of)
        if head is not None and size == head.bytes:
            at_head = place == head.lines and before == head.sha256
    checked.interrupted += size > end  # a process has ended while it wrote: the next one that writes marks it
    for place in unread:
        if head is None or place <= head.lines:
            checked.tell(f"line {place} cannot be read")
    if head is not None and (size < head.bytes or checked.lines < head.lines):
        checked.tell(
            f"lines are missing, maybe at the end: {HEAD_FILE} says {head.lines} of {plural(head.bytes, 'byte')}, "
            f"found are {checked.lines} of {size}"
        )
    elif head is not None and not at_head:
        checked.tell(f"line {head.lines} is not the one of which {HEAD_FILE} has the hash")


def _take(replies: list[Sent], entry: Line, place: int, lines_of: tuple[str, int] | None) -> None:
    """Add a reply, or a line to the last one where its lines are wanted."""
    if isinstance(entry, Sent):
        entry.place = place
        replies.append(entry)
    elif replies and lines_of and lines_of == (replies[-1].run[: len(lines_of[0])] or lines_of[0], replies[-1].round):
        replies[-1].parts.append(entry.model_dump())


def _parsed(line: bytes) -> Line | None:
    """Return a line as its kind has it; None if it is of no kind."""
    try:
        content = json.loads(line)
        kinds: dict[str, type[Line]] = {REPLY: Sent, INTERRUPTED: Cut}
        return kinds.get(content["kind"], Line).model_validate(content)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


# --- as text ----------------------------------------------------------------------------------------


def runs(checked: Checked) -> dict[str, list[Sent]]:
    """Return the replies by run, in the order of their first ones."""
    by_run: dict[str, list[Sent]] = {}
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
    path = shown(checked.folder / LOG_FILE, WHOLE_PATH)
    cut = f"; {checked.interrupted} cut off while logged, never sent" if checked.interrupted else ""
    if checked.problems:
        return f"{path}: {plural(checked.lines, 'line', form=',')}{cut}: not as it was written"
    last = checked.head.sha256[:HASH_SHOWN] if checked.head else ""
    return (
        f"{path}: {plural(checked.lines, 'line', form=',')}{cut}; none is missing or changed; the last one is {last}..."
    )


def by_run(checked: Checked) -> list[str]:
    """Return a table with a line for each run, and the sums."""
    head = ("run", "first", "last", "rounds", "replies", "items", "bytes", "epsilon", "delta")
    groups = [*runs(checked).items()]
    rows = []
    for run, sent in groups if len(groups) == 1 else [*groups, ("all", checked.sent)]:
        sums = _sums(sent)
        times = (_time(sums[key]) if sums[key] else "-" for key in ("first", "last"))
        counts = (f"{sums['rounds']}", f"{sums['replies']}", f"{sums['items']}", f"{sums['bytes']:,}")
        rows.append((shown(run, MOST_NAME), *times, *counts, _spent(sums["epsilon"]), _spent(sums["delta"])))
    return _table(head, rows, checked.sent)


def of_run(checked: Checked, run: str) -> list[str]:
    """Return a table with a line for each reply of a run."""
    head = ("time", "round", "asked to", "images", "items", "bytes", "epsilon", "delta")
    replies = runs(checked)[run]
    rows = [
        (_time(sent.time), str(sent.round), shown(sent.message, MOST_NAME), str(sent.images), str(sent.items),
         f"{sent.bytes:,}", _spent(sent.epsilon), _spent(sent.delta))
        for sent in replies
    ]  # fmt: skip
    return _table(head, rows, replies)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], replies: Sequence[Sent]) -> list[str]:
    return [*tables.columns([head, *rows], "", ruled=True), *(f"code: {code}" for code in _sums(replies)["code"])]


def of_round(checked: Checked, run: str) -> Iterator[str]:
    """Yield the lines of a run's replies of which they were asked for, as a table for each reply."""
    head = ("name", "kind", "tells", "shape", "norm", "images", "bytes", "SHA-256")
    for sent in checked.sent:
        if sent.parts and sent.run == run:
            yield f"{_time(sent.time)}  round {sent.round}  {shown(sent.message, MOST_NAME)}"
            yield from tables.columns([head, *map(_item, sent.parts)], "  ", ruled=True)


def as_object(checked: Checked) -> dict[str, Any]:
    """Return all of it as one object for JSON."""
    return {
        "file": str(checked.folder / LOG_FILE), "lines": checked.lines,
        "head": asdict(checked.head) if checked.head else None, "problems": checked.problems,
        "more_problems": checked.more_problems, "interrupted": checked.interrupted,
        "runs": [{"run": run} | _sums(sent) for run, sent in runs(checked).items()], "all": _sums(checked.sent),
    }  # fmt: skip


def _sums(sent: Sequence[Sent]) -> dict[str, Any]:
    spent = [reply.epsilon for reply in sent if reply.epsilon is not None]
    return {
        "first": sent[0].time if sent else None, "last": sent[-1].time if sent else None,
        "rounds": len({reply.round for reply in sent if reply.round}), "replies": len(sent),
        "code": sorted({reply.codes for reply in sent if reply.codes}),
        "items": sum(reply.items for reply in sent), "bytes": sum(reply.bytes for reply in sent),
        "epsilon": sum(spent) if spent else None,
        "delta": sum(reply.delta or 0 for reply in sent) if spent else None,
    }  # fmt: skip


def _spent(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _item(entry: Mapping[str, Any]) -> tuple[str, ...]:
    norm, shape = entry.get("norm"), entry.get("shape")
    texts = (shown(entry.get(key, "-"), MOST_NAME) for key in ("name", "kind", "word"))
    return (
        *texts,
        " x ".join(map(str, shape)) if isinstance(shape, list) and shape else "-",
        f"{norm:.4g}" if isinstance(norm, int | float) else "-",
        shown(entry.get("images"), MOST_NAME), shown(entry.get("bytes"), MOST_NAME),
        shown(entry.get("sha256"), MOST_NAME)[:HASH_SHOWN],
    )  # fmt: skip


def _time(stamp: str) -> str:
    return shown(stamp, MOST_NAME)[:19].replace("T", " ")

"""``fedshift site log``: reads and verifies the log of what left a node (:mod:`fedshift_app.node.out_log`)."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fedshift.run import columns as tables
from fedshift_app.node import chained_log
from fedshift_app.node.chained_log import HEAD_FILE, INTERRUPTED, LOG_FILE, NOTHING, REPLY, Head, LogError
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural

MOST_PROBLEMS = 20  # that are printed; the rest is counted
HASH_SHOWN = 16


@dataclass
class Sent:
    """A reply that left.

    Attributes:
        time: When it was logged, in UTC.
        run: The run's id.
        flower_run: Flower's number of it.
        round: The round; 0 before the first.
        message: What the server had asked for: train, evaluate, query.
        items: Number of arrays, numbers and texts.
        bytes: Their bytes.
        images: The images behind it.
        epsilon: What it spent of the run's privacy; None where the run has no noise.
        delta: Likewise.
        code: The hash of the node's code, the packages that took part with theirs, and that of the run if it differs.
        lines: The lines of its items, where they are asked for.
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
    lines: list[dict[str, Any]] = field(default_factory=list)


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
        lines_of: A run and a round whose lines are wanted one by one.

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
                _Reader(checked, lines_of).read(file)
        elif checked.head is not None and checked.head.lines:
            checked.tell(f"{LOG_FILE} is missing; {HEAD_FILE} says that it has {plural(checked.head.lines, 'line')}")
    _name_runs(checked.sent)
    return checked


def _name_runs(replies: list[Sent]) -> None:
    """Give replies from before a run had an id that of the same run of Flower's."""
    known = {sent.flower_run: sent.run for sent in replies if sent.run}
    for sent in replies:
        sent.run = sent.run or known.get(sent.flower_run, f"flower {sent.flower_run}")


class _Reader:
    """Goes through a log line by line, and holds each against the one before."""

    def __init__(self, checked: Checked, lines_of: tuple[str, int] | None) -> None:
        self._checked, self._lines_of = checked, lines_of
        self._before, self._number = NOTHING, 0  # of the line before: its hash, and the number that it has or must have
        self._unread: list[int] = []  # lines that are no JSON, which a mark may explain
        self._open: tuple[int, Sent] | None = None  # the reply whose lines are being read, and its first line
        self._at_head = False  # the line that the head names was met

    def read(self, file: BinaryIO) -> None:
        """Read all lines, then hold them against the head."""
        checked, head, size, tail = self._checked, self._checked.head, 0, 0
        for place, raw in enumerate(file, 1):
            size += len(raw)
            behind = head is not None and size > head.bytes
            tail += behind
            self._line(place, raw.removesuffix(b"\n"), behind=behind)
            if head is not None and size == head.bytes:
                self._at_head = place == head.lines and self._before == head.sha256
            checked.lines = place
        if tail:  # a process has ended while it wrote: the next one that writes marks it
            checked.interrupted += 1
        self._close()
        for place in self._unread:
            if head is None or place <= head.lines:
                checked.tell(f"line {place} cannot be read")
        if head is not None:
            self._hold_against(head, size)

    def _hold_against(self, head: Head, size: int) -> None:
        if size < head.bytes or self._checked.lines < head.lines:
            self._checked.tell(
                f"lines are missing, maybe at the end: {HEAD_FILE} says {head.lines} of "
                f"{plural(head.bytes, 'byte')}, found are {self._checked.lines} of {size}"
            )
        elif not self._at_head and head.lines:
            self._checked.tell(f"line {head.lines} is not the one of which {HEAD_FILE} has the hash")

    def _line(self, place: int, line: bytes, *, behind: bool) -> None:
        entry = _parsed(line)
        if entry is None:
            self._unread.append(place)
            self._before, self._number = chained_log.digest(line), self._number + 1
            return
        if entry["n"] != self._number + 1:
            self._checked.tell(
                f"line {place} says that it is line {entry['n']}, not {self._number + 1}: lines are missing, added or "
                "in another order before it"
            )
        elif entry["before"] != self._before:
            self._checked.tell(f"line {place - 1} is not what it was when line {place} was written")
        self._before, self._number = chained_log.digest(line), entry["n"]
        if entry["kind"] == INTERRUPTED:
            self._unread = [number for number in self._unread if number < place - entry["lines"]]
            self._checked.interrupted += 1
            self._close(unsent_from=place - entry["lines"])
        elif entry["kind"] == REPLY:
            self._close()
            self._open = None if behind else (place, _sent(entry))
        elif self._open is not None and self._wants(self._open[1]):
            self._open[1].lines.append(entry)

    def _wants(self, sent: Sent) -> bool:
        return self._lines_of is not None and sent.run in ("", self._lines_of[0]) and sent.round == self._lines_of[1]

    def _close(self, unsent_from: int | None = None) -> None:
        """End the reply whose lines were read; it was not sent if it began at the line ``unsent_from`` or later."""
        if self._open is not None and (unsent_from is None or self._open[0] < unsent_from):
            self._checked.sent.append(self._open[1])
        self._open = None


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line; None if they are not those of any kind."""
    try:
        entry = json.loads(line)
        wanted: dict[str, type] = {"n": int, "kind": str, "before": str}
        if entry["kind"] == REPLY:
            wanted |= dict.fromkeys(("time", "run", "flower_run", "message"), str)
            wanted |= dict.fromkeys(("round", "items", "bytes", "images"), int)
        elif entry["kind"] == INTERRUPTED:
            wanted |= {"lines": int}
        return dict(entry) if all(isinstance(entry[key], kind) for key, kind in wanted.items()) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _sent(entry: dict[str, Any]) -> Sent:
    fields = {key: entry[key] for key in ("time", "run", "flower_run", "round", "message", "items", "bytes", "images")}
    return Sent(**fields, epsilon=_number(entry.get("epsilon")), delta=_number(entry.get("delta")), code=_code(entry))


def _code(entry: Mapping[str, Any]) -> str:
    packages, other = entry.get("packages"), entry.get("code_of_run")
    more = [f"{name} {digest}" for name, digest in packages.items()] if isinstance(packages, dict) else []
    more += [f"the run brought {other}"] if isinstance(other, str) else []
    return shown(", ".join([str(entry.get("code", "")), *more]))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None  # a run without noise has neither


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
    rows = [_row(shown(run, MOST_NAME), sent) for run, sent in runs(checked).items()]
    if len(rows) != 1:
        rows.append(_row("all", checked.sent))
    return [*tables.columns([head, *rows], "", ruled=True), *(f"code: {code}" for code in _sums(checked.sent)["code"])]


def of_run(checked: Checked, run: str) -> list[str]:
    """Return a table with a line for each reply of a run."""
    head = ("time", "round", "asked to", "images", "items", "bytes", "epsilon", "delta")
    rows = [
        (_time(sent.time), str(sent.round), shown(sent.message, MOST_NAME), str(sent.images), str(sent.items),
         f"{sent.bytes:,}", *_spent(_sums([sent])))
        for sent in runs(checked)[run]
    ]  # fmt: skip
    table = tables.columns([head, *rows], "", ruled=True)
    return [*table, *(f"code: {code}" for code in _sums(runs(checked)[run])["code"])]


def of_round(checked: Checked, run: str) -> Iterator[str]:
    """Yield the lines of a run's replies of which they were asked for, as a table for each reply."""
    head = ("name", "kind", "tells", "shape", "norm", "images", "bytes", "SHA-256")
    for sent in checked.sent:
        if sent.lines and sent.run == run:
            yield f"{_time(sent.time)}  round {sent.round}  {shown(sent.message, MOST_NAME)}"
            yield from tables.columns([head, *map(_item, sent.lines)], "  ", ruled=True)


def as_object(checked: Checked) -> dict[str, Any]:
    """Return all of it as one object for JSON."""
    return {
        "file": str(checked.folder / LOG_FILE), "lines": checked.lines,
        "head": asdict(checked.head) if checked.head else None, "problems": checked.problems,
        "more_problems": checked.more_problems, "interrupted": checked.interrupted,
        "runs": [{"run": run} | _sums(sent) for run, sent in runs(checked).items()], "all": _sums(checked.sent),
    }  # fmt: skip


def _sums(sent: list[Sent]) -> dict[str, Any]:
    spent = [reply.epsilon for reply in sent if reply.epsilon is not None]
    return {
        "first": sent[0].time if sent else None, "last": sent[-1].time if sent else None,
        "rounds": len({reply.round for reply in sent if reply.round}), "replies": len(sent),
        "code": sorted({reply.code for reply in sent if reply.code}),
        "items": sum(reply.items for reply in sent), "bytes": sum(reply.bytes for reply in sent),
        "epsilon": sum(spent) if spent else None,
        "delta": sum(reply.delta for reply in sent if reply.delta is not None) if spent else None,
    }  # fmt: skip


def _row(name: str, sent: list[Sent]) -> tuple[str, ...]:
    sums = _sums(sent)
    first, last = (_time(sums[key]) if sums[key] else "-" for key in ("first", "last"))
    counts = (str(sums["rounds"]), str(sums["replies"]), str(sums["items"]), f"{sums['bytes']:,}")
    return (name, first, last, *counts, *_spent(sums))


def _spent(sums: Mapping[str, Any]) -> tuple[str, str]:
    """Return the sum of epsilon, and that of the deltas, at which it holds."""
    epsilon, delta = ("-" if sums[key] is None else f"{sums[key]:.3g}" for key in ("epsilon", "delta"))
    return epsilon, delta


def _item(entry: dict[str, Any]) -> tuple[str, ...]:
    norm, shape = entry.get("norm"), entry.get("shape")
    return (
        shown(entry.get("name"), MOST_NAME), shown(entry["kind"], MOST_NAME), shown(entry.get("word", "-"), MOST_NAME),
        " x ".join(map(str, shape)) if isinstance(shape, list) and shape else "-",
        f"{norm:.4g}" if isinstance(norm, int | float) else "-",
        shown(entry.get("images"), MOST_NAME), shown(entry.get("bytes"), MOST_NAME),
        shown(entry.get("sha256"), MOST_NAME)[:HASH_SHOWN],
    )  # fmt: skip


def _time(stamp: str) -> str:
    return shown(stamp, MOST_NAME)[:19].replace("T", " ")

"""The state of a run: writes ``status.json`` in its folder, and reads it for ``fedshift status``."""

import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints, config_file, console, exit_codes
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, RESULTS_FILE, changed_text
from fedshift_app.run.folder import RunFolder
from fedshift_app.run.logs import utc
from fedshift_app.run.summary import finite
from fedshift_core import atomic_io
from fedshift_core.accuracies import average, percent
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_REMEDY, plain, shortened
from fedshift_core.losses import Losses
from fedshift_core.plural import plural
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.roster import Listener, Node

FILE = "status.json"
WAITING, TRAINING, EVALUATING = "waiting", "training", "evaluating"
COMPLETED, DEGRADED, FAILED, INTERRUPTED = "completed", "degraded", "failed", "interrupted"
GATHERING = "gathering"  # never written: a run is being resumed, and its nodes are not connected yet
GOING_ON = (WAITING, TRAINING, EVALUATING, GATHERING)
HOLDER = ("pid", "host")  # keys of the process that writes the file
SAVE_SECONDS = 1.0  # shortest interval between two writes for answers and fast rounds
MOST_ERROR = 1000  # characters
MOST_LINE = 2 * MOST_REMEDY  # characters of a printed line
MOST_LEFT_OUT = 50  # left-out nodes that are printed
#: Nodes that are all in the file. Of more only those of the phase: it is written several times a round.
MOST_NODES = 1000


class StatusFile(Listener):
    """Writes ``status.json``; a failing disk is logged once and ends no run."""

    def __init__(self, folder: RunFolder, config: RunConfig, nodes: Sequence[Node]) -> None:
        """Replace the file of an earlier process."""
        self._folder, self._nodes = folder, nodes
        self._failed, self._saved = False, 0.0
        self._absent: set[int] = set()  # ids of nodes that are not connected
        self._asked: dict[int, bool] = {}  # by node id, whether it has answered in this phase
        self._silent: dict[int, float] = {}  # by node id, the time of its last sign
        self._left_out: list[dict[str, Any]] = []
        self._left: float | None = None
        self._fields: dict[str, Any] = {
            "state": TRAINING,
            "since": utc(time.time()),
            "experiment": config.experiment,
            "method": registry.label(config.method["name"]),
            "engine": folder.engine,
            "run_id": folder.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "round": min(len(folder.history) + 1, config.rounds),
            "rounds": config.rounds,
            "changed": list(folder.changed),
            "error": None,
        }
        self._save()

    def waiting(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Record that too few nodes are connected for the next round."""
        self.connected(present, nodes)
        self._asked = {}
        self._change(WAITING, min(len(self._folder.history) + 1, self._fields["rounds"]))

    def asked(self, server_round: int, nodes: Sequence[Node], *, training: bool) -> None:
        """Record that messages of a phase are sent to nodes, to some of them again."""
        state = TRAINING if training else EVALUATING
        if training or (state, server_round) != (self._fields["state"], self._fields["round"]):
            self._asked = {}
        self._asked |= {node.node_id: False for node in nodes}
        self._change(state, server_round)

    def connected(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Record the connected nodes; the next change writes them."""
        self._nodes = nodes
        self._absent = {node.node_id for node in nodes} - {node.node_id for node in present}

    def silent(self, since: Mapping[int, float]) -> None:
        """Record the nodes that do not answer; the next change writes them."""
        self._silent = dict(since)

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """Record that a node's answer in a round is not used."""
        self._forget_before(server_round - 1)
        self._left_out.append({"round": server_round, "node": node.index, "domain": node.domain, "reason": reason})

    def answered(self, node_ids: Collection[int]) -> None:
        """Record that nodes have answered."""
        if new := [node_id for node_id in node_ids if self._asked.get(node_id) is False]:
            self._asked |= dict.fromkeys(new, True)
            self._save(soon=True)

    def full_round(self, result: RoundResult, left: float) -> None:
        """Record that a round is in the run folder."""
        self._left = left
        self._forget_before(result.server_round)
        self._save(soon=True)

    def end(self, state: str, error: str | None) -> None:
        """Write the final state: completed, degraded, failed or interrupted."""
        self._fields["error"] = None if error is None else plain(shortened(error, MOST_ERROR), MOST_ERROR)
        server_round = self._fields["round"]
        if state in (COMPLETED, DEGRADED):
            self._left, server_round = 0.0, self._full_rounds  # a run may end early
        self._change(state, server_round)

    @property
    def _full_rounds(self) -> int:
        return self._folder.history[-1].server_round if self._folder.history else 0

    def _forget_before(self, server_round: int) -> None:
        self._left_out = [entry for entry in self._left_out if entry["round"] >= server_round]

    def _change(self, state: str, server_round: int) -> None:
        if (state, server_round) != (self._fields["state"], self._fields["round"]):
            self._fields |= {"state": state, "round": server_round, "since": utc(time.time())}
        self._save()

    def _save(self, *, soon: bool = False) -> None:
        now, path = time.monotonic(), self._folder.path / FILE
        if soon and now - self._saved < SAVE_SECONDS:
            return
        self._saved = now
        try:
            atomic_io.write_atomically(path, json.dumps(self._content(), ensure_ascii=False) + "\n")
        except OSError as error:
            if not self._failed:
                line, fields = "cannot write %s, the run continues without it: %s", {"event": "status_failed"}
                console.log.warning(line, path, error.strerror, extra=fields)
            self._failed = True

    def _content(self) -> dict[str, Any]:
        fields = self._fields | {
            "updated": utc(time.time()),
            "full_rounds": self._full_rounds,
            "asked": len(self._asked),
            "answered": sum(self._asked.values()),
            "left_out": self._left_out,
            "last_scored": None,
            "seconds": round(self._folder.seconds, 1),
            "seconds_left": None if self._left is None else round(self._left, 1),
        }
        if scored := next((result for result in reversed(self._folder.history) if result.accuracy), None):
            values = {"accuracy": scored.accuracy, "avg": average(scored.accuracy)}
            fields["last_scored"] = {"round": scored.server_round, **values, "evaluated_share": scored.evaluated_share}
        nodes, silent = self._nodes, {number: utc(since) for number, since in self._silent.items()}
        known_ids = {node.node_id for node in nodes} if silent else ()
        if len(nodes) > MOST_NODES:
            fields["nodes_in_all"] = len(nodes)
            shown = self._asked.keys() | silent.keys() | self._absent
            nodes = [node for node in nodes if node.node_id in shown]
        of_nodes = [
            {
                "index": node.index,
                "domain": node.domain,
                "num_examples": node.num_examples,
                "connected": node.node_id not in self._absent,
                "answered": self._asked.get(node.node_id),
                "silent_since": silent.get(node.node_id),
            }
            for node in nodes
        ]
        unknown = [{"node_id": str(i), "since": since} for i, since in silent.items() if i not in known_ids]
        content: dict[str, Any] = finite(fields) | {"nodes": of_nodes, "unknown": unknown}
        return content


def newest(output_dir: Path) -> Path:
    """Return the run folder that was started or resumed last.

    Raises:
        ConfigError: If there is none.
    """
    folders = [(file.stat().st_mtime, file.parent) for file in output_dir.glob(f"*/{CONFIG_FILE}")]
    if not folders:
        raise ConfigError(f"output-dir: no run folder in {output_dir}; name one: fedshift status RUN_FOLDER")
    return max(folders)[1]


def read(folder: Path) -> dict[str, Any]:
    """Return the content of ``status.json`` with the present state, ``folder``, the ``kept`` rounds and ``resume``.

    A killed process writes no final state: the run is interrupted if the folder's lock is free. A run is finished if
    and only if it has results; one that goes on with more rounds has those of before until its nodes are connected.

    Raises:
        ConfigError: If there is no such file, or no run has written it.
    """
    path = folder / FILE
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    try:
        locked = atomic_io.is_locked(folder / LOCK_FILE)  # first, as a run writes its state before it releases the lock
        status = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{folder} has no {FILE}: it is not the folder of a run, or is of an older version") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(status, dict) or any(status.get(key) is None for key in ("state", "engine", "round", "rounds")):
        raise ConfigError(f"{path} is not what a run writes: it lacks state, engine, round or rounds")
    state = _present_state(folder, status, locked=locked)
    return status | {
        "state": state,
        "folder": str(folder),
        "kept": checkpoints.rounds(folder / checkpoints.FOLDER),
        "resume": resume_command(folder, status["engine"]) if state in (FAILED, INTERRUPTED) else None,
    }


def _present_state(folder: Path, status: Mapping[str, Any], *, locked: bool) -> str:
    """Return the state of a run by what it has written last, its lock and its results."""
    written, results = str(status["state"]), folder / RESULTS_FILE
    complete = written in (COMPLETED, DEGRADED)
    if not locked:
        if results.exists():  # which finishes a run, even one stopped right then
            try:
                return DEGRADED if Losses.of(json.loads(results.read_text(encoding="utf-8"))).lines() else COMPLETED
            except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
                raise ConfigError(f"cannot read {results}: {error}") from None
        return INTERRUPTED if complete or written in GOING_ON else written
    # Complete by its own process, which is about to end, or by one before.
    own = complete and results.exists() and atomic_io.names_holder(folder / LOCK_FILE, *map(status.get, HOLDER))
    return written if own or written in GOING_ON else GATHERING


class _Scored(BaseModel, extra="allow"):
    """The last round that was scored."""

    round: int
    accuracy: dict[str, float | None]
    avg: float | None
    evaluated_share: float


class _Node(BaseModel, extra="allow"):
    """A node of the run."""

    index: int
    domain: str
    num_examples: int
    connected: bool
    answered: bool | None
    silent_since: str | None = None


class _Unknown(BaseModel, extra="allow"):
    """A connected node that has never described itself."""

    node_id: str
    since: str


class _Changed(BaseModel, extra="allow"):
    """Settings that were changed between two rounds."""

    from_round: int
    settings: dict[str, tuple[Any, Any]]


class _LeftOut(BaseModel, extra="allow"):
    """A node that was left out of a round."""

    round: int
    node: int
    reason: str


class _Content(BaseModel, extra="allow"):
    """The content of ``status.json``."""

    state: str
    engine: str
    experiment: str
    method: str
    pid: int
    host: str
    round: int
    rounds: int
    since: str
    updated: str
    full_rounds: int
    asked: int
    answered: int
    left_out: list[_LeftOut]
    changed: list[_Changed] = []
    last_scored: _Scored | None
    seconds: float
    seconds_left: float | None
    nodes: list[_Node]
    unknown: list[_Unknown] = []
    nodes_in_all: int | None = None
    error: str | None


def _check(path: Path, status: Mapping[str, Any]) -> None:
    """Refuse a status that no run has written.

    Raises:
        ConfigError: With the key.
    """
    try:
        _Content.model_validate(status)
    except ValidationError as error:
        raise ConfigError(f"{path} is not what a run writes: {config_file.first_problem(error)[0]}") from None


def resume_command(folder: Path, engine: str) -> str:
    """Return the command that continues a run; of a deployment, APP is the folder of the app."""
    if engine == DEPLOYMENT:
        return shlex.join(["flwr", "run", "APP", "SITE", "--stream", "--run-config", f'resume="{folder}"'])
    return shlex.join(["fedshift", "run", f"resume={folder}"])


def exit_code(status: Mapping[str, Any]) -> int:
    """Return the exit code of ``fedshift status`` for a run."""
    if status["state"] == DEGRADED:
        return exit_codes.DEGRADED
    return exit_codes.STOPPED_SHORT if status["state"] in (FAILED, INTERRUPTED) else exit_codes.OK


def exit_if_degraded(folder: Path) -> None:
    """Print what a run went without, if it did.

    Raises:
        SystemExit: With the exit code of a degraded run.
    """
    if (last := read(folder))["state"] == DEGRADED:
        print(f"degraded: {last['error']}", file=sys.stderr)
        raise SystemExit(exit_codes.DEGRADED)


def block(status: Mapping[str, Any]) -> str:
    """Return the status as text of several lines.

    Raises:
        ConfigError: If no run has written it.
    """
    _check(Path(status["folder"]) / FILE, status)
    return "\n".join(plain(line, MOST_LINE) for line in _lines(status))


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{status['state']}: {status['experiment']}, {status['method']}, engine {status['engine']}, "
        f"process {status['pid']} on {status['host']}"
    )
    yield f"  round     {status['round']} of {status['rounds']}, since {status['since']}, {status['full_rounds']} full"
    if scored := status["last_scored"]:
        accuracies = [*scored["accuracy"].items(), ("avg", scored["avg"])]
        on = console.share_text(scored["evaluated_share"])
        texts = [f"{name} {percent(value)}" for name, value in accuracies]
        yield "  ".join(["  accuracy", *texts, f"(round {scored['round']})", *([on] if on else [])])
    left = status["seconds_left"]
    remaining = f", left {console.duration(left)}" if left is not None and status["state"] in GOING_ON else ""
    yield f"  time      {console.duration(status['seconds'])}{remaining}, as of {status['updated']}"
    yield f"  answers   {status['answered']} of {plural(status['asked'], 'node')} that were asked"
    if in_all := status.get("nodes_in_all"):
        yield f"  nodes     {in_all}; shown are those that are asked, silent or not connected"
    left_out = status["left_out"]
    failed = {entry["node"] for entry in left_out}
    yield from (f"  node {_node(node, failed=node['index'] in failed)}" for node in status["nodes"])
    for node in status.get("unknown", [])[:MOST_LEFT_OUT]:
        name, since = node["node_id"], node["since"]
        yield f"  silent    a node with id {name} is connected and has not described itself since {since}"
    for entry in left_out[:MOST_LEFT_OUT]:
        yield f"  left out  round {entry['round']}: node {entry['node']}: {entry['reason']}"
    if (more := len(left_out) - MOST_LEFT_OUT) > 0:
        yield f"  left out  {more} more"
    if changed := status.get("changed"):
        yield f"  changed   {changed_text(changed)}"
    if status["error"]:
        yield f"  error     {status['error']}"
    yield f"  folder    {status['folder']}"
    if status["resume"]:
        yield f"  go on     {status['resume']}"
        if status["kept"]:
            yield f"  kept      round {', '.join(map(str, status['kept']))}"


def _node(node: Mapping[str, Any], *, failed: bool) -> str:
    state = "failed" if failed else {True: "answered", False: "no answer yet", None: "not asked"}[node["answered"]]
    if since := node.get("silent_since"):
        state = f"silent since {since}, still tried in the background"
    connection = "" if node["connected"] else ", not connected"
    return f"{node['index']:<4} {node['domain']}, {plural(node['num_examples'], 'image')}: {state}{connection}"

"""The state of a run: writes ``status.json`` in its folder, and reads it for ``fedshift status``."""

import os
import shlex
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.chained_log import stamp
from fedshift_app.run import checkpoints, console, exit_codes
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, RESULTS_FILE, Changed, changed_text, checked, read_json
from fedshift_app.run.files import results as results_of
from fedshift_app.run.folder import RunFolder
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
SAVE_SECONDS = 1.0  # shortest interval between two writes for answers and fast rounds
MOST_ERROR = 1000  # characters
MOST_LINE = 2 * MOST_REMEDY  # characters of a printed line
MOST_LEFT_OUT = 50  # left-out nodes that are printed
#: Nodes that are all in the file. Of more only those of the phase: it is written several times a round.
MOST_NODES = 1000
_READ = {"folder", "kept", "resume"}


class Scored(BaseModel):
    """The last round that was scored."""

    round: int
    accuracy: dict[str, float | None]
    avg: float | None
    evaluated_share: float


class NodeStatus(BaseModel):
    """A node of the run."""

    index: int
    domain: str
    num_examples: int
    connected: bool
    answered: bool | None
    silent_since: str | None = None


class Unknown(BaseModel):
    """A connected node that has never described itself."""

    node_id: str
    since: str


class LeftOut(BaseModel):
    """A node that was left out of a round."""

    round: int
    node: int
    domain: str = ""
    reason: str


class Status(BaseModel):
    """The content of ``status.json``; a reader adds the folder, the rounds it keeps, and how the run goes on."""

    state: str
    since: str
    experiment: str
    method: str
    engine: str
    run_id: str = ""
    pid: int
    host: str
    round: int
    rounds: int
    changed: list[Changed] = []
    error: str | None
    updated: str
    full_rounds: int
    asked: int
    answered: int
    left_out: list[LeftOut]
    last_scored: Scored | None
    seconds: float
    seconds_left: float | None
    nodes_in_all: int | None = None
    nodes: list[NodeStatus]
    unknown: list[Unknown] = []
    folder: str = ""
    kept: list[int] = []
    resume: str | None = None


class StatusFile(Listener):
    """Writes ``status.json``; a failing disk is logged once and ends no run."""

    def __init__(self, folder: RunFolder, config: RunConfig, nodes: Sequence[Node]) -> None:
        """Replace the file of an earlier process."""
        self._folder, self._nodes = folder, nodes
        self._failed, self._saved = False, 0.0
        self._absent: set[int] = set()  # ids of nodes that are not connected
        self._asked: dict[int, bool] = {}  # by node id, whether it has answered in this phase
        self._silent: dict[int, str] = {}  # by node id, the time of its last sign
        fields: dict[str, Any] = {
            "state": TRAINING,
            "since": stamp(time.time()),
            "experiment": config.experiment,
            "method": registry.label(config.method["name"]),
            "engine": folder.engine,
            "run_id": folder.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "round": min(len(folder.history) + 1, config.rounds),
            "rounds": config.rounds,
            "changed": [Changed(**change) for change in folder.changed],
            "error": None,
            "left_out": [],
            "last_scored": None,
            "seconds_left": None,
        }
        self._status = Status.model_construct(**fields)  # the rest goes by the moment
        self._save()

    def waiting(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Record that too few nodes are connected for the next round."""
        self.connected(present, nodes)
        self._asked = {}
        self._change(WAITING, min(len(self._folder.history) + 1, self._status.rounds))

    def asked(self, server_round: int, nodes: Sequence[Node], *, training: bool) -> None:
        """Record that messages of a phase are sent to nodes, to some of them again."""
        state = TRAINING if training else EVALUATING
        if training or (state, server_round) != (self._status.state, self._status.round):
            self._asked = {}
        self._asked |= {node.node_id: False for node in nodes}
        self._change(state, server_round)

    def connected(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Record the connected nodes; the next change writes them."""
        self._nodes = nodes
        self._absent = {node.node_id for node in nodes} - {node.node_id for node in present}

    def silent(self, since: Mapping[int, float]) -> None:
        """Record the nodes that do not answer; the next change writes them."""
        self._silent = {node_id: stamp(seconds) for node_id, seconds in since.items()}

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """Record that a node's answer in a round is not used."""
        self._forget_before(server_round - 1)
        self._status.left_out.append(LeftOut(round=server_round, node=node.index, domain=node.domain, reason=reason))

    def answered(self, node_ids: Collection[int]) -> None:
        """Record that nodes have answered."""
        if new := [node_id for node_id in node_ids if self._asked.get(node_id) is False]:
            self._asked |= dict.fromkeys(new, True)
            self._save(soon=True)

    def full_round(self, result: RoundResult, left: float) -> None:
        """Record that a round is in the run folder."""
        self._status.seconds_left = round(left, 1)
        self._forget_before(result.server_round)
        self._save(soon=True)

    def end(self, state: str, error: str | None) -> None:
        """Write the final state: completed, degraded, failed or interrupted."""
        status, server_round = self._status, self._status.round
        status.error = None if error is None else plain(shortened(error, MOST_ERROR), MOST_ERROR)
        if state in (COMPLETED, DEGRADED):
            status.seconds_left, server_round = 0.0, self._full_rounds  # a run may end early
        self._change(state, server_round)

    @property
    def _full_rounds(self) -> int:
        return self._folder.history[-1].server_round if self._folder.history else 0

    def _forget_before(self, server_round: int) -> None:
        self._status.left_out = [entry for entry in self._status.left_out if entry.round >= server_round]

    def _change(self, state: str, server_round: int) -> None:
        status = self._status
        if (state, server_round) != (status.state, status.round):
            status.state, status.round, status.since = state, server_round, stamp(time.time())
        self._save()

    def _save(self, *, soon: bool = False) -> None:
        now, path = time.monotonic(), self._folder.path / FILE
        if soon and now - self._saved < SAVE_SECONDS:
            return
        self._saved = now
        self._update()
        try:
            atomic_io.write_atomically(path, self._status.model_dump_json(exclude=_READ) + "\n")
        except OSError as error:
            if not self._failed:
                line, fields = "cannot write %s, the run continues without it: %s", {"event": "status_failed"}
                console.log.warning(line, path, error.strerror, extra=fields)
            self._failed = True

    def _update(self) -> None:
        """Bring the numbers and the nodes up to date."""
        status, folder, nodes = self._status, self._folder, self._nodes
        status.updated, status.seconds = stamp(time.time()), round(folder.seconds, 1)
        status.full_rounds = self._full_rounds
        status.asked, status.answered = len(self._asked), sum(self._asked.values())
        if scored := next((result for result in reversed(folder.history) if result.accuracy), None):
            status.last_scored = Scored(
                round=scored.server_round,
                accuracy=scored.accuracy,
                avg=average(scored.accuracy),
                evaluated_share=scored.evaluated_share,
            )
        known = {node.node_id for node in nodes} if self._silent else ()
        status.unknown = [
            Unknown(node_id=str(node_id), since=since)
            for node_id, since in self._silent.items()
            if node_id not in known
        ]
        status.nodes_in_all = len(nodes) if len(nodes) > MOST_NODES else None
        if status.nodes_in_all:
            shown = self._asked.keys() | self._silent.keys() | self._absent
            nodes = [node for node in nodes if node.node_id in shown]
        status.nodes = [
            NodeStatus(
                index=node.index,
                domain=node.domain,
                num_examples=node.num_examples,
                connected=node.node_id not in self._absent,
                answered=self._asked.get(node.node_id),
                silent_since=self._silent.get(node.node_id),
            )
            for node in nodes
        ]


def newest(output_dir: Path) -> Path:
    """Return the run folder that was started or resumed last.

    Raises:
        ConfigError: If there is none.
    """
    folders = [(file.stat().st_mtime, file.parent) for file in output_dir.glob(f"*/{CONFIG_FILE}")]
    if not folders:
        raise ConfigError(f"output-dir: no run folder in {output_dir}; name one: fedshift status RUN_FOLDER")
    return max(folders)[1]


def read(folder: Path) -> Status:
    """Return the content of ``status.json`` with the present state, ``folder``, the ``kept`` rounds and ``resume``.

    A killed process writes no final state: the run is interrupted if the folder's lock is free. A run is finished if
    and only if it has results; one that goes on with more rounds has those of before until its nodes are connected.

    Raises:
        ConfigError: If there is no such file, or no run has written it, with the key.
    """
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(f"{folder} has no {FILE}: it is not the folder of a run")
    locked = atomic_io.is_locked(folder / LOCK_FILE)  # first, as a run writes its state before it releases the lock
    status = checked(Status, read_json(path), str(path))
    status.state = _present_state(folder, status, locked=locked)
    status.folder, status.kept = str(folder), checkpoints.rounds(folder / checkpoints.FOLDER)
    if status.state in (FAILED, INTERRUPTED):
        status.resume = resume_command(folder, status.engine)
    return status


def _present_state(folder: Path, status: Status, *, locked: bool) -> str:
    """Return the state of a run by what it has written last, its lock and its results."""
    finished, complete = (folder / RESULTS_FILE).exists(), status.state in (COMPLETED, DEGRADED)
    if not locked:
        if finished:  # which finishes a run, even one stopped right then
            return DEGRADED if Losses.of(results_of(folder)).lines() else COMPLETED
        return INTERRUPTED if complete or status.state in GOING_ON else status.state
    # Complete by its own process, which is about to end, or by one before.
    own = complete and finished and atomic_io.names_holder(folder / LOCK_FILE, status.pid, status.host)
    return status.state if own or status.state in GOING_ON else GATHERING


def resume_command(folder: Path, engine: str) -> str:
    """Return the command that continues a run; of a deployment, APP is the folder of the app."""
    if engine == DEPLOYMENT:
        return shlex.join(["flwr", "run", "APP", "SITE", "--stream", "--run-config", f'resume="{folder}"'])
    return shlex.join(["fedshift", "run", f"resume={folder}"])


def exit_code(status: Status) -> int:
    """Return the exit code of ``fedshift status`` for a run."""
    if status.state == DEGRADED:
        return exit_codes.DEGRADED
    return exit_codes.STOPPED_SHORT if status.state in (FAILED, INTERRUPTED) else exit_codes.OK


def exit_if_degraded(folder: Path) -> None:
    """Print what a run went without, if it did.

    Raises:
        SystemExit: With the exit code of a degraded run.
    """
    if (last := read(folder)).state == DEGRADED:
        print(f"degraded: {last.error}", file=sys.stderr)
        raise SystemExit(exit_codes.DEGRADED)


def block(status: Status) -> str:
    """Return the status as text of several lines."""
    return "\n".join(plain(line, MOST_LINE) for line in _lines(status))


def _lines(status: Status) -> Iterator[str]:
    yield (
        f"{status.state}: {status.experiment}, {status.method}, engine {status.engine}, "
        f"process {status.pid} on {status.host}"
    )
    yield f"  round     {status.round} of {status.rounds}, since {status.since}, {status.full_rounds} full"
    if scored := status.last_scored:
        accuracies = [*scored.accuracy.items(), ("avg", scored.avg)]
        texts = [f"{name} {percent(value)}" for name, value in accuracies]
        yield "  ".join(["  score    ", *texts, f"(round {scored.round})", console.share_text(scored.evaluated_share)])
    left = status.seconds_left
    remaining = f", left {console.duration(left)}" if left is not None and status.state in GOING_ON else ""
    yield f"  time      {console.duration(status.seconds)}{remaining}, as of {status.updated}"
    yield f"  answers   {status.answered} of {plural(status.asked, 'node')} that were asked"
    if status.nodes_in_all:
        yield f"  nodes     {status.nodes_in_all}; shown are those that are asked, silent or not connected"
    failed = {entry.node for entry in status.left_out}
    yield from (f"  node {_node(node, failed=node.index in failed)}" for node in status.nodes)
    for node in status.unknown[:MOST_LEFT_OUT]:
        yield f"  silent    a node with id {node.node_id} has not described itself since {node.since}"
    for entry in status.left_out[:MOST_LEFT_OUT]:
        yield f"  left out  round {entry.round}: node {entry.node}: {entry.reason}"
    if (more := len(status.left_out) - MOST_LEFT_OUT) > 0:
        yield f"  left out  {more} more"
    optional = {
        "changed": changed_text([each.model_dump() for each in status.changed]),
        "error": status.error,
        "folder": status.folder,
    }
    optional |= {"go on": status.resume, "kept": status.resume and f"round {', '.join(map(str, status.kept))}"}
    yield from (f"  {name:<9} {text}" for name, text in optional.items() if text)


def _node(node: NodeStatus, *, failed: bool) -> str:
    state = "failed" if failed else {True: "answered", False: "no answer yet", None: "not asked"}[node.answered]
    if node.silent_since:
        state = f"silent since {node.silent_since}, still tried in the background"
    connection = "" if node.connected else ", not connected"
    return f"{node.index:<4} {node.domain}, {plural(node.num_examples, 'image')}: {state}{connection}"

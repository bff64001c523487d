"""How a run stands: ``status.json`` in its folder, written as it goes on, and read by ``fedshift status``."""

import json
import os
import shlex
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints, console, exit_codes
from fedshift_app.run import config_file as told_of_run
from fedshift_app.run.folder import CONFIG_FILE, LOCK_FILE, RESULTS_FILE, RunFolder
from fedshift_app.run.logs import utc
from fedshift_app.run.scores import mean
from fedshift_app.run.summary import finite
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_REMEDY, plain, shortened
from strategies.federation.context import RoundResult
from strategies.federation.roster import Listener, Node

FILE = "status.json"
WAITING, TRAINING, EVALUATING = "waiting", "training", "evaluating"
COMPLETED, DEGRADED, FAILED, INTERRUPTED = "completed", "degraded", "failed", "interrupted"
GATHERING = "gathering"  # never written: a run that ended is being resumed, and its nodes are not there yet
GOING_ON = (WAITING, TRAINING, EVALUATING, GATHERING)
SAVE_SECONDS = 1.0  # answers, and rounds that follow each other fast, are written no more often
MOST_ERROR = 1000  # characters
MOST_LINE = 2 * MOST_REMEDY  # characters of a line for a person
MOST_LEFT_OUT = 50  # nodes that were left out that a person is shown


class StatusFile(Listener):
    """Writes ``status.json``; a disk that fails is told once and ends no run."""

    def __init__(self, folder: RunFolder, config: RunConfig, nodes: Sequence[Node]) -> None:
        """Replace what a process before may have left."""
        self._path, self._folder = folder.path / FILE, folder
        self._failed = False
        self._saved = 0.0
        self._nodes = list(nodes)
        self._connected = {node.node_id for node in nodes}
        self._asked: dict[int, bool] = {}  # by node id: whether it has answered in this phase
        self._left_out: list[dict[str, Any]] = []
        self._silent: dict[int, float] = {}  # by node id, since when
        self._left: float | None = None
        self._told: dict[str, Any] = {
            "state": TRAINING, "since": utc(time.time()), "experiment": config.experiment,
            "method": registry.label(config.method["name"]), "engine": folder.engine, "run_id": folder.run_id,
            "pid": os.getpid(), "host": socket.gethostname(), "round": len(folder.history) + 1,
            "rounds": config.rounds, "error": None,
        }  # fmt: skip
        self._save()

    def waiting(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """Too few nodes are connected to begin the next round."""
        self._connect(present, nodes)
        self._asked = {}
        self._change(WAITING, len(self._folder.history) + 1)

    def asked(self, server_round: int, nodes: Sequence[Node], *, training: bool) -> None:
        """Nodes are sent the messages of a phase; some of them again."""
        state = TRAINING if training else EVALUATING
        if (state, server_round) != (self._told["state"], self._told["round"]) or training:
            self._asked = {}
        self._asked |= {node.node_id: False for node in nodes}
        self._change(state, server_round)

    def connected(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        """The roster has looked who is there; it is written with the next change."""
        self._connect(present, nodes)

    def silent(self, since: Mapping[int, float]) -> None:
        """Nodes do not answer, or another set of nodes than before; it is written with the next change."""
        self._silent = dict(since)

    def left_out(self, server_round: int, node: Node, reason: str) -> None:
        """A node's answer of a round is not used."""
        self._left_out = [told for told in self._left_out if told["round"] >= server_round - 1]
        self._left_out.append({"round": server_round, "node": node.index, "domain": node.domain, "reason": reason})

    def answered(self, node_ids: Collection[int]) -> None:
        """Answers have come in."""
        new = [node_id for node_id in node_ids if self._asked.get(node_id) is False]
        if new:
            self._asked |= dict.fromkeys(new, True)
            self._save(soon=True)

    def full_round(self, result: RoundResult, left: float) -> None:
        """A round is in the run folder."""
        self._left = left
        self._left_out = [told for told in self._left_out if told["round"] >= result.server_round]
        self._save(soon=True)

    def end(self, state: str, error: str | None) -> None:
        """Write the last word: completed, degraded, failed or interrupted."""
        self._told["error"] = None if error is None else plain(shortened(error, MOST_ERROR), MOST_ERROR)
        server_round = self._told["round"]
        if state in (COMPLETED, DEGRADED):
            self._left, server_round = 0.0, len(self._folder.history)  # a run may end early
        self._change(state, server_round)

    def _connect(self, present: Sequence[Node], nodes: Sequence[Node]) -> None:
        self._connected, self._nodes = {node.node_id for node in present}, list(nodes)

    def _change(self, state: str, server_round: int) -> None:
        if (state, server_round) != (self._told["state"], self._told["round"]):
            self._told |= {"state": state, "round": server_round, "since": utc(time.time())}
        self._save()

    def _save(self, *, soon: bool = False) -> None:
        now = time.monotonic()
        if soon and now - self._saved < SAVE_SECONDS:
            return
        self._saved = now
        try:
            atomic_io.write_atomically(self._path, json.dumps(self._content(), ensure_ascii=False) + "\n")
        except OSError as error:
            if not self._failed:
                console.log.warning(
                    "cannot write %s, the run goes on without: %s", self._path, error.strerror,
                    extra={"event": "status_failed"},
                )  # fmt: skip
            self._failed = True

    def _content(self) -> dict[str, Any]:
        scored = next((result for result in reversed(self._folder.history) if result.accuracy), None)
        told = self._told | {
            "updated": utc(time.time()),
            "full_rounds": len(self._folder.history),
            "asked": len(self._asked),
            "answered": sum(self._asked.values()),
            "left_out": self._left_out,
            "last_scored": None if scored is None else {
                "round": scored.server_round, "accuracy": scored.accuracy, "avg": mean(scored.accuracy.values()),
                "evaluated_share": scored.evaluated_share,
            },
            "seconds": round(self._folder.seconds, 1),
            "seconds_left": None if self._left is None else round(self._left, 1),
        }  # fmt: skip
        nodes = [
            {
                "index": node.index, "domain": node.domain, "num_examples": node.num_examples,
                "connected": node.node_id in self._connected, "answered": self._asked.get(node.node_id),
                "silent_since": utc(self._silent[node.node_id]) if node.node_id in self._silent else None,
            } for node in self._nodes
        ]  # fmt: skip
        named = {node.node_id for node in self._nodes}
        unknown = [{"node_id": str(i), "since": utc(at)} for i, at in self._silent.items() if i not in named]
        whole: dict[str, Any] = finite(told) | {"nodes": nodes, "unknown": unknown}
        return whole


def newest(output_dir: Path) -> Path:
    """Return the run folder that was begun or resumed last.

    Raises:
        ConfigError: If there is none.
    """
    found = [(file.stat().st_mtime, file.parent) for file in output_dir.glob(f"*/{CONFIG_FILE}")]
    if not found:
        raise ConfigError(f"output-dir: no run folder in {output_dir}; name one: fedshift status RUN_FOLDER")
    return max(found)[1]


def read(folder: Path) -> dict[str, Any]:
    """Return what ``status.json`` says, with the state as it is now, ``folder``, the ``kept`` rounds and ``resume``.

    A process that was killed says nothing: the run is interrupted if the folder's lock is free.

    Raises:
        ConfigError: If there is no such file, or it is not what was written.
    """
    path = folder / FILE
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder")
    try:
        locked = atomic_io.is_locked(folder / LOCK_FILE)  # first: who ends writes, then lets go
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{folder} has no {FILE}: it is not the folder of a run, or of an older version") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(told, dict) or any(told.get(key) is None for key in ("state", "engine", "round", "rounds")):
        raise ConfigError(f"{path} is not what a run writes: it lacks state, engine, round or rounds")
    if locked and told["state"] in (FAILED, INTERRUPTED):
        told["state"] = GATHERING
    if not locked and (folder / RESULTS_FILE).exists():  # by which it is finished, also if it was stopped right then
        told["state"] = _ended_as(folder / RESULTS_FILE)
    elif not locked and told["state"] in GOING_ON:
        told["state"] = INTERRUPTED
    ended = told["state"] in (FAILED, INTERRUPTED)
    kept = checkpoints.rounds(folder / checkpoints.FOLDER)
    go_on = resume_command(folder, told["engine"]) if ended else None
    return told | {"folder": str(folder), "kept": kept, "resume": go_on}


def _ended_as(results: Path) -> str:
    """Return the state of a finished run."""
    try:
        return DEGRADED if json.loads(results.read_text(encoding="utf-8")).get("lost") else COMPLETED
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {results}: {error}") from None


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
    """A node that is connected and has never said what it is."""

    node_id: str
    since: str


class _LeftOut(BaseModel, extra="allow"):
    """A node that was left out of a round."""

    round: int
    node: int
    reason: str


class _Content(BaseModel, extra="allow"):
    """What ``status.json`` holds."""

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
    last_scored: _Scored | None
    seconds: float
    seconds_left: float | None
    nodes: list[_Node]
    unknown: list[_Unknown] = []
    error: str | None


def _check(path: Path, told: Mapping[str, Any]) -> None:
    """Refuse what no run has written.

    Raises:
        ConfigError: With the key.
    """
    try:
        _Content.model_validate(told)
    except ValidationError as error:
        raise ConfigError(f"{path} is not what a run writes: {told_of_run.first_problem(error)[0]}") from None


def resume_command(folder: Path, engine: str) -> str:
    """Return the command that continues a run."""
    from fedshift_app.node.setup import DEPLOYMENT  # torch: only where a run ended early

    if engine == DEPLOYMENT:
        return shlex.join(["flwr", "run", ".", "SITE", "--stream", "--run-config", f'resume="{folder}"'])
    return shlex.join(["fedshift", "run", f"resume={folder}"])


def exit_code(told: Mapping[str, Any]) -> int:
    """Return the exit code of ``fedshift status`` for a run."""
    if told["state"] == DEGRADED:
        return exit_codes.DEGRADED
    return exit_codes.STOPPED_SHORT if told["state"] in (FAILED, INTERRUPTED) else exit_codes.OK


def block(told: Mapping[str, Any]) -> str:
    """Return the status for a person, some lines.

    Raises:
        ConfigError: If it is not what a run writes.
    """
    _check(Path(told["folder"]) / FILE, told)
    lines = [
        f"{told['state']}: {told['experiment']}, {told['method']}, engine {told['engine']}, "
        f"process {told['pid']} on {told['host']}",
        f"  round     {told['round']} of {told['rounds']}, since {told['since']}, {told['full_rounds']} full",
    ]
    if scored := told["last_scored"]:
        by_domain = [f"{domain} {console.percent(value)}" for domain, value in scored["accuracy"].items()]
        share = scored["evaluated_share"]
        part = "" if share == 1 else f"  (on {100 * share:.3g} % of the test images)"
        told_avg = f"avg {console.percent(scored['avg'])}"
        lines.append(f"  accuracy  {'  '.join([*by_domain, told_avg])}  (round {scored['round']}){part}")
    left = told["seconds_left"]
    rest = f", left {console.duration(left)}" if left is not None and told["state"] in GOING_ON else ""
    lines.append(f"  time      {console.duration(told['seconds'])}{rest}, as of {told['updated']}")
    lines.append(f"  answers   {told['answered']} of {told['asked']} nodes that were asked")
    lines += [f"  node {_node(node, told)}" for node in told["nodes"]]
    lines += [
        f"  silent    a node with id {node['node_id']} is connected and has not said what it is, since {node['since']}"
        for node in told.get("unknown", [])[:MOST_LEFT_OUT]
    ]
    out = told["left_out"]
    lines += [f"  left out  round {o['round']}: node {o['node']}: {o['reason']}" for o in out[:MOST_LEFT_OUT]]
    if len(out) > MOST_LEFT_OUT:
        lines.append(f"  left out  {len(out) - MOST_LEFT_OUT} more")
    if told["error"]:
        lines.append(f"  error     {told['error']}")
    lines.append(f"  folder    {told['folder']}")
    if told["resume"]:
        lines.append(f"  go on     {told['resume']}")
        lines += [f"  kept      round {', '.join(map(str, told['kept']))}"] if told["kept"] else []
    return "\n".join(plain(line, MOST_LINE) for line in lines)


def _node(node: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    failed = {out["node"] for out in told["left_out"]}
    words = {True: "answered", False: "no answer yet", None: "not asked"}
    state = "failed" if node["index"] in failed else words[node["answered"]]
    if node.get("silent_since"):
        state = f"silent since {node['silent_since']}, asked in the background"
    gone = "" if node["connected"] else ", not connected"
    return f"{node['index']:<4} {node['domain']}, {node['num_examples']} images: {state}{gone}"

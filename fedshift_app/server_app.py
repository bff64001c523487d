"""The ServerApp: reads the configuration, gathers the nodes, runs the method's strategy, writes the run folder."""

import json
import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedshift_app.config.requested import requested_by_method
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import (
    engine_name,
    is_simulation_grid,
    keep_out_malformed_replies,
    local_superlink_above,
    makes_messages,
    notice_restarts,
    pack_messages,
    watch_replies,
)
from fedshift_app.flower.quick_grid import PLAIN_WAITS, quicken
from fedshift_app.node import copies, data, one_time_payload, setup, state_store
from fedshift_app.run import (
    build,
    checkpoints,
    console,
    disk_space,
    exit_codes,
    flwr_run,
    logs,
    model_selection,
    naming,
    precomputing,
    resuming,
    starting,
)
from fedshift_app.run.checkpoints import Past
from fedshift_app.run.files import SKIPPED_FILE
from fedshift_app.run.folder import RunFolder
from fedshift_app.run.received_log import ReceivedLog
from fedshift_app.run.status import COMPLETED, DEGRADED, FAILED, INTERRUPTED, StatusFile, resume_command
from fedshift_core import atomic_io
from fedshift_core.atomic_io import write_atomically
from fedshift_core.env import ALL_WRITTEN, COMMAND, STATUS_FILE
from fedshift_core.errors import REFUSALS, FederationError, FedShiftError
from fedshift_datasets.io import looks
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.memory import NodeMemory

STOPPED = "the ServerApp was stopped, or lost its SuperLink"  # unless it gets to say something else

RECENT = 10  # rounds by whose seconds the rest is estimated

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation.

    Raises:
        FedShiftError: If it cannot start or cannot go on; what was computed is in the run folder.
    """
    console.set_up()
    status: dict[str, Any] = {"state": FAILED, "run_folder": None, "error": STOPPED}
    try:
        lost = _run(grid, context.run_config, status)
        status |= {"state": DEGRADED if lost else COMPLETED, "error": lost or None}
    except Exception as error:
        status |= {"error": _reason(error), "refused": isinstance(error, REFUSALS)}
        raise
    except BaseException as stop:
        status["error"] = _stopped_by(stop, _engine(grid))
        raise
    finally:
        try:
            _tell(status)
        except OSError as error:  # it must not hide how the run ended
            console.log.warning("%s", error)
        if not os.environ.get(STATUS_FILE):
            _tell_plainly(grid, status)
        elif is_simulation_grid(grid) and status["state"] != FAILED:
            print(ALL_WRITTEN, flush=True)  # what Flower and Ray still do is nothing to wait for


def _tell_plainly(grid: Grid, status: dict[str, Any]) -> None:
    """Say how a run of plain ``flwr run`` has ended or was refused, and what it left running."""
    if status["run_folder"]:
        if status["state"] == DEGRADED:
            console.log.warning("the run is degraded: %s", status["error"])
        console.log.info("run folder: %s", status["run_folder"])
        if status["state"] == FAILED:
            go_on = resume_command(Path(status["run_folder"]), _engine(grid))
            console.log.info("once the cause is mended, it goes on with: %s", go_on)
    if is_simulation_grid(grid) and (links := local_superlink_above()):
        kill = " ".join(map(str, links))
        console.log.info("Flower's local SuperLink goes on running, for further runs; to end it: kill %s", kill)


def _run(grid: Grid, run_config: Any, status: dict[str, Any]) -> str:
    """Run the federation; return which nodes it did without, empty where none is missing."""
    config, past = resuming.resolve(run_config, hold=True)
    try:
        return _start(grid, run_config, status, config, past)
    finally:
        if past is not None and past.lock is not None:
            past.lock.release()


def _place(run_config: Any) -> tuple[Path, str]:
    """Return the folder of run folders, and the name that the user chose for this run; empty for none."""
    output_dir = Path(str(run_config.get("output-dir") or "runs")).expanduser().resolve()
    return output_dir, str(run_config.get("name") or "")


def _start(grid: Grid, run_config: Any, status: dict[str, Any], config: RunConfig, past: Past | None) -> str:
    engine = _engine(grid)
    _check(grid, run_config, config, past, engine)
    _mend(grid, engine)
    received = ReceivedLog(grid) if config.federation.log_received else None
    progress = Progress()
    ready = starting.ready(grid, config, past, engine, progress)
    config, strategy = ready.config, ready.strategy
    nodes, (output_dir, name), simulated = strategy.roster.nodes, _place(run_config), engine != setup.DEPLOYMENT
    needed = disk_space.needed(config, ready.initial, strategy.federation, len(nodes), simulated=simulated)
    disk_space.check(output_dir if past is None else past.path, needed, goes_on=past is not None)
    about: dict[str, Any] = {"command": _command(run_config), "nodes": len(nodes)}
    skipped, copied = list[dict[str, str]](), list[str]()
    if simulated:  # a real node tells of its images its owner alone
        with looks.handed_on():
            skipped = data.skipped(config)
            if past is None:
                about["images"], copied = data.fingerprints(config), copies.of_run(config, len(nodes))
        precomputing.ahead(
            ready.settled,
            ready.beginning.model,
            strategy.federation.model.start,
            len(nodes),
            lambda features: _tell(status | {"features": features}),
        )
    if past is None:
        about |= {"arithmetic": ready.settled.train.arithmetic, "asked": requested_by_method(run_config, config)}
    # Only now: a run that cannot start leaves no folder behind.
    personal = strategy.federation.model.personal
    folder = RunFolder(output_dir, config, engine=engine, personal=personal, about=about, past=past, name=name)
    try:
        status["run_folder"] = str(folder.path)
        _tell(status | {"error": "the ServerApp ended without a word"})
        if received is not None:
            received.open(folder.path)
        with logs.written_to(folder.path) as file:
            _begin(ready, folder, skipped, copied)
            progress.begin(folder, strategy)
            watch_replies(grid, progress.status.answered)
            with _last_word(progress.status, file, folder):
                _rounds(grid, config, strategy, ready.initial, folder, past)
            return folder.lost
    finally:
        folder.close()


def _check(grid: Grid, run_config: Any, config: RunConfig, past: Past | None, engine: str) -> None:
    """Refuse what can be refused before the nodes are asked."""
    data.forget()  # nodes may be in this process, after those of another run
    if past is not None:
        resuming.check_engine(past, engine)
        resuming.check_images(past, config)
    if is_simulation_grid(grid) and not os.environ.get(STATUS_FILE):  # `fedshift run` has counted itself
        nodes = flwr_run.look(config, grid, None if past is None else past.num_nodes)
        console.log.info("%s", nodes, extra={"event": "nodes"})
    naming.check_free(*_place(run_config), None if past is None else past.path)


def _mend(grid: Grid, engine: str) -> None:
    """Take from Flower's grid what it does too seldom, too often or not at all."""
    if engine == setup.DEPLOYMENT:
        quicken(grid)
        if makes_messages():
            keep_out_malformed_replies()
            notice_restarts(grid)
            if not os.environ.get(PLAIN_WAITS):
                pack_messages(grid)


def _begin(
    ready: starting.Ready, folder: RunFolder, skipped: Sequence[Mapping[str, str]], copied: Sequence[str]
) -> None:
    """Say what is about to run, and write to its folder what nodes are sent once and which images are left out."""
    config, strategy, simulated = folder.config, ready.strategy, folder.engine != setup.DEPLOYMENT
    nodes, start, warn = strategy.roster.nodes, strategy.federation.model.start, console.log.warning
    first = console.describe(config, folder.engine, nodes, strategy.features)
    console.log.info("%s", "\n  ".join((first, *filter(None, ready.lines))), extra={"event": "started"})
    if start:
        one_time_payload.write(folder.path / checkpoints.FOLDER, start)
    if skipped:
        write_atomically(folder.path / SKIPPED_FILE, json.dumps(skipped, indent=2) + "\n")
        fields = {"event": "skipped", "images": len(skipped)}
        warn("images left out as broken: %d, named in %s", len(skipped), SKIPPED_FILE, extra=fields)
    if simulated and (unheld := build.unheld_line(config, len(nodes))):
        warn("%s", unheld, extra={"event": "unheld"})
    for line in copied:
        warn("%s", line, extra={"event": "copies"})


@contextmanager
def _last_word(status: StatusFile, file: logs.LogFile, folder: RunFolder) -> Iterator[None]:
    """Write to ``status.json`` and ``log.jsonl`` how the run ended, however it did; who started it shows the error.

    Raises:
        FederationError: If the disk is full or fails, with the file and the reason.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        status.end(FAILED, reason)
        file.tell(logging.ERROR, f"the run failed: {reason}", event="failed")
        if isinstance(error, OSError) and error.errno in atomic_io.DISK:
            raise FederationError(reason) from None
        raise
    except BaseException as stop:
        reason = _stopped_by(stop, folder.engine)
        status.end(INTERRUPTED, reason)
        file.tell(logging.WARNING, f"the run is interrupted: {reason}", event="interrupted")
        raise
    if lost := folder.lost:
        file.tell(logging.WARNING, f"the run is degraded: {lost}", event="degraded")
    status.end(DEGRADED if lost else COMPLETED, lost or None)


def _reason(error: Exception) -> str:
    """Return what is said of an error: its type, too, where nobody foresaw it."""
    return str(error) if isinstance(error, FedShiftError | OSError) else f"{type(error).__name__}: {error}"


def _stopped_by(stop: BaseException, engine: str) -> str:
    if engine == setup.DEPLOYMENT and isinstance(stop, KeyboardInterrupt):
        return STOPPED  # nobody's Ctrl-C: Flower interrupts its own process where its SuperLink is gone or refuses it
    code: Any = exit_codes.CTRL_C if isinstance(stop, KeyboardInterrupt) else getattr(stop, "code", None)
    return exit_codes.STOPPED_BY.get(code, STOPPED)  # Flower has codes of its own, also for a lost SuperLink


def _rounds(
    grid: Grid, config: RunConfig, strategy: DomainStrategy, initial: ArrayRecord, folder: RunFolder, past: Past | None
) -> None:
    """Run all rounds that are left, and write the summary."""
    kept_in = "" if folder.engine == setup.DEPLOYMENT else str(folder.nodes_folder)
    kept = {} if past is None else dict(past.checkpoint.memory)
    strategy.memory = NodeMemory(folder.run_id, kept_in, folder.resumed_after, kept, folder.chosen)
    if past is not None:
        console.log.info(
            "continues after round %d of %d: %s",
            past.completed,
            config.rounds,
            folder.path,
            extra={"event": "resumed", "round": past.completed},
        )
    folder.start_clock()
    with console.quiet_flower(), suppress(_EarlyEnd):
        if not config.rounds:
            strategy.score_initial(grid, initial)
        elif not model_selection.is_over(config, folder.history):  # a run that was stopped right then
            strategy.start(
                grid, initial, num_rounds=config.rounds - strategy.completed, timeout=config.federation.round_timeout
            )
    ending = folder.end()
    results = folder.finish(strategy.roster.nodes)
    try:
        chosen = results.get("chosen_round", {}).get("round", 0)
        state_store.keep_last(folder.nodes_folder, folder.resumed_after, chosen)
    except atomic_io.DiskError as error:  # the run is finished without
        console.log.warning("files that are not needed any more stay: %s", error)
    console.log.info("%s", console.table(results, config), extra={"event": "finished", "round": len(folder.history)})
    if ending:
        console.log.info("%s", ending)


def _tell(status: dict[str, Any]) -> None:
    """Tell ``fedshift run`` how the run stands, if that is who started it."""
    if os.environ.get(STATUS_FILE):
        write_atomically(Path(os.environ[STATUS_FILE]), json.dumps(status))


class _EarlyEnd(Exception):  # noqa: N818 (a way out, not a malfunction)
    """The run is over by ``evaluate.patience``."""


class Progress:
    """Takes each full round to the run folder and to the screen."""

    folder: RunFolder
    strategy: DomainStrategy
    status: StatusFile

    def begin(self, folder: RunFolder, strategy: DomainStrategy) -> None:
        """Take the rounds of a strategy to this folder from now on."""
        self.folder, self.strategy = folder, strategy
        self.status = strategy.roster.listener = StatusFile(folder, folder.config, strategy.roster.nodes)

    def __call__(self, result: RoundResult, weights: ArrayRecord) -> None:
        """Save and show one round.

        Raises:
            _EarlyEnd: If it was the last, before its time; Flower's loop over rounds has no other way out.
        """
        s = self.strategy
        self.folder.add_round(
            result,
            weights,
            knowledge=s.knowledge,
            state=s.state,
            memory=dict(s.memory.rounds),
            nodes=list(s.roster.nodes),
            moments=s.moments,
        )
        s.memory.chosen = self.folder.chosen
        config, recent = self.folder.config, [each.seconds for each in self.folder.history[-RECENT:]]
        left = sum(recent) / len(recent) * (config.rounds - result.server_round)
        self.status.full_round(result, left)
        fields = {"event": "round", "round": result.server_round}
        console.log.info("%s", console.round_line(result, config.rounds, left), extra=fields)
        if model_selection.is_over(config, self.folder.history):
            raise _EarlyEnd


def _command(run_config: Any) -> str:
    """Return what was typed; of a plain ``flwr run`` only the run-config is known."""
    typed = flwr_run.run_config_text(run_config)
    command = os.environ.get(COMMAND) or shlex.join(["flwr", "run", ".", "--run-config", typed])
    return command.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8, which no key accepts


def _engine(grid: Grid) -> str:
    return engine_name(grid) or (setup.SIMULATION if is_simulation_grid(grid) else setup.DEPLOYMENT)

"""The ServerApp: reads the configuration, gathers the nodes, runs the method's strategy, writes the run folder."""

import json
import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedshift_app.config import registry
from fedshift_app.config.requested import requested_by_method
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import (
    engine_name,
    is_simulation_grid,
    keep_out_malformed_replies,
    local_superlink_above,
    notice_restarts,
    pack_messages,
    watch_replies,
)
from fedshift_app.flower.polling import PLAIN_WAITS, quicken_grid
from fedshift_app.node import copies, setup, state_store
from fedshift_app.node import data as node_data
from fedshift_app.node import one_time_payload as node_payload
from fedshift_app.run import (
    build as run_build,
)
from fedshift_app.run import (
    checkpoints,
    console,
    disk_space,
    exit_codes,
    flwr_run,
    idle_terms,
    initial_model,
    logs,
    model_selection,
    naming,
    precomputing,
    resuming,
)
from fedshift_app.run import (
    precision as run_precision,
)
from fedshift_app.run.files import SKIPPED_FILE
from fedshift_app.run.folder import Past, RunFolder
from fedshift_app.run.received_log import ReceivedLog
from fedshift_app.run.status import COMPLETED, DEGRADED, FAILED, INTERRUPTED, StatusFile, resume_command
from fedshift_core import atomic_io
from fedshift_core.atomic_io import write_atomically
from fedshift_core.env import ALL_WRITTEN, COMMAND, STATUS_FILE
from fedshift_core.errors import REFUSALS, FederationError, FedShiftError
from fedshift_core.plural import plural
from fedshift_core.rounds import INITIAL_MODEL
from fedshift_datasets.io import looks
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.features.catalog import Features
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.memory import NodeMemory
from fedshift_strategies.federation.roster import Node

STOPPED = "the ServerApp was stopped, or lost its SuperLink"  # unless it gets to say something else
NAMED_NODES = 20  # of a domain; of more only the number is said

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
    except FedShiftError as error:
        status |= {"error": str(error), "refused": isinstance(error, REFUSALS)}
        raise
    except Exception as error:
        status["error"] = f"{type(error).__name__}: {error}"
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
    node_data.forget()  # nodes may be in this process, after those of another run
    if past is not None:
        resuming.check_engine(past, engine)
        resuming.check_images(past, config)
    if is_simulation_grid(grid) and not os.environ.get(STATUS_FILE):  # `fedshift run` has counted itself
        before = None if past is None else past.num_nodes
        console.log.info("%s", flwr_run.look(config, grid, before), extra={"event": "nodes"})
    naming.check_free(*_place(run_config), None if past is None else past.path)
    keep_out_malformed_replies()
    quicken_grid(grid)
    notice_restarts(grid)
    if engine == setup.DEPLOYMENT and not os.environ.get(PLAIN_WAITS):
        pack_messages(grid)
    received = ReceivedLog(grid) if config.federation.log_received else None
    going_on = past is not None and past.checkpoint is not None
    config, beginning = (config, initial_model.plain(config)) if going_on else initial_model.begin(config)
    start = node_payload.of_run(past.path / checkpoints.FOLDER) if past is not None and going_on else None
    initial, federation = run_build.prepare(config, engine, beginning, start)
    federation = replace(federation, repeated=0 if past is None else past.repeated)
    idle = idle_terms.warning(config, beginning.model), idle_terms.second_view(config)
    for warning in filter(None, (initial_model.slow(config), *beginning.warnings, *idle)):
        console.log.warning("%s", warning)
    progress = Progress(config)
    strategy = run_build.strategy_of(config, federation, progress)
    strategy.gather(grid)
    nodes = strategy.roster.nodes
    settled, computed = run_precision.settle(config, strategy.roster.fastest, past, here=engine != setup.DEPLOYMENT)
    strategy.settle(settled.model_dump_json())
    model_selection.check_nodes(config, nodes)
    if past is not None:
        resuming.check_number(past, len(nodes))
        strategy.roster.expect(resuming.check_nodes(past, nodes))
        nodes = strategy.roster.nodes
    checkpoint = past.checkpoint if past is not None else None
    if checkpoint is not None:
        initial = run_build.restored(strategy, initial, checkpoint)
        strategy.last_nodes = tuple(past.history[-1].nodes) if past is not None and past.history else ()
    output_dir, name = _place(run_config)
    simulated = engine != setup.DEPLOYMENT
    _look_for_room(output_dir, past, disk_space.needed(config, initial, strategy, nodes, simulated=simulated))
    with looks.handed_on():
        images = node_data.fingerprints(config) if past is None and simulated else {}
        skipped = node_data.skipped(config) if simulated else []  # a real node tells its owner alone
        copied = copies.of_run(config, len(nodes)) if past is None and simulated else []
    if simulated:

        def show(features: dict[str, Any] | None) -> None:
            _tell(status | {"features": features})

        precomputing.ahead(settled, beginning.model, federation.model.start, len(nodes), show)
    # Only now: a run that cannot start leaves no folder behind.
    folder = RunFolder(
        output_dir, config, engine=engine, personal=federation.model.personal, command=_command(run_config),
        num_nodes=len(nodes), images=images, past=past, arithmetic=settled.train.arithmetic,
        requested=requested_by_method(run_config, config) if past is None else None, name=name,
    )  # fmt: skip
    try:
        status["run_folder"] = str(folder.path)
        _tell(status | {"error": "the ServerApp ended without a word"})
        if received is not None:
            received.open(folder.path)
        with logs.written_to(folder.path) as file:
            public = run_build.public_line(config, nodes)
            frozen = run_build.frozen_line(config, federation, initial)
            mixed = run_build.mixing_line(config, len(nodes)) if simulated else run_build.sites_line(config, nodes)
            about = (computed, *beginning.messages, frozen, public, mixed)
            first = describe(config, engine, nodes, strategy.features)
            lines = (first, *(f"  {line}" for line in about if line))
            console.log.info("%s", "\n".join(lines), extra={"event": "started"})
            if federation.model.start:
                node_payload.write(folder.path / checkpoints.FOLDER, federation.model.start)
            if skipped:
                write_atomically(folder.path / SKIPPED_FILE, json.dumps(skipped, indent=2) + "\n")
                fields = {"event": "skipped", "images": len(skipped)}
                console.log.warning(
                    "images left out as broken: %d, named in %s", len(skipped), SKIPPED_FILE, extra=fields
                )
            if simulated and (unheld := run_build.unheld_line(config, len(nodes))):
                console.log.warning("%s", unheld, extra={"event": "unheld"})
            for line in copied:
                console.log.warning("%s", line, extra={"event": "copies"})
            progress.folder, progress.strategy = folder, strategy
            progress.status = StatusFile(folder, config, nodes)
            strategy.roster.listener = progress.status
            watch_replies(grid, progress.status.answered)
            with _last_word(progress.status, file, folder), _disk_told(folder):
                _rounds(grid, config, strategy, initial, folder, past)
            return folder.lost
    finally:
        folder.close()


@contextmanager
def _disk_told(folder: RunFolder) -> Iterator[None]:
    """Say of a disk that is full or fails how the run goes on from its last full round.

    Raises:
        FederationError: With the file, the reason and the command.
    """
    try:
        yield
    except OSError as error:
        if not isinstance(error, atomic_io.DiskError) and error.errno not in atomic_io.DISK:
            raise  # not the disk's
        raise FederationError(str(error)) from None


@contextmanager
def _last_word(status: StatusFile, file: logs.LogFile, folder: RunFolder) -> Iterator[None]:
    """Write to ``status.json`` and ``log.jsonl`` how the run ended, however it did; who started it shows the error."""
    try:
        yield
    except Exception as error:
        reason = str(error) if isinstance(error, FedShiftError) else f"{type(error).__name__}: {error}"
        status.end(FAILED, reason)
        file.tell(logging.ERROR, f"the run failed: {reason}", event="failed")
        raise
    except BaseException as stop:
        reason = _stopped_by(stop, folder.engine)
        status.end(INTERRUPTED, reason)
        file.tell(logging.WARNING, f"the run is interrupted: {reason}", event="interrupted")
        raise
    if lost := folder.lost:
        file.tell(logging.WARNING, f"the run is degraded: {lost}", event="degraded")
    status.end(DEGRADED if lost else COMPLETED, lost or None)


def _stopped_by(stop: BaseException, engine: str) -> str:
    if engine == setup.DEPLOYMENT and isinstance(stop, KeyboardInterrupt):
        return STOPPED  # nobody's Ctrl-C: Flower interrupts its own process where its SuperLink is gone or refuses it
    code: Any = exit_codes.CTRL_C if isinstance(stop, KeyboardInterrupt) else getattr(stop, "code", None)
    return exit_codes.STOPPED_BY.get(code, STOPPED)  # Flower has codes of its own, also for a lost SuperLink


def _look_for_room(output_dir: Path, past: Past | None, needed: disk_space.Needed) -> None:
    """Compare what the run needs with what is free. A run that goes on has a part of it already.

    Raises:
        ConfigError: If too little is free.
    """
    if past is None:
        disk_space.check(output_dir, disk_space.free(output_dir), needed)
    else:
        left = max(needed.folder - disk_space.taken(past.path), 0)
        disk_space.check(past.path, disk_space.free(past.path), replace(needed, folder=left))


def _rounds(
    grid: Grid, config: RunConfig, strategy: DomainStrategy, initial: ArrayRecord, folder: RunFolder, past: Past | None
) -> None:
    """Run all rounds that are left, and write the summary."""
    checkpoint = past.checkpoint if past is not None else None
    kept_in = "" if folder.engine == setup.DEPLOYMENT else str(folder.nodes_folder)
    kept = dict(checkpoint.memory) if checkpoint is not None else {}
    strategy.memory = NodeMemory(folder.run_id, kept_in, folder.resumed_after, kept, folder.chosen)
    if past is not None:
        console.log.info(
            "continues after round %d of %d: %s", past.completed, config.rounds, folder.path,
            extra={"event": "resumed", "round": past.completed},
        )  # fmt: skip
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

    def __init__(self, config: RunConfig) -> None:
        self._config, self._rounds = config, config.rounds
        self._seconds, self._done = 0.0, 0

    def __call__(self, result: RoundResult, weights: ArrayRecord) -> None:
        """Save and show one round.

        Raises:
            _EarlyEnd: If it was the last, before its time; Flower's loop over rounds has no other way out.
        """
        s = self.strategy
        self.folder.add_round(result, weights, s.knowledge, s.state, s.memory.rounds, s.roster.nodes, s.moments)
        s.memory.chosen = self.folder.chosen
        self._seconds += result.seconds
        self._done += 1
        left = self._seconds / self._done * (self._rounds - result.server_round)
        self.status.full_round(result, left)
        fields = {"event": "round", "round": result.server_round}
        console.log.info("%s", console.round_line(result, self._rounds, left), extra=fields)
        if model_selection.is_over(self._config, self.folder.history):
            raise _EarlyEnd


def _command(run_config: Any) -> str:
    """Return what was typed; of a plain ``flwr run`` only the run-config is known."""
    typed = flwr_run.run_config_text(run_config)
    command = os.environ.get(COMMAND) or shlex.join(["flwr", "run", ".", "--run-config", typed])
    return command.encode("utf-8", "backslashreplace").decode()  # a file's name may be no UTF-8, which no key accepts


def _engine(grid: Grid) -> str:
    return engine_name(grid) or (setup.SIMULATION if is_simulation_grid(grid) else setup.DEPLOYMENT)


def describe(config: RunConfig, engine: str, nodes: list[Node], features: Features | None = None) -> str:
    """Return a few lines that say what is about to run, which node holds which domain, and what features do."""
    held: dict[str, list[Node]] = {domain: [] for domain in config.dataset.domains}
    for n in nodes:
        for domain in n.domains:
            held[domain].append(n)
    epochs = plural(config.train.epochs, "local epoch")
    rounds = f"{plural(config.rounds, 'round')} of {epochs}" if config.rounds else "no training (rounds=0)"
    what = registry.label(config.method["name"]) if config.rounds else INITIAL_MODEL
    lines = [
        f"{config.experiment}: {what} on {config.dataset.name}, {config.model.name}, "
        f"bn={config.model.bn}, {plural(len(nodes), 'node')}, {rounds}, seed {config.seed}, engine {engine}",
        *(f"  {domain}: {_held_by(who)}" for domain, who in held.items()),
    ]
    if approximation := registry.approximation_line(config.method["name"]):
        lines.append(f"  {approximation}")
    if config.evaluate.fraction < 1:
        lines.append(
            f"  before the last {plural(config.evaluate.last, 'round')} accuracy is that on "
            f"{100 * config.evaluate.fraction:g} % of the test images, in whole batches"
        )
    lines += [f"  {line}" for line in (features.describe(nodes) if features is not None else ())]
    return "\n".join(lines)


def _held_by(nodes: list[Node]) -> str:
    """Return who holds a domain, each node by name while a line has room for that."""
    if not nodes:
        return "held by no node"
    if len(nodes) <= NAMED_NODES:
        return "node " + ", ".join(f"{n.index} ({plural(n.num_examples, 'image')}{_with_others(n)})" for n in nodes)
    sizes = [n.num_examples for n in nodes]
    return f"{plural(len(nodes), 'node')}, {min(sizes)} to {plural(max(sizes), 'image')} each, {sum(sizes)} in all"


def _with_others(node: Node) -> str:
    return f" of {plural(len(node.domains), 'domain')}" if node.held_tests else ""

"""Writes the folder of a run: configuration, one line per round, checkpoints of five rounds, summary.

    config.yaml          at the start and each time that the run goes on; without it the folder is of no run
    lock                 held by the process that writes here, by which a run counts as going on
    metrics.jsonl        a line per round, synced before its checkpoint; a broken last line does not count
    checkpoint/          after a round (``checkpoints``): what a resumed run begins from
    NAME.json            of features: of the last scored round (``sections``), or of the whole run at its end
    results.json         the summary, written last: a run is finished if and only if it is there
    status.json          the state, several times a round (``status``); nothing depends on it
    log.jsonl            the log (``logs``)

All but the log and ``status.json`` are complete on the disk or not there, whenever a process is killed. Readers:
``resuming`` (to go on), ``status``, ``fedshift.run.reading`` (all of it, for reports and saved models).
"""

import hashlib
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from fedshift_app.config import plugins
from fedshift_app.config.sections import RunConfig
from fedshift_app.run import checkpoints, config_file, model_selection, naming, sections, single_nodes, trackers
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE, METRICS_FILE, ON_ALL, RESULTS_FILE
from fedshift_app.run.shown import of_features
from fedshift_app.run.summary import finite, line_of, summary
from fedshift_app.run.versions import versions
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays
from fedshift_core.atomic_io import Lock, write_atomically
from fedshift_core.env import COMMIT
from fedshift_core.errors import ConfigError
from fedshift_core.losses import Losses
from fedshift_core.shown import History
from fedshift_core.wire.names import RETAKEN
from fedshift_core.wire.records import encode
from fedshift_core.yaml_files import as_yaml, read_yaml
from fedshift_strategies.federation.context import SINGLE, RoundResult, fully_scored
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.updates import decode

NODE = ("index", "domain", "num_examples", "class_counts")  # of each node in ``results.json``


class RunFolder:
    """Writes a run's files as the run goes on.

    Attributes:
        path: The folder.
        run_id: Names the run for its nodes.
        resumed_after: The rounds after which the run was resumed.
        changed: The settings that were changed between rounds, as ``results.json`` has them.
        repeated: Number of rounds that were begun once more as the run was resumed.
        history: All full rounds.
        writing: Seconds that writing took.
        lost: What a finished run went without, as one line; empty if it is complete.
    """

    writing, lost, repeated = 0.0, "", 0
    resumed_after: tuple[int, ...] = ()
    changed: tuple[Mapping[str, Any], ...] = ()
    _before = 0.0  # seconds of the run before this process

    def __init__(
        self,
        output_dir: Path,
        config: RunConfig,
        *,
        engine: str,
        personal: bool,
        about: Mapping[str, Any] = {},
        past: checkpoints.Past | None = None,
        name: str = "",
    ) -> None:
        """Make the folder and write ``config.yaml``, or continue in the folder of ``past`` and take over its lock.

        Args:
            output_dir: The folder of run folders.
            config: The resolved configuration.
            engine: ``simulation``, ``deployment`` or ``inline``.
            personal: Nodes are scored with their own models, not with the global one.
            about: What else ``config.yaml`` has: ``command``, ``nodes``, ``images`` (their fingerprints by domain and
                split), ``arithmetic``, ``asked`` (what the method requests of other sections), ``scored_again``.
            past: The run to continue; of ``about`` it takes the command alone.
            name: The name that the user chose; empty for one of experiment, method, seed and time.

        Raises:
            ConfigError: If the folder cannot be made.
            DiskError: If it cannot be written to; a new folder is then removed.
        """
        self.config, self.engine, self.personal = config, engine, personal
        self.history: list[RoundResult] = []
        self._weights = ArrayRecord()
        self._sections: dict[str, Any] = {}  # of the last round that was scored on all test images
        reason = config.declared.approximation
        self._approximation = {"approximation": reason} if reason else {}  # why the method is not that of its paper
        self.start_clock()
        now, command = time.strftime("%Y-%m-%dT%H:%M:%S%z"), about.get("command", "")
        if past is not None:
            content = self._go_on(past, {"engine": engine, "command": command, "time": now})
        else:
            content = {
                "resolved": config.model_dump(mode="json"),
                "engine": engine,
                "nodes": 0,
                "images": {},
                "run_id": uuid.uuid4().hex,
                "versions": versions(config),
                "command": command,
                "started": now,
            }
            git = {"git": os.environ.get(COMMIT)}
            content |= {key: value for key, value in (git | dict(about)).items() if value}
            self._begin(output_dir, name, content)
        self._recorded = config_file.deciding(content)
        settings = config.model_dump(mode="json") | self._approximation
        self._trackers = trackers.Trackers(config.tracking, self.path, self.run_id, settings, self.history)

    def _begin(self, output_dir: Path, name: str, content: dict[str, Any]) -> None:
        """Make the folder of a new run with its ``config.yaml``."""
        self.run_id = content["run_id"]
        shown = self.config.method["name"] + "-approximation" * bool(self._approximation)  # trackers show this name
        self.path = naming.make_folder(output_dir, name, self.config, shown)
        try:
            with atomic_io.writing(self.path):
                self._lock = Lock(self.path / LOCK_FILE)
                self.nodes_folder.mkdir(parents=True)
                if kept := plugins.keep(self.config, self.path):
                    content[plugins.KEPT] = kept
            write_atomically(self.path / CONFIG_FILE, as_yaml(content))
        except (OSError, ConfigError):
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    @property
    def nodes_folder(self) -> Path:
        """The folder of the private parts of simulated nodes."""
        return self.path / checkpoints.FOLDER / checkpoints.NODES_FOLDER

    def _go_on(self, past: checkpoints.Past, resumed: dict[str, Any]) -> dict[str, Any]:
        """Continue the run of ``past``: remove everything after its last checkpoint, and note that in ``config.yaml``.

        A finished run that gets more rounds has a summary, by which it counts as finished: this is removed first.

        Returns:
            The content of ``config.yaml``.
        """
        assert past.lock is not None  # the process that continues a run holds it
        self.path, self.run_id, self._lock = past.path, past.run_id, past.lock
        self.changed, self.repeated = past.changed, past.repeated
        self.resumed_after = (*past.resumed_after, past.completed)
        content = read_yaml(self.path / CONFIG_FILE)
        resolved = content["resolved"]
        trained = past.checkpoint.config or content
        if (rounds_before := trained["resolved"]["rounds"]) != self.config.rounds:
            resumed |= {"rounds_before": rounds_before}
        resolved["rounds"] = self.config.rounds
        resolved["keep_rounds"] = list(self.config.keep_rounds)  # or the next resume would remove what this keeps
        if self.changed:
            before = resolved["train"].get("arithmetic", "")
            content["resolved"] = resolved = self.config.model_dump(mode="json")
            resolved["train"]["arithmetic"] = before  # which nodes settled on is recorded apart
        resumed |= {"after_round": past.completed, "repeats": past.repeats, "versions": versions(self.config)}
        content.setdefault("resumed", []).append(resumed)
        # Checkpoints first, from the last one back: if this process is killed, the last one left matches the private
        # parts of the nodes. Then the configuration, after which private parts of later rounds do not count any more.
        with atomic_io.writing(self.path):
            (self.path / RESULTS_FILE).unlink(missing_ok=True)
        checkpoints.remove_after(self.path / checkpoints.FOLDER, past.completed)
        write_atomically(self.path / CONFIG_FILE, as_yaml(content))
        with atomic_io.writing(self.nodes_folder):
            self.nodes_folder.mkdir(parents=True, exist_ok=True)
        metrics = self.path / METRICS_FILE
        if metrics.exists():
            lines = metrics.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            write_atomically(metrics, "".join(lines[: past.completed]))
        self.history = list(past.history)
        scored = fully_scored(self.history)
        self._sections = sections.kept(self.path, scored[-1].server_round if scored else None, self.config)
        self._before, self.writing = past.checkpoint.seconds, past.checkpoint.writing
        self._weights = encode(past.checkpoint.weights)
        return content

    def take_over(self, history: Iterable[RoundResult], seconds: float, repeated: int = 0) -> None:
        """Begin with the rounds and the time of another run that trained the models; they have no checkpoint."""
        self.history, self._before, self.repeated = list(history), seconds, repeated
        lines = (json.dumps(finite(line_of(result))) + "\n" for result in self.history)
        write_atomically(self.path / METRICS_FILE, "".join(lines))

    @property
    def chosen(self) -> tuple[int, ...]:
        """The rounds that are kept for their validation accuracy or by ``keep_rounds``."""
        return model_selection.needed(self.config, self.history)

    def start_clock(self) -> None:
        """Count the seconds of the run from now."""
        self._started = self._saved = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The seconds that the run has taken, those before it was resumed included."""
        return self._before + time.perf_counter() - self._started

    def close(self) -> None:
        """Close the trackers and release the lock, so that others can continue the run."""
        self._trackers.send(None)
        self._lock.release()

    def add_round(self, result: RoundResult, weights: ArrayRecord, **kept: Any) -> None:
        """Save a full round: its line in ``metrics.jsonl``, then its checkpoint, by which the rounds so far count.

        Args:
            result: The round.
            weights: The shared weights.
            kept: What else its :class:`Checkpoint` has of the strategy.
        """
        started = time.perf_counter()
        # Those of all rounds would fill the memory.
        self.history.append(replace(result, passing={}, statistics={}, kept={}))
        self._keep_sections(result, kept.get("nodes", ()))
        arrays = decode(weights)
        others = result.kept | (result.statistics if self.config.model.bn_keep == RETAKEN else {})
        for index, single in result.passing.get(SINGLE, {}).items():
            single_nodes.write(self.path, index, single)
        averaged = {name: arrays[name] for name in others}
        arrays |= others
        self._weights = encode(arrays) if averaged else weights
        atomic_io.append_line(self.path / METRICS_FILE, json.dumps(finite(line_of(result))))
        checkpoint = checkpoints.Checkpoint(
            result.server_round,
            arrays,
            seconds=self.seconds,
            writing=self.writing,
            averaged=averaged,
            config=self._recorded,
            changed=self.changed,
            **kept,
        )
        if checkpoints.is_due(self.config, checkpoint, time.perf_counter() - self._saved):
            checkpoints.save(self.path / checkpoints.FOLDER, checkpoint, self.chosen)
            self._saved = time.perf_counter()
        self._trackers.send(result)
        self.writing += time.perf_counter() - started

    def _keep_sections(self, result: RoundResult, nodes: Sequence[Node]) -> None:
        """Write what features have of a round for the summary."""
        number, classes = result.server_round, self.config.dataset.known().classes
        for feature, shown in of_features(History(self.config, (result,), nodes, classes=classes)):
            if shown.section is not None:
                self._sections[feature.file] = shown.section
                for file in sections.files(self.path, feature.file, number)[: 1 + (number in self.chosen)]:
                    write_json(file, shown.section)

    def end(self) -> str:
        """Write the files that features have of the whole run; return their texts for the log."""
        known = list(of_features(History(self.config, self.history, writing=self.writing)))
        for feature, shown in known:
            if shown.file:
                write_json(self.path / f"{feature.file}.json", shown.file)
        return "\n".join(shown.log for _, shown in known if shown.log)

    def finish(self, nodes: Sequence[Node]) -> dict[str, Any]:
        """Write and return the summary ``results.json``, by which the run counts as finished."""
        config = self.config
        of_all = ON_ALL if any(result.spread for result in self.history) else "personal models"
        results = summary(History(config, self.history, nodes, repeated=self.repeated)) | {
            "method": config.method["name"],
            "experiment": config.experiment,
            "dataset": config.dataset.name,
            "model": config.model.name,
            "bn": config.model.bn,
            "evaluated": of_all if self.personal else "global model",
            "seed": config.seed,
            "engine": self.engine,
            "seconds": round(self.seconds, 3),
            "nodes": [
                {key: getattr(node, key) for key in NODE} | ({"domains": node.domains} if node.held_tests else {})
                for node in nodes
            ],
            "num_parameters": sum(math.prod(array.shape) for array in self._weights.values()),
            "weights_sha256": weights_hash(decode(self._weights)),
        }
        more = {"resumed_after": self.resumed_after, "changed": self.changed}
        results |= self._approximation | {key: value for key, value in more.items() if value}
        chosen = results.get("chosen_round")
        # Of the model that the run keeps.
        results |= sections.kept(self.path, chosen["round"], config) if chosen else self._sections
        write_json(self.path / RESULTS_FILE, results)
        self.lost = Losses.of(results).text()
        return results


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write indented JSON, in which None stands for numbers that it cannot hold.

    Raises:
        DiskError: If it cannot be written.
    """
    write_atomically(file, json.dumps(finite(content), indent=2) + "\n")


def weights_hash(arrays: Arrays) -> str:
    """Return the SHA-256 of names, types and bytes of all arrays, in their order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()

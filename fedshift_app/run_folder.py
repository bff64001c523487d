"""The folder of a run: configuration, one line per round, checkpoints of the last two rounds, summary."""

import hashlib
import json
import math
import platform
import statistics
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from flwr.app import ArrayRecord
from safetensors.numpy import save_file

from datasets.errors import ConfigError
from fedshift_app import __version__
from fedshift_app.config import RunConfig
from fedshift_app.scores import client_models, mean, mean_client_models
from strategies.averaging import Arrays
from strategies.base import RoundResult, decode
from strategies.roster import Node
from strategies.schedule import LAST_ROUNDS

#: Environment variable: the file where ``fedshift run`` wants to be told what became of the run.
STATUS_FILE = "FEDSHIFT_STATUS_FILE"
#: Environment variable: the command that was typed.
COMMAND = "FEDSHIFT_COMMAND"
KEEP_CHECKPOINTS = 2
CONFIG_FILE, METRICS_FILE, RESULTS_FILE = "config.yaml", "metrics.jsonl", "results.json"
PROFILE_FILE = "profile.json"  # only of a run that measures its time
VERSIONS_OF = ("flwr", "ray", "torch", "torchvision", "numpy", "scikit-learn", "finch-clust")


class RunFolder:
    """Writes a run's files as the run goes on."""

    def __init__(self, output_dir: Path, config: RunConfig, *, engine: str, personal: bool, command: str) -> None:
        """Make the folder and write ``config.yaml``.

        Args:
            output_dir: Where run folders are made.
            config: The resolved configuration.
            engine: ``simulation``, ``deployment`` or ``inline``.
            personal: Nodes are scored with models of their own, not with the global one.
            command: What was typed.

        Raises:
            ConfigError: If the folder cannot be made.
        """
        self.config, self.engine, self.personal = config, engine, personal
        self.history: list[RoundResult] = []
        self._weights = ArrayRecord()
        stem = f"{config.experiment}-{config.method['name']}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.path = _make_folder(output_dir, stem)
        content = {
            "resolved": config.model_dump(mode="json"),
            "engine": engine,
            "versions": _versions(),
            "command": command,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_atomically(self.path / CONFIG_FILE, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    def add_round(self, result: RoundResult, weights: ArrayRecord, knowledge: Arrays) -> None:
        """Save a full round: first the checkpoint, then its line in ``metrics.jsonl``."""
        self.history.append(result)
        self._weights = weights
        self._save_checkpoint(result.server_round, decode(weights), knowledge)
        line: dict[str, Any] = {
            "round": result.server_round,
            "accuracy": result.accuracy or None,
            "avg": mean(result.accuracy.values()),
            "test_loss": result.test_loss or None,
            "losses": result.losses,
            "nodes": result.nodes,
            "left_out": result.left_out,
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "seconds": round(result.seconds, 3),
        }
        if result.evaluated_share < 1:
            line["evaluated_share"] = round(result.evaluated_share, 4)
        if result.validation:
            line["validation"] = result.validation
        if result.others:
            line["others"] = result.others
        if result.profile:
            line["profile"] = result.profile
        if result.clients is not None:
            line["client_models"] = client_models(result.clients)
        with (self.path / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite(line)) + "\n")

    def finish(self, nodes: list[Node], seconds: float) -> dict[str, Any]:
        """Write and return the summary, ``results.json``."""
        results = summary(self.history) | {
            "method": self.config.method["name"],
            "experiment": self.config.experiment,
            "dataset": self.config.dataset.name,
            "model": self.config.model.name,
            "bn": self.config.model.bn,
            "evaluated": "personal models" if self.personal else "global model",
            "seed": self.config.seed,
            "engine": self.engine,
            "seconds": round(seconds, 3),
            "nodes": [
                {"index": n.index, "domain": n.domain, "num_examples": n.num_examples, "class_counts": n.class_counts}
                for n in nodes
            ],
            "num_parameters": sum(math.prod(array.shape) for array in self._weights.values()),
            "weights_sha256": weights_hash(decode(self._weights)),
        }
        write_atomically(self.path / RESULTS_FILE, json.dumps(finite(results), indent=2) + "\n")
        return results

    def _save_checkpoint(self, server_round: int, weights: Arrays, knowledge: Arrays) -> None:
        folder = self.path / "checkpoint"
        folder.mkdir(exist_ok=True)
        for kind, arrays in (("weights", weights), ("knowledge", knowledge)):
            target = folder / f"{kind}-{server_round:05d}.safetensors"
            part = target.with_suffix(".part")
            save_file(arrays, part, metadata={"round": str(server_round)})
            part.replace(target)
            for old in sorted(folder.glob(f"{kind}-*.safetensors"))[:-KEEP_CHECKPOINTS]:
                old.unlink()


def summary(history: list[RoundResult]) -> dict[str, Any]:
    """Summarise all rounds, in percent: last-five mean, final and best round by domain, totals.

    Rounds in which the global model was not scored, or on a part of the test images only, count in the totals
    only. Where there are validation
    parts, ``best_validation`` is the first of the rounds with the highest average over the domains on them.
    """
    scored = _fully_scored(history)
    accuracies = [result.accuracy for result in scored]
    names = list(accuracies[-1])
    last = accuracies[-LAST_ROUNDS:]
    domains = {name: mean(accuracy[name] for accuracy in last) for name in names}
    known = [value for value in domains.values() if value is not None]
    best = max(scored, key=lambda result: _rank(result.accuracy))
    worst = min((name for name in names if domains[name] is not None), key=lambda n: domains[n] or 0.0, default=None)
    return {
        "rounds": len(history),
        "averaged_rounds": len(last),
        "domains": domains,
        "avg": mean(known),
        "std": statistics.stdev(known) if len(known) > 1 else 0.0,
        "worst": None if worst is None else domains[worst],
        "worst_domain": worst,
        "final": accuracies[-1],
        "partly_scored_rounds": sum(result.evaluated_share < 1 for result in history),
        "best_test": _chosen(best, "test images"),
        **_where_asked(history),
        "missing": [name for name in names if domains[name] is None],
        "bytes_up": sum(result.bytes_up for result in history),
        "bytes_down": sum(result.bytes_down for result in history),
    }


def _fully_scored(history: list[RoundResult]) -> list[RoundResult]:
    """Return the rounds whose accuracy is that on all test images."""
    return [result for result in history if result.accuracy and result.evaluated_share == 1]


def _where_asked(history: list[RoundResult]) -> dict[str, Any]:
    """Return what only some runs have: the round chosen on validation parts, scores of client models."""
    found: dict[str, Any] = {}
    validated = [
        result for result in history if result.evaluated_share == 1 and mean(result.validation.values()) is not None
    ]
    if validated:
        best = max(validated, key=lambda result: _rank(result.validation))
        found["best_validation"] = _chosen(best, "validation images")
    scored = [result.others for result in _fully_scored(history)][-LAST_ROUNDS:]
    if scored[-1]:
        found["others"] = {
            name: {
                domain: mean(others[name][domain] for others in scored if name in others) for domain in by_domain
            } for name, by_domain in scored[-1].items()
        }  # fmt: skip
    clients = [result.clients for result in history if result.clients is not None]
    if clients:
        found["client_models"] = mean_client_models(clients)
    return found


def _chosen(result: RoundResult, on: str) -> dict[str, Any]:
    """Return a chosen round with its accuracy on the test images."""
    return {
        "round": result.server_round,
        "chosen_on": on,
        "domains": result.accuracy,
        "avg": mean(result.accuracy.values()),
    }


def _rank(accuracy: Mapping[str, float | None]) -> tuple[int, float]:
    """Order rounds by average accuracy; a round that lacks a domain comes below one that does not."""
    known = [value for value in accuracy.values() if value is not None]
    return len(known), sum(known)


def finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold (NaN, infinities) by None, at any depth."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def weights_hash(arrays: Arrays) -> str:
    """Return the SHA-256 of names, types and bytes of all arrays, in their order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old one or the new one, never half of it."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _make_folder(output_dir: Path, stem: str) -> Path:
    base = output_dir.expanduser().resolve()
    for attempt in range(1000):
        path = base / (stem if attempt == 0 else f"{stem}-{attempt}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not base.is_dir():
                raise ConfigError(f"output-dir: {base} is not a folder") from None
            continue
        except OSError as error:
            raise ConfigError(f"output-dir: cannot write to {base}: {error.strerror}") from None
        return path
    raise ConfigError(f"output-dir: {base} holds too many runs of the same second")


def _versions() -> dict[str, str]:
    found = {"fedshift": __version__, "python": platform.python_version()}
    return found | {name: version(name) for name in VERSIONS_OF}

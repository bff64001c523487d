"""Holds a method of one's own to what every method of FedShift is held to: ``fedshift.testing.check_method``.

The functions of single checks are those of FedShift's own contract (tests/fedshift_app/test_contract.py).
"""

import contextlib
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message, MessageType

from fedshift.api import calling, keys, registering
from fedshift.api.runs import Run
from fedshift.run.engine import inline
from fedshift.run.launch import runner
from fedshift_app import client_app
from fedshift_app.config import registry, resolving
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.run import checkpoints
from fedshift_app.run.files import CONFIG_FILE
from fedshift_clients.base import DomainClient
from fedshift_core import atomic_io
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.limits import as_found
from fedshift_core.paths import Named
from fedshift_core.registry import Method
from fedshift_core.wire.names import CE, LOSS_TERM
from fedshift_strategies.base import DomainStrategy

NODES = 4
LEARNING_ROUNDS = 8  # of the run that has to beat chance
CHANCES = 2.5  # so many times chance must the worst domain have then
#: Goes on with a run in a process that knows nothing of the one that began it.
RESUME = """
import sys
from fedshift.run.launch import runner
from fedshift_core.errors import FedShiftError
try:
    runner.run_inline({"resume": sys.argv[1]}, int(sys.argv[2]))
except FedShiftError as error:
    sys.exit(str(error.text))
"""
#: A few images are enough where accuracy does not matter: two batches a round.
SHORT = {"rounds": 2, "train": {"epochs": 1, "batch_size": 16}, "allocation": {"share": 0.08}}
_KEPT = (
    "; what must outlive a round is in self.memory on a node, in self.knowledge or self.state on the server, not in a "
    "class or a module"
)


class ContractError(AssertionError):
    """A method does not do what every method does; the message names the check."""


class _Cut(BaseException):
    """Stands for a kill between two rounds."""


class _Traffic(inline.InlineGrid):
    """An inline grid that keeps the names of the global generators from which a node has drawn."""

    def __init__(self, last_round: int = 0) -> None:
        """Make a grid; ``last_round``: the round after which it breaks off, 0 for none."""
        super().__init__(client_app.app, NODES)
        self.drawn: set[str] = set()
        self._last = last_round

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Answer each message."""
        requests = list(messages)
        for message in requests:
            number = int(str(message.content.config_records["config"].get("server-round", 0)))
            if 0 < self._last < number and message.metadata.message_type == MessageType.TRAIN:
                raise _Cut
        before = _generators()
        replies = list(super().send_and_receive(requests, timeout=timeout))
        self.drawn |= {name for name, state in _generators().items() if state != before[name]}
        return replies


def _generators() -> dict[str, bytes]:
    """Return the states of the global generators of random numbers."""
    return {
        "random": repr(random.getstate()).encode(),
        "numpy.random": repr(np.random.get_state()).encode(),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }


def check_repeats(first: Path, second: Path) -> None:
    """Check that two runs are equal but for their times.

    Raises:
        ContractError: With what differs.
    """
    a, b = Run(first), Run(second)
    for mine, other in zip(a.rounds, b.rounds, strict=True):
        if differing := [key for key in mine if key != "seconds" and mine[key] != other.get(key)]:
            raise ContractError(f"it repeats: round {mine['round']} has other {', '.join(differing)}")
    if a.results.weights_sha256 != b.results.weights_sha256:
        raise ContractError("it repeats: the same configuration ended with other weights")


def check_beats_chance(folder: Path) -> None:
    """Check that a run has learnt: every domain is well above chance, the loss has come down, weights are finite.

    Raises:
        ContractError: With the domain, or the loss.
    """
    run, config = Run(folder), resolving.resolve({"experiment": str(folder / CONFIG_FILE)})
    needed = CHANCES * 100 / len(config.dataset.known().classes)
    for domain, accuracy in run.results.final.items():
        if accuracy is None or accuracy <= needed:
            found = "unknown" if accuracy is None else f"{accuracy:.1f} %"
            raise ContractError(f"it learns: {domain} is {found} after the run, expected above {needed:.0f} %")
    losses = [line["losses"][f"{LOSS_TERM}{CE}"] for line in run.rounds if f"{LOSS_TERM}{CE}" in line["losses"]]
    if losses and losses[-1] >= losses[0]:
        raise ContractError(f"it learns: the cross-entropy went from {losses[0]:.3f} to {losses[-1]:.3f}")
    check_finite(folder)


def check_finite(folder: Path) -> None:
    """Check that no node was left out, and that losses and all that the last checkpoint has are finite numbers.

    Raises:
        ContractError: With the node, the loss or the array.
    """
    last = 0
    for line in Run(folder).rounds:
        last = line["round"]
        if line["left_out"]:
            raise ContractError(f"nodes are heard: in round {last} was left out {line['left_out'][0]}")
        for name, value in line["losses"].items():
            if value is None or not math.isfinite(value):
                raise ContractError(f"numbers are finite: {name} is {value} in round {last}")
    for file in sorted((folder / checkpoints.FOLDER).glob(f"*-{last:05d}.safetensors")):
        for name, array in atomic_io.unpack(file.read_bytes()).items():
            if not np.isfinite(array).all():
                raise ContractError(f"numbers are finite: {name} of {file.stem} holds others")


def check_declared(method: Method, folder: Path) -> None:
    """Check that nodes report the method's ``terms``, none below 0; what else they send a server checks itself.

    Raises:
        ContractError: With the name.
    """
    losses = [line["losses"] for line in Run(folder).rounds]
    for term in (*(CE,) * method.trains, *method.terms):
        values = [line[f"{LOSS_TERM}{term}"] for line in losses if f"{LOSS_TERM}{term}" in line]
        if not values:
            raise ContractError(f"losses are declared: terms has {term!r}, which no node reported")
        if min(values) < 0 and term != CE:
            raise ContractError(f"losses are declared: {term!r} is negative: {min(values)}")


@dataclass
class _Bench:
    """Makes the runs of a check in a folder, each with the keys that are given."""

    method: Method
    folder: Path
    experiment: Named
    given: Mapping[str, Any]

    def run(self, name: str, *more: Mapping[str, Any], grid: _Traffic | None = None, processes: int = 1) -> Run:
        """Make a run, in so many worker processes, with further keys over the given ones."""
        own = {"method": self.method.name, "name": name, "output_dir": self.folder}
        words = keys.words(self.experiment, own)
        for given in (self.given, *more):  # what comes last counts
            words += keys.words("", given)
        flat, _ = parse_arguments(registering.with_files(words, renew=False))
        return Run(runner.run_inline(flat, NODES, processes, grid=grid))


def check_method(
    method: "str | Method | type[DomainClient[Any]] | type[DomainStrategy[Any]]",
    *,
    experiment: Named = "handwritten",
    learns: bool = True,
    progress: bool = True,
    **more: Any,
) -> list[str]:
    """Check that a method does what every method does: an hour of debugging in a minute or two.

    It repeats bit for bit, with its nodes in two processes too; resumed after a round in another process it ends with
    the same bits; what travels is declared, and so are its losses; numbers are finite, also with a last batch of one
    image; nodes draw from no global generator of Python or NumPy; with its ``off`` it is FedAvg bit for bit; it learns.

    Args:
        method: A registered name, a :class:`fedshift.Method`, or a class, which is registered if it is not.
        experiment: Where it is tried; a method of one file is that of an experiment's ``plugins``.
        learns: Whether to try that, too, which takes most of the time.
        progress: Whether to print a line for each check that holds.
        more: Keys of all runs, such as ``model={"name": "cnn_bn"}``.

    Returns:
        The names of the checks that hold.

    Raises:
        ContractError: At the first check that fails; the message names it. It is an ``AssertionError``.
        ConfigError: If a run is refused.
    """
    resolving.resolve({"experiment": str(experiment)})  # takes the files that it names as plugins
    known = _known(method)
    held: list[str] = []
    registering.with_files([f"method={known.name}"])  # once: what a run leaves in a class must not reach the next ones
    with tempfile.TemporaryDirectory(prefix="fedshift-check-") as folder:
        bench = _Bench(known, Path(folder), experiment, more)
        for name, check in _checks(known, learns):
            with calling.call("fedshift.testing.check_method", progress=False), _failures(name):
                check(bench)
            held.append(name)
            if progress:
                print(f"{known.name}: {name}", flush=True)
    return held


def _checks(method: Method, learns: bool) -> Iterator[tuple[str, Callable[[_Bench], None]]]:
    yield "it repeats bit for bit, and what travels is declared", _repeats
    yield "resumed it ends with the same bits", _resumes
    yield "numbers are finite with a last batch of one image", _odd
    if method.off:
        yield f"with {method.off} it is FedAvg bit for bit", _off
    if learns:
        yield f"after {LEARNING_ROUNDS} rounds every domain is above {CHANCES} times chance", _learns


def _repeats(bench: _Bench) -> None:
    traffic = _Traffic()
    first = bench.run("first", SHORT, grid=traffic)
    check_finite(first.folder)
    check_declared(bench.method, first.folder)
    if traffic.drawn:
        raise ContractError(
            f"it repeats: a node drew from the global generator of {', '.join(sorted(traffic.drawn))}; "
            "self.torch_rng(purpose, round) has generators of the run's seed"
        )
    try:
        check_repeats(first.folder, bench.run("second", SHORT, processes=2).folder)
    except ContractError as error:
        raise ContractError(f"{error}; the second run had its nodes in two processes{_KEPT}") from None
    if bench.run("other", SHORT, {"seed": 1}).rounds[-1]["losses"] == first.rounds[-1]["losses"]:
        raise ContractError("it repeats: with another seed the losses are the same")


def _resumes(bench: _Bench) -> None:
    cut = bench.folder / "cut"
    with contextlib.suppress(_Cut):
        bench.run(cut.name, SHORT, grid=_Traffic(last_round=1))
    ran = subprocess.run(
        [sys.executable, "-c", RESUME, str(cut), str(NODES)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    if ran.returncode:
        reason = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise ContractError(f"it resumes: resumed after round 1 in another process it failed: {reason}{_KEPT}")
    if Run(cut).results.weights_sha256 != Run(bench.folder / "first").results.weights_sha256:
        raise ContractError(f"it resumes: resumed after round 1 it ended with other weights{_KEPT}")


def _odd(bench: _Bench) -> None:
    check_finite(bench.run("odd", SHORT, {"train": {"batch_size": 7}, "allocation": {"share": 0.06}}).folder)


def _off(bench: _Bench) -> None:
    off = bench.run("off", SHORT, {"set": bench.method.off})
    plain = bench.run("fedavg", SHORT, {"method": registry.FIRST})
    for what, mine, other in (
        ("ended with other weights", off.results.weights_sha256, plain.results.weights_sha256),
        ("has other losses", [line["losses"] for line in off.rounds], [line["losses"] for line in plain.rounds]),
    ):
        if mine != other:
            raise ContractError(f"its switch: with {bench.method.off} it {what} than FedAvg")


def _learns(bench: _Bench) -> None:
    check_beats_chance(bench.run("learning", {"rounds": LEARNING_ROUNDS}).folder)


def _known(method: Any) -> Method:
    """Return the registered method of a name, an object or a class.

    Raises:
        ConfigError: If there is none.
    """
    if isinstance(method, str | Method):
        return registry.get(method.name if isinstance(method, Method) else method)
    if not isinstance(method, type) or not issubclass(method, DomainClient | DomainStrategy):
        raise ConfigError(f"check_method: expected a name or a class of a method, found {as_found(method)}")
    for found in map(registry.get, registry.METHODS):
        if method in (found.client, found.strategy):
            return found
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", method.__name__).lower()
    client, strategy = (method, None) if issubclass(method, DomainClient) else (None, method)
    return registering.register(name, client, strategy, {"never_off": "unknown"})


@contextlib.contextmanager
def _failures(check: str) -> Iterator[None]:
    """Name the check in an error of its run.

    Raises:
        ContractError: If the run failed.
        ConfigError: If it was refused.
    """
    try:
        yield
    except FederationError as error:
        raise ContractError(f"{check}: {error.text}") from None
    except FedShiftError as error:
        raise error.under(check) from None

"""``fedshift withdraw``: takes a site, or some of its patients, out of a model that is solved of sums.

The sums of the site are subtracted and the head is solved again, which gives the bits of a run without it. Then the run
folder is written anew from what is left, and the old one is removed with all that was made of it.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedshift.export import remains, saving
from fedshift.run import reading
from fedshift.run.launch import credentials
from fedshift.run.reading import Record
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import one_time_payload
from fedshift_app.run import agreement, checkpoints, single_nodes
from fedshift_app.run.checkpoints import Checkpoint
from fedshift_app.run.files import CONFIG_FILE, LOCK_FILE
from fedshift_app.run.folder import RunFolder, weights_hash
from fedshift_app.run.status import COMPLETED, StatusFile
from fedshift_core import atomic_io, same_names
from fedshift_core.arrays import Arrays
from fedshift_core.arrays import digest as digest_of
from fedshift_core.atomic_io import InUse, Lock
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.frozen import FrozenDict
from fedshift_core.limits import WHOLE_PATH, Refused, as_found, shown
from fedshift_core.methods.feature_sums import COUNTS
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.secure import withdrawal
from fedshift_core.secure.statement import LEAST_HOLDERS
from fedshift_core.wire.records import encode
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.methods.feature_sums import FeatureSumsStrategy

KEYS = ("node", "sums", "key", "sign", "method.ridge")
FORM = "node=NAME [sums=FILE key=NODE.pub] [sign=server.key] [method.ridge=NUMBER]"
_KEPT = ("run_id", "nodes", "images", "arithmetic", "asked", "git")  # of ``config.yaml``


@dataclass(frozen=True)
class Source:
    """The sums that are taken out.

    Attributes:
        sums: By name.
        origin: Where they are from, in words.
        patients: Of how many patients they are; None: of the whole node.
        file: The site's file; None where the run kept them.
    """

    sums: Arrays
    origin: str
    patients: int | None = None
    file: Path | None = None


@dataclass(frozen=True)
class Plan:
    """The steps of a withdrawal.

    Attributes:
        record: The run.
        checkpoint: Its model, with the site.
        config: The configuration of the run without the site.
        strategy: The method, with the sums that are left.
        node: The one that withdraws, or whose patients do.
        source: What is taken out.
        others: The nodes that stay in the model, as they are then.
        removed: What is removed: the old run folder first.
    """

    record: Record
    checkpoint: Checkpoint
    config: RunConfig
    strategy: FeatureSumsStrategy
    node: Node
    source: Source
    others: list[Node]
    removed: list[Path]

    @property
    def weights(self) -> Arrays:
        """The model without the site."""
        return self.checkpoint.weights | self.strategy.head()

    def lines(self) -> list[str]:
        """Return what is done, for people."""
        source, counts = self.source, self.source.sums[COUNTS]
        by_class = zip(self.record.classes, counts.tolist(), strict=True)
        who = f"{self.node}" if source.patients is None else f"{plural(source.patients, 'patient')} of {self.node}"
        left = plural(int(self.strategy.state[COUNTS].sum()), "training image", form=",")
        return [
            f"withdraws: {who}: {', '.join(f'{shown(name)} {number}' for name, number in by_class)}",
            f"subtracted: {source.origin}",
            f"left: {left} of {plural(len(self.others), 'node')}; the head is solved again",
            *(f"removed: {line}" for line in remains.described(self.removed)),
            *(f"stays: {line}" for line in remains.elsewhere(self.record)),
        ]

    def receipt(self) -> dict[str, Any]:
        """Return what the receipt says."""
        source, before, after = self.source, self.checkpoint.weights, self.weights
        return {
            "run_id": self.record.config_file.get("run_id", ""),
            "node": self.node.index,
            "domain": self.node.domain,
            "patients": source.patients,
            "images": int(source.sums[COUNTS].sum()),
            "subtracted": source.origin,
            "sums_sha256": digest_of(source.sums),
            "weights_sha256": {"before": weights_hash(before), "after": weights_hash(after)},
            "removed": remains.described(self.removed),
            "stays": remains.elsewhere(self.record),
        }


def withdraw(run: str, arguments: Sequence[str], *, dry: bool) -> str:
    """Withdraw a site or patients from a run; return what was done, or with ``dry`` what would be.

    Raises:
        FedShiftError: If an argument is wrong, the run is of a method that trains, the sums cannot be the site's, or
            too little would be left. Nothing has changed then.
    """
    given, path = _given(arguments), user_path(run, "withdraw")
    key = credentials.private_key(user_path(given["sign"], "sign")) if "sign" in given else None
    plan = planned(path, given)
    lines = plan.lines()
    if dry:
        return "\n".join(lines)
    try:
        lock = Lock(path / LOCK_FILE)
    except InUse as holder:
        raise ConfigError(f"withdraw: the run in {shown(path)} is in use by {holder}") from None
    try:
        made = _written_anew(plan, shlex.join(["fedshift", "withdraw", run, *arguments]))
        for earlier in [*remains.receipts(path), *remains.receipts(path, "sig")]:
            atomic_io.write_durably(made / earlier.name, earlier.read_bytes())
        file = remains.write_receipt(made, plan.receipt(), key)
        remains.remove(plan.removed)
    finally:
        lock.release()
    with atomic_io.writing(path):
        made.rename(path)
    again = f"fedshift evaluate {path} --site NAME" if plan.record.deployed else f"fedshift rescore {path}"
    signed = "signed" if key else "not signed; sign=server.key signs it"
    lines.append(f"run folder: {shown(path, WHOLE_PATH)}, without its scores, which were of the model before: {again}")
    return "\n".join([*lines, f"receipt: {shown(path / file.name, WHOLE_PATH)}, {signed}"])


def _written_anew(plan: Plan, command: str) -> Path:
    """Write the run folder without the site next to the old one; return it.

    Raises:
        FedShiftError: If it cannot be written.
    """
    record, old = plan.record, plan.record.folder
    about = {key: record.config_file[key] for key in _KEPT if record.config_file.get(key)}
    scores = dict.fromkeys(plan.config.dataset.domains)
    rounds = [
        RoundResult(line["round"], accuracy=dict(scores), nodes=[other.index for other in plan.others])
        for line in record.lines
    ]
    strategy, start = plan.strategy, one_time_payload.of_run(old / checkpoints.FOLDER)
    folder = RunFolder(
        old.parent,
        plan.config,
        engine=record.engine,
        personal=strategy.federation.model.personal,
        about=about | {"command": command},
    )
    try:
        if start:
            one_time_payload.write(folder.path / checkpoints.FOLDER, start)
        for other in plan.others:
            if single := single_nodes.read(old, other.index):
                taken = plan.source.sums if other.index == plan.node.index else {}
                left = {name: array - taken[name] if taken else array for name, array in single.items()}
                single_nodes.write(folder.path, other.index, left)
        folder.take_over(rounds[:-1], plan.checkpoint.seconds)
        status = StatusFile(folder, plan.config, plan.others)
        folder.add_round(
            rounds[-1], encode(plan.weights), knowledge=strategy.knowledge, state=strategy.state, nodes=plan.others
        )
        folder.finish(plan.others)
        status.end(COMPLETED, None)
    finally:
        folder.close()
    return folder.path


def planned(path: Path, given: Mapping[str, str]) -> Plan:
    """Return what a withdrawal does; nothing has changed on the disk.

    Raises:
        FedShiftError: As :func:`withdraw`.
    """
    record = reading.read(path, "withdraw")
    checkpoint = _checkpoint(record)
    node = _node(given["node"], checkpoint.nodes)
    strategy = _strategy(record, checkpoint, node)
    members = strategy.members
    if node.index not in members:
        raise ConfigError(f"node={given['node']}: {node} is not in the model: it has sent no sums")
    source = _source(record, given, node)
    others = [other for other in checkpoint.nodes if other.index in members and other.index != node.index]
    whole = source.patients is None
    if whole:
        _check_left(record, others, node, strategy)
    config = _with_ridge(record, strategy, given.get("method.ridge", ""))
    try:
        strategy.take_out(source.sums, node, others if whole else None)
        strategy.head()
    except (Refused, FederationError) as refused:
        raise ConfigError(f"withdraw: {source.origin}: {refused}") from None
    if not whole:
        counts = tuple((np.array(node.class_counts) - source.sums[COUNTS]).tolist())
        others = sorted([*others, replace(node, class_counts=counts)], key=lambda each: each.index)
    return Plan(record, checkpoint, config, strategy, node, source, others, remains.of_run(record, source.file))


def _given(arguments: Sequence[str]) -> dict[str, str]:
    """Return the arguments by key.

    Raises:
        ConfigError: If one is unknown, comes twice or lacks what belongs to it.
    """
    given: dict[str, str] = {}
    for word in arguments:
        key, _, value = word.partition("=")
        if key not in KEYS or not value or key in given:
            raise ConfigError(f"withdraw: {as_found(word)} is not expected here; allowed are {FORM}")
        given[key] = value
    if "node" not in given or ("sums" in given) != ("key" in given):
        lacks = "node" if "node" not in given else "key" if "sums" in given else "sums"
        raise ConfigError(f"withdraw: {lacks} is missing; expected is {FORM}")
    return given


def _checkpoint(record: Record) -> Checkpoint:
    if changed := agreement.edited(record.folder, record.config_file):
        raise ConfigError(f"withdraw: {shown(record.folder)}: {changed}; restore it")
    if not record.finished or record.checkpoint is None:
        raise ConfigError(f"withdraw: the run in {shown(record.folder)} is not finished, or its checkpoint is lost")
    return record.checkpoint


def _node(name: str, nodes: Sequence[Node]) -> Node:
    """Return the node of a number, or of a domain that it alone has.

    Raises:
        ConfigError: If there is none, or there are several.
    """
    number = name.removeprefix("node-")
    found = [node for node in nodes if number.isdecimal() and node.index == int(number)]
    found = found or [node for node in nodes if same_names.same(node.domain, name)]
    if len(found) == 1:
        return found[0]
    why = "several nodes have it" if found else "there is none"
    raise ConfigError(f"node={as_found(name)}: {why}; name one of {saving.listed(found or nodes)}")


def _strategy(record: Record, checkpoint: Checkpoint, node: Node) -> FeatureSumsStrategy:
    """Return the method's strategy with all sums of the run.

    Raises:
        ConfigError: If it solves nothing of sums, or more than these sums has made the model.
    """
    config = record.config
    again = f"to train again without {node}: {_again(record, node)}"
    if not issubclass(config.declared.strategy_class(), FeatureSumsStrategy):
        raise ConfigError(
            f"withdraw: {config.method['name']} trains: each round's weights rest on all nodes before, and no "
            "subtraction takes one out",
            again,
        )
    strategy = saving.restored(record, checkpoint)
    assert isinstance(strategy, FeatureSumsStrategy)
    kept = {"moments": checkpoint.moments, "averaged": checkpoint.averaged, "private parts": checkpoint.memory}
    more = [name for name, held in kept.items() if held]
    if not strategy.members:
        more.append("sums without the names of their nodes")
    elif any(array.tobytes() != checkpoint.weights[name].tobytes() for name, array in strategy.head().items()):
        more.append("another head than that of its sums")
    if more:
        raise ConfigError(f"withdraw: the run keeps {', '.join(more)}, which no subtraction takes a node out of", again)
    return strategy


def _source(record: Record, given: Mapping[str, str], node: Node) -> Source:
    """Return the sums to take out: those that the run kept, or those of the site's file.

    Raises:
        ConfigError: If there are none, or the file is not of this node and run.
    """
    if "sums" not in given:
        if kept := single_nodes.read(record.folder, node.index):
            return Source(kept, "its sums, which the run kept")
        raise ConfigError(
            f"withdraw: the run keeps no sums of {node} alone: its owner makes them with `fedshift site withdraw`",
            "then: sums=FILE key=NODE.pub",
        )
    file = user_path(given["sums"], "sums")
    read = withdrawal.read(file, user_path(given["key"], "key"))
    about, run_id = read.about, str(record.config_file.get("run_id", ""))
    for what, found, expected in (("run", about.run_id, run_id), ("domain", about.domain, node.domain)):
        if found != expected:
            raise ConfigError(
                f"sums={shown(file)} is of the {what} {as_found(found)}, expected is {as_found(expected)}"
            )
    return Source(read.sums, f"{shown(file)}, signed by {read.signer}", about.patients, file)


def _check_left(record: Record, others: Sequence[Node], node: Node, strategy: FeatureSumsStrategy) -> None:
    """Refuse to leave too few nodes for a secure sum: their owners count on the others.

    Raises:
        ConfigError: With the number of nodes, or the class.
    """
    least = record.config.federation.secure_sums_nodes if record.config.federation.secure_sums else 1
    again = f"to train again without {node}: {_again(record, node)}"
    if least > 1 and record.config.model.weights:
        again = f"nodes refuse a new sum without {node} of this encoder's features, as the difference would be its own"
    if len(others) < least:
        raise ConfigError(f"withdraw: {plural(len(others), 'node')} would be left in the sum, least is {least}", again)
    if least == 1:
        return
    holders = (np.array([other.class_counts for other in others]) > 0).sum(axis=0) * (strategy.state[COUNTS] > 0)
    for name, number in zip(record.classes, holders.tolist(), strict=True):
        if 0 < number < LEAST_HOLDERS:
            raise ConfigError(
                f"withdraw: {shown(name)} would be left with {plural(number, 'node')} in the sum, least is "
                f"{LEAST_HOLDERS}",
                again,
            )


def _with_ridge(record: Record, strategy: FeatureSumsStrategy, given: str) -> RunConfig:
    """Return the run's configuration with a ridge that the site's images have not chosen; the strategy solves by it.

    Raises:
        ConfigError: If it is missing, of no use or no number above 0.
    """
    before = record.config_file["resolved"].get("train", {}).get("arithmetic", "")  # what nodes settled on is apart
    train = record.config.train.model_copy(update={"arithmetic": before})
    config = record.config.model_copy(update={"train": train, "tracking": ()})
    chosen = config.method.get("ridge") == "validation"
    if chosen != bool(given):
        raise ConfigError(
            "withdraw: method.ridge=validation: the site's images have chosen it, too: state method.ridge=NUMBER"
            if chosen
            else f"method.ridge={given}: this run states its own, {config.method.get('ridge')}; leave the key out"
        )
    if given:
        ridge = float(given) if re.fullmatch(r"\d*\.?\d+(e[+-]?\d+)?", given) else 0.0
        if not 0 < ridge < math.inf:
            raise ConfigError(f"method.ridge: expected a number above 0, found {as_found(given)}")
        config = config.model_copy(update={"method": FrozenDict({**config.method, "ridge": ridge})})
        strategy.params, strategy.knowledge = config.params(), {}
        strategy.state.pop("right", None)
    return config


def _again(record: Record, node: Node) -> str:
    """Return the command that trains again without a node."""
    left = Counter(other.domain for other in record.nodes if other.index != node.index)
    domains = [name for name in record.config.dataset.domains if name != node.domain or left[name]]
    file, among = record.folder / CONFIG_FILE, f"dataset.domains=[{','.join(domains)}]"
    # Nodes sum the same weights over the same nodes alone.
    seed = [f"seed={record.config.seed + 1}"] if record.config.federation.secure_sums else []
    if record.deployed:
        keys = " ".join([f'experiment="{file}"', *seed, f'set="{among} federation.min_nodes={left.total()}"'])
        return shlex.join(["flwr", "run", "APP", "SITE", "--stream", "--run-config", keys]) + ", its SuperNode stopped"
    counts = ",".join(f"{name}: {left[name]}" for name in domains if left[name])
    return shlex.join(
        ["fedshift", "run", str(file), f"nodes={left.total()}", *seed, among, f"allocation.counts={{{counts}}}"]
    )

"""Messages between server and node as types, with their codecs: nobody else puts a name and a prefix together.

A server makes a request and sends ``request.to_record()``; the node reads it with ``from_record`` after it was held
against the run's configuration (``fedshift_app.node.requests``). Replies are checked by the server, name by name
(``fedshift_strategies.federation.checks``), before they are read. What features add travels in ``options`` (to the
node), in ``numbers`` (to the server) and in ``records``, under the names that ``fedshift_core.features`` declares.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedshift_core.errors import FedShiftError
from fedshift_core.wire import names as wire

Scalar = int | float | str


#: How values of a header are read, by the type of what stands for nothing; others are texts.
_READ: Mapping[type, Callable[[Any], Any]] = {int: int, tuple: lambda numbers: tuple(map(int, numbers))}


def _name(attribute: str) -> str:
    return attribute.replace("_", "-")


@dataclass(frozen=True)
class RunHeader:
    """What each message to a node says of the run and of what the node must have.

    Attributes:
        engine: ``simulation`` or ``deployment``: whether the node is given its domain or works it out.
        run: The resolved configuration as JSON.
        run_id: 32 hexadecimal digits; a run that is resumed keeps it. Empty where nothing is kept on disk.
        kept_in: Folder where simulated nodes keep their private parts; empty for real ones.
        resumed_after: The rounds after which the run was resumed.
        chosen: Rounds whose memory the node keeps in addition to the usual ones.
        memory_round: The node must have what it kept in this round, or later; 0 for nothing.
        start_digest: SHA-256 of what the node must begin from; empty for nothing.
    """

    engine: str
    run: str
    run_id: str = ""
    kept_in: str = ""
    resumed_after: tuple[int, ...] = ()
    chosen: tuple[int, ...] = ()
    memory_round: int = 0
    start_digest: str = ""

    def to_config(self) -> dict[str, Any]:
        """Return the entries of the record ``config``, which have the attributes' names; none of what is empty."""
        values = {_name(key): list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()}
        return {key: value for key, value in values.items() if value or key in (wire.ENGINE, wire.RUN)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the entries of a record ``config``."""
        given: dict[str, Any] = {
            each.name: _READ.get(type(each.default), str)(config[_name(each.name)])
            for each in fields(cls)
            if _name(each.name) in config
        }
        return cls(**given)

    def to_record(self) -> RecordDict:
        """Return a message that asks a node what it is."""
        return RecordDict(
            {wire.ARRAYS: ArrayRecord(), wire.KNOWLEDGE: ArrayRecord(), wire.CONFIG: ConfigRecord(self.to_config())}
        )

    def question(self, server_round: int, node_index: int, asked: Mapping[str, Any]) -> RecordDict:
        """Return a message with a question of a feature.

        Args:
            server_round: The round.
            node_index: The node's place in the order of the federation.
            asked: Its entries of the record ``config``.
        """
        content = self.to_record()
        own = {wire.SERVER_ROUND: server_round, wire.NODE_INDEX: node_index}
        content[wire.CONFIG] = ConfigRecord({**self.to_config(), **own, **asked})
        return content


@dataclass(frozen=True)
class WorkRequest:
    """What a node is asked to do with weights.

    Attributes:
        header: What the message says of the run.
        server_round: The round, from 1.
        node_index: The node's place in the order of the federation.
        weights: The shared weights.
        knowledge: What the method shares besides.
        scalars: Numbers and words of the method for this node.
        options: What features ask for.
        records: Arrays of features.
        start: What the node begins from in addition to the weights; None where it is not sent with this message.
    """

    header: RunHeader
    server_round: int
    node_index: int
    weights: ArrayRecord
    knowledge: ArrayRecord
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[str, ArrayRecord] = field(default_factory=dict)
    start: ArrayRecord | None = None

    def to_record(self) -> RecordDict:
        """Return the message."""
        config = {wire.SERVER_ROUND: self.server_round, wire.NODE_INDEX: self.node_index, **self.header.to_config()}
        config |= {wire.SCALAR + name: value for name, value in self.scalars.items()} | dict(self.options)
        start = {} if self.start is None else {wire.START: self.start}
        arrays = {wire.ARRAYS: self.weights, wire.KNOWLEDGE: self.knowledge}
        return RecordDict({**arrays, wire.CONFIG: ConfigRecord(config), **self.records, **start})

    @classmethod
    def from_record(cls, content: RecordDict) -> Self:
        """Read a message that was held against the run's configuration.

        Raises:
            FedShiftError: If a scalar is no number and no word.
        """
        config = cast(ConfigRecord, content[wire.CONFIG])
        arrays = {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}
        core = {wire.SERVER_ROUND, wire.NODE_INDEX, *(_name(each.name) for each in fields(RunHeader))}
        options = {key: value for key, value in config.items() if key not in core and not key.startswith(wire.SCALAR)}
        scalars: dict[str, Any] = {
            key.removeprefix(wire.SCALAR): value for key, value in config.items() if key.startswith(wire.SCALAR)
        }
        for name, value in scalars.items():
            if not isinstance(value, Scalar):
                raise FedShiftError(f"the server sends {name} as {type(value).__name__}")
        return cls(
            RunHeader.from_config(config),
            int(str(config[wire.SERVER_ROUND])),
            int(str(config[wire.NODE_INDEX])),
            arrays[wire.ARRAYS],
            arrays[wire.KNOWLEDGE],
            scalars,
            options,
            {name: arrays[name] for name in arrays if name not in (wire.ARRAYS, wire.KNOWLEDGE, wire.START)},
            arrays.get(wire.START),
        )


@dataclass(frozen=True)
class WorkReply:
    """What a node sends after training or scoring.

    Attributes:
        num_examples: Images that it worked on.
        numbers: Losses, scores and what features add, by name.
        keeps: The node keeps private arrays of this round's training.
        started_anew: What the node must have kept is gone.
        weights: The shared weights after local training; None of a score.
        knowledge: What the node contributes besides; None of a score.
        records: Arrays of features.
    """

    num_examples: int
    numbers: Mapping[str, Any]
    keeps: bool = False
    started_anew: bool = False
    weights: ArrayRecord | None = None
    knowledge: ArrayRecord | None = None
    records: Mapping[str, ArrayRecord] = field(default_factory=dict)

    def to_record(self) -> RecordDict:
        """Return the message."""
        numbers: dict[str, Any] = {wire.NUM_EXAMPLES: self.num_examples, **self.numbers}
        numbers |= {wire.KEPT: 1} if self.keeps else {}
        numbers |= {wire.STARTED_ANEW: 1} if self.started_anew else {}
        arrays = {} if self.weights is None else {wire.ARRAYS: self.weights}
        arrays |= {} if self.knowledge is None else {wire.KNOWLEDGE: self.knowledge}
        return RecordDict({**arrays, wire.METRICS: MetricRecord(numbers), **self.records})


@dataclass(frozen=True)
class NodeIntroduction:
    """What a node says of itself before the first round.

    Attributes:
        domain: Its domain.
        class_counts: Training images per class, (C,).
        num_test: Test images of its own domain.
        sees_all_tests: It sees the whole test set of any domain (simulation).
        partition_id: Its place; -1 where it was given none.
        num_partitions: How many nodes there are; -1 where it cannot know.
        fastest: Place in ``ARITHMETICS`` of what trains fastest there; None where the run says it.
        unheld_tests: By domain that no node holds: test images of it that the node sees.
        numbers: What features add, by name.
        words: Likewise in words.
        held_tests: By further domain that a real node holds: test images of it that the node has.
    """

    domain: str
    class_counts: list[int]
    num_test: int
    sees_all_tests: bool
    partition_id: int
    num_partitions: int
    fastest: int | None = None
    unheld_tests: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    held_tests: Mapping[str, int] = field(default_factory=dict)

    def to_record(self) -> RecordDict:
        """Return the message."""
        numbers: dict[str, Any] = {
            wire.CLASS_COUNTS: self.class_counts,
            wire.NUM_TEST: self.num_test,
            wire.SHARED_TEST: int(self.sees_all_tests),
            wire.PARTITION_ID: self.partition_id,
            wire.NUM_PARTITIONS: self.num_partitions,
            **self.numbers,
            **{wire.UNHELD_TEST + domain: number for domain, number in self.unheld_tests.items()},
            **{wire.HELD_TEST + domain: number for domain, number in self.held_tests.items()},
        }
        numbers |= {} if self.fastest is None else {wire.FASTEST: self.fastest}
        return RecordDict(
            {wire.CONFIG: ConfigRecord({wire.DOMAIN: self.domain, **self.words}), wire.METRICS: MetricRecord(numbers)}
        )

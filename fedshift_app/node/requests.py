"""Checks of a server's message on a node. Only what the run's configuration asks for is done.

A message comes from whoever runs the server, and so does the configuration in it. A node therefore holds each message
against that configuration before it works, and keeps the configuration to the first one of the run (:func:`admit`).
The table ``ALLOWED`` says which keys each kind of message may have, ``RULES`` under which configuration and with which
value. The same rules hold in every engine; only parts of test sets (``starts``, ``stops``) are for simulated nodes.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

from fedshift_app.config.cross_checks import check_noise
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data, setup
from fedshift_app.node.data import Place
from fedshift_clients import features
from fedshift_clients.calls import Request, is_count
from fedshift_core.errors import RequestError
from fedshift_core.limits import MOST_NAME, Refused, plain
from fedshift_core.secure.layout import written
from fedshift_core.wire.names import (
    ARRAYS,
    CHOSEN,
    CONFIG,
    DOMAINS,
    DRAWN,
    ENGINE,
    KEPT_IN,
    KNOWLEDGE,
    MEMORY_ROUND,
    NODE_INDEX,
    RESUMED_AFTER,
    RUN,
    RUN_ID,
    SCALAR,
    SERVER_ROUND,
    START,
    START_DIGEST,
    STARTS,
    STOPS,
)
from fedshift_core.wire.records import array_record, config_record
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import declared
from fedshift_strategies.federation.checks import Range
from fedshift_strategies.federation.evaluation import LEAST_SAMPLE, sample_size
from fedshift_strategies.federation.introduction import LARGEST_INDEX


@dataclass(frozen=True, kw_only=True)
class NodeRequest(Request):
    """A message to a node, and what it is held against.

    Attributes:
        config: The configuration of the run, whole.
        where: The node.
    """

    config: RunConfig
    where: Place

    @classmethod
    def of(cls, kind: str, given: Mapping[str, Any], config: RunConfig, where: Place) -> Self:
        """Return a message of a kind with this record ``config``."""
        keys = features.of(config).keys[kind]
        asks_else = any(key.replaces_scores for name, key in keys.items() if name in given)
        return cls(
            kind=kind,
            given=given,
            config=config,
            shared=where.shared,
            own_domains=config.dataset.domains if where.shared else where.domains,
            scores=kind == MessageType.EVALUATE and not asks_else,
            sums=_sums(config),
            where=where,
        )


def _sums(config: RunConfig) -> tuple[str, ...]:
    """Return what the run's method contributes as sums."""
    strategy = config.declared.strategy_class()
    return tuple(written(strategy.sums(config.params()))) if config.federation.secure_sums else ()


PINS = "pins"  # the record of context.state
_FLOWER_RUN, _CONFIGURATION, _TRAINED = "flower-run", "configuration", "trained"
#: Takes the request and the value; returns what the configuration says instead, empty where the value is allowed.
Rule = Callable[[NodeRequest, Any], str]


def admit(kind: str, msg: Message, context: Context) -> None:
    """Let a message pass, or refuse it before any work. What the run may not change any more is kept.

    Args:
        kind: The type of the message, as its handler knows it.
        msg: The message, unpacked.
        context: The node's; its state keeps the pins of the run.

    Raises:
        RequestError: In one line: the key, what it holds, what the configuration says.
    """
    record = config_record(msg.content, CONFIG)
    if record is None:
        raise RequestError(f"refused: the message lacks the record {CONFIG!r}")
    for key in (ENGINE, RUN):
        if not isinstance(record.get(key), str):
            raise RequestError(f"refused: the message lacks {key}, a text")
    config, where = setup.open_message(record, context)
    request = NodeRequest.of(kind, record, config, where)
    if not where.shared:
        check_noise(config)
    check(request, msg.content)
    hold(request, msg, context)


def check(request: NodeRequest, content: RecordDict) -> None:
    """Hold a message against the run's configuration.

    Raises:
        RequestError: With the first thing that is not allowed.
    """
    core, request = ALLOWED[request.kind], replace(request, records=frozenset(content))
    strategy, on = request.config.declared.strategy_class(), features.of(request.config)
    for key, value in request.given.items():
        if key.startswith(SCALAR):
            _refuse(request.but(key, _of_scalar(strategy, key.removeprefix(SCALAR), value)))
        elif key not in core and key not in on.keys[request.kind]:
            _refuse(request.but(key, on.refuse_key(request.kind, key)))
    for key in core:  # in the order of the table: later rules rest on earlier ones
        if key in request.given:
            _refuse(request.but(key, RULES[key](request, request.given[key])))
        elif (key in REQUIRED and request.kind != MessageType.QUERY) or (key == DOMAINS and request.scores):
            _refuse(f"a message to {request.kind} lacks {key}")
    start = set() if request.kind == MessageType.QUERY else {START}
    _refuse(request.no_record(*{*content} - {ARRAYS, KNOWLEDGE, CONFIG} - start - on.takes))
    if start:
        _check_arrays(request, content, strategy)
    _refuse(on.refuse(request))


def _refuse(why: str) -> None:
    if why:
        raise RequestError(f"refused: {why}")


def _check_arrays(request: NodeRequest, content: RecordDict, strategy: type[DomainStrategy]) -> None:
    """Refuse a message about weights that lacks them, and knowledge that the method does not send."""
    for name in (ARRAYS, KNOWLEDGE):
        if array_record(content, name) is None:
            _refuse(f"a message to {request.kind} lacks the arrays {name!r}")
    for name in array_record(content, KNOWLEDGE) or ():
        if why := _declared(strategy, "sends", name):
            _refuse(f"the server sends knowledge {plain(name, MOST_NAME)!r}, but {why}")


def _declared(strategy: type[DomainStrategy], does: Literal["sends", "tells"], name: str) -> str:
    patterns = declared(strategy, does)
    if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns):
        return ""
    return f"the run's method {does} {', '.join(patterns) or 'nothing'}"


def _of_scalar(strategy: type[DomainStrategy], name: str, value: Any) -> str:
    """Return why a method's scalar is none that it tells, or not what it declares of it."""
    if why := _declared(strategy, "tells", name):
        return why
    known = strategy.tells.get(name) if isinstance(strategy.tells, Mapping) else None
    if isinstance(known, Range):
        try:
            known.check(name, value)
        except Refused as refused:
            return str(refused)
    elif known is not None and value not in known:
        return f"there are {', '.join(known)}"
    return "" if isinstance(value, int | float | str) else "it must be a number or a word"


# --- rules of any message ----------------------------------------------------------------------------


def _any(request: NodeRequest, value: Any) -> str:
    return "" if isinstance(value, str) else "it must be a text"


def _rounds(request: NodeRequest, values: Any, least: int = 0) -> str:
    rounds = request.config.rounds
    fits = isinstance(values, list) and all(is_count(number, least, rounds) for number in values)
    return "" if fits else f"this run has rounds={rounds}"


def _round(request: NodeRequest, value: Any) -> str:
    scores_initial = request.config.rounds == 0 and request.kind != MessageType.TRAIN  # after round 0
    return _rounds(request, [value], 0 if scores_initial else 1)


# --- scores ------------------------------------------------------------------------------------------


def _domains(request: NodeRequest, value: Any) -> str:
    if value and not request.config.evaluate.test:
        return "this run has evaluate.test=false"
    return request.refuse_domains(value) or request.refuse_score()


def _drawn(request: NodeRequest, value: Any) -> str:
    """Allow a real node's share of its test images as configured. What a simulated node shares out is the server's."""
    if not _fit_domains(request, value):
        return "it is one count for each domain"
    if request.shared:
        return ""
    evaluate = request.config.evaluate
    share = evaluate.share(request.server_round, request.config.rounds)
    for domain, drawn in zip(request.given[DOMAINS], value, strict=True):
        images = len(data.test_images(data.uncorrupted(request.config), request.where, domain))
        wanted = sample_size(images, request.config.images.eval_batch, share, LEAST_SAMPLE)
        if wanted < min(images, LEAST_SAMPLE):
            return f"a sample of fewer than {LEAST_SAMPLE} images tells of single ones, see evaluate.fraction"
        if drawn != wanted:
            share_text = f"another share of this node's test images of {domain!r}"
            return f"this run scores {share_text} in this round (evaluate.fraction={evaluate.fraction:g})"
    return ""


def _part(request: NodeRequest, value: Any) -> str:
    if not request.shared:
        return "parts of test sets are for simulations alone: a real node scores all that the run draws of its own"
    if not (_fit_domains(request, value) and DRAWN in request.given and {STARTS, STOPS} <= request.given.keys()):
        return f"{DRAWN}, {STARTS} and {STOPS} come together, one count for each domain"
    counts = zip(request.given[STARTS], request.given[STOPS], request.given[DRAWN], strict=False)
    return "" if all(start <= stop <= drawn for start, stop, drawn in counts) else "a part lies within what is drawn"


def _fit_domains(request: NodeRequest, value: Any) -> bool:
    fits = isinstance(value, list) and all(is_count(number, 0, 2**62) for number in value)
    return fits and len(value) == len(request.given.get(DOMAINS, ()))


#: What any message may have; the round first, on which other rules rest.
ALWAYS = (SERVER_ROUND, ENGINE, RUN, RUN_ID, NODE_INDEX, MEMORY_ROUND, RESUMED_AFTER, CHOSEN, KEPT_IN, START_DIGEST)
#: Which keys each kind of message may have, besides those of features and the method's scalars (``SCALAR``).
ALLOWED: dict[str, tuple[str, ...]] = {
    MessageType.QUERY: ALWAYS,
    MessageType.TRAIN: ALWAYS,
    MessageType.EVALUATE: (*ALWAYS, DOMAINS, DRAWN, STARTS, STOPS),
}
ENGINES = (setup.SIMULATION, setup.DEPLOYMENT)
REQUIRED = (SERVER_ROUND, NODE_INDEX)  # of all but questions
#: Under which configuration a key is allowed, and with which value. ``RUN`` was read before; what ``START_DIGEST`` and
#: ``RUN_ID`` name is checked where it is used.
RULES: dict[str, Rule] = {
    SERVER_ROUND: _round,
    ENGINE: lambda _, engine: "" if engine in ENGINES else f"there are {' and '.join(ENGINES)}",
    RUN: _any,
    RUN_ID: _any,
    NODE_INDEX: lambda _, index: (
        "" if is_count(index, 0, LARGEST_INDEX) else f"nodes are numbered from 0 to {LARGEST_INDEX}"
    ),
    MEMORY_ROUND: lambda request, number: _rounds(request, [number]),
    RESUMED_AFTER: _rounds,
    CHOSEN: _rounds,
    KEPT_IN: lambda request, _: "" if request.shared else "this node keeps its private parts in a folder of its own",
    START_DIGEST: _any,
    DOMAINS: _domains,
    DRAWN: _drawn,
    STARTS: _part,
    STOPS: _part,
}


# --- what a run may not change any more ----------------------------------------------------------------


def hold(request: NodeRequest, msg: Message, context: Context) -> None:
    """Keep what a run may not change from message to message, or refuse a message that has it otherwise.

    The first configuration of a run (of Flower's run id) is kept as a hash in ``context.state``, with the run's own id,
    the node's index and the digest of what nodes begin from. A run that is resumed is another one to Flower, and may
    have more rounds. Where a run has noise, a node trains once in a round, and goes on to later ones only: the mean of
    several noised updates of a round would have less noise.

    Raises:
        RequestError: With what differs.
    """
    given, privacy, flower_run = request.given, request.config.privacy, str(msg.metadata.run_id)
    kept: dict[str, Any] = dict(config_record(context.state, PINS) or {})
    if kept.get(_FLOWER_RUN) != flower_run:
        kept = {_FLOWER_RUN: flower_run}
    new = {key: given[key] for key in (RUN_ID, NODE_INDEX, START_DIGEST) if key in given}
    for key, value in {_CONFIGURATION: _digest(str(given[RUN])), **new}.items():
        if kept.setdefault(key, value) != value:
            found, before = f"{key}={value!r}", f", it was {kept[key]!r} before"
            found, before = ("another configuration", "") if key == _CONFIGURATION else (found, before)
            _refuse(f"the server sends {found} within one run{before}; a run has one from its start")
    if request.kind == MessageType.TRAIN and privacy.name != "none":
        server_round, last = request.server_round, int(kept.get(_TRAINED, 0))
        if server_round <= last:
            _refuse(
                f"the server sends {SERVER_ROUND}={server_round}, but this node has trained in round {last} "
                f"and this run has privacy.name={privacy.name}: a round's update leaves a node once"
            )
        kept[_TRAINED] = server_round
    context.state[PINS] = ConfigRecord(kept)


@functools.lru_cache(maxsize=4)
def _digest(run_json: str) -> str:
    """Return the SHA-256 of a configuration, without what the server decides after the first answers."""
    config = setup.read_config(run_json)
    settled = config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": ""})})
    return hashlib.sha256(settled.model_dump_json().encode()).hexdigest()

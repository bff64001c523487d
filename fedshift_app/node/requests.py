"""What a node does when a server sends it a message: what the run's configuration asks for, and nothing else.

A message comes from whoever runs the server, and so does the configuration in it. A node therefore holds each message
against that configuration before it works, and keeps the configuration to the first one of the run (:func:`admit`).
The table ``ALLOWED`` says which keys each kind of message may have, ``RULES`` under which configuration and with which
value. The same rules hold in every engine; only parts of test sets (``starts``, ``stops``) are for simulated nodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from flwr.app import Message, MessageType, RecordDict

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import pins, setup
from fedshift_app.node.data import Place
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, as_found, plain
from fedshift_core.wire.names import (
    ARRAYS,
    AVERAGED,
    BN_IMAGES,
    BN_WAYS,
    CHOSEN,
    CONFIG,
    DOMAINS,
    DRAWN,
    ENGINE,
    FIGURES,
    GAP,
    KEPT_IN,
    KNOWLEDGE,
    LOCAL_DOMAINS,
    MEMORY_ROUND,
    NODE_INDEX,
    RESUMED_AFTER,
    RETAKEN,
    RUN,
    RUN_ID,
    SERVER_ROUND,
    START,
    START_DIGEST,
    STARTS,
    STATISTICS,
    STOPS,
    TAKE_STATISTICS,
    TOLD,
    VALIDATION,
)  # fmt: skip
from strategies.base import DomainStrategy
from strategies.contributions import declared
from strategies.federation.evaluation import sample_size
from strategies.federation.introduction import LARGEST_INDEX


@dataclass(frozen=True)
class Request:
    """A message to a node, and what it is held against.

    Attributes:
        kind: ``train``, ``evaluate`` or ``query``.
        given: Its record ``config``.
        config: The configuration of the run, which the message holds.
        where: The node.
    """

    kind: str
    given: Mapping[str, Any]
    config: RunConfig
    where: Place

    @property
    def server_round(self) -> int:
        """The round, of a message that passed the rule of it; 0 of a query."""
        return int(self.given.get(SERVER_ROUND, 0))

    @property
    def scores(self) -> bool:
        """Whether test images are to be scored."""
        return self.kind == MessageType.EVALUATE and TAKE_STATISTICS not in self.given

    @property
    def private(self) -> str:
        """Why nothing of training images may leave without noise; empty where the run has no noise."""
        name = self.config.privacy.name
        return "" if name == "none" else f"this run has privacy.name={name}"


LEAST_SAMPLE = 16  # test images of a real node that are scored by themselves, unless it has fewer
#: Takes the request and the value; returns what the configuration says instead, empty where the value is allowed.
Rule = Callable[[Request, Any], str]


def admit(kind: str, msg: Message, context: Any) -> None:
    """Let a message pass, or refuse it before any work; what the run may not change any more is kept.

    Args:
        kind: The type of the message, as its handler knows it.
        msg: The message, unpacked.
        context: The node's; its state keeps the pins of the run.

    Raises:
        FedShiftError: In one line: the key, what it holds, what the configuration says.
    """
    if CONFIG not in msg.content.config_records:
        raise FedShiftError(f"refused: the message lacks the record {CONFIG!r}")
    record = msg.content.config_records[CONFIG]
    for key in (ENGINE, RUN):
        if not isinstance(record.get(key), str):
            raise FedShiftError(f"refused: the message lacks {key}, a text")
    config, where = setup.open_message(record, context)
    request = Request(kind, record, config, where)
    if not where.shared:
        setup.check_noise(config)
    check(request, msg.content)
    pins.hold(msg, context, request.given, config, trains=kind == MessageType.TRAIN)


def check(request: Request, content: RecordDict) -> None:
    """Hold a message against the run's configuration.

    Raises:
        FedShiftError: With the first thing that is not allowed.
    """
    allowed, strategy = ALLOWED[request.kind], registry.get(request.config.method["name"]).strategy_class()
    for key, value in request.given.items():
        if key.startswith(TOLD):
            _refuse(request, key, value, _declared(strategy, "tells", key.removeprefix(TOLD)))
        elif key not in allowed:
            _refuse(request, key, value, f"a message to {request.kind} has no such key")
    for key in allowed:  # in the order of the table: later rules rest on earlier ones
        if key in request.given:
            _refuse(request, key, request.given[key], RULES[key](request, request.given[key]))
        elif key in REQUIRED[request.kind] or (key == DOMAINS and request.scores):
            raise FedShiftError(f"refused: a message to {request.kind} lacks {key}")
    _check_records(request, content, strategy)


def _refuse(request: Request, key: str, value: Any, why: str) -> None:
    if why:
        raise FedShiftError(f"refused: the server sends {plain(key, MOST_NAME)}={as_found(value)}, but {why}")


def _check_records(request: Request, content: RecordDict, strategy: type[DomainStrategy]) -> None:
    """Refuse records that the kind of message does not have, and knowledge that the method does not send."""
    known = {ARRAYS, KNOWLEDGE} if request.kind == MessageType.QUERY else {ARRAYS, KNOWLEDGE, START}
    has_statistics = request.scores and RETAKEN in request.given.get(BN_WAYS, ())
    strange = {*content} - known - {CONFIG, *((STATISTICS,) if has_statistics else ())}
    if strange:
        raise FedShiftError(f"refused: a message to {request.kind} has no record {plain(min(strange), MOST_NAME)!r}")
    if request.kind == MessageType.QUERY:
        return
    for name in (ARRAYS, KNOWLEDGE):
        if name not in content.array_records:
            raise FedShiftError(f"refused: a message to {request.kind} lacks the arrays {name!r}")
    for name in content.array_records[KNOWLEDGE]:
        if why := _declared(strategy, "sends", name):
            raise FedShiftError(f"refused: the server sends knowledge {plain(name, MOST_NAME)!r}, but {why}")


def _declared(strategy: type[DomainStrategy], does: Literal["sends", "tells"], name: str) -> str:
    patterns = declared(strategy, does)
    if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns):
        return ""
    return f"the run's method {does} {', '.join(patterns) or 'nothing'}"


# --- rules of any message ----------------------------------------------------------------------------


def _any(request: Request, value: Any) -> str:
    return "" if isinstance(value, str) else "it must be a text"


def _engine(request: Request, value: Any) -> str:
    known = (setup.SIMULATION, setup.DEPLOYMENT)
    return "" if value in known else f"there are {' and '.join(known)}"


def _round(request: Request, value: Any) -> str:
    rounds = request.config.rounds
    return "" if _is_count(value, 1, rounds) else f"this run has rounds={rounds}"


def _index(request: Request, value: Any) -> str:
    return "" if _is_count(value, 0, LARGEST_INDEX) else f"nodes are numbered from 0 to {LARGEST_INDEX}"


def _past_round(request: Request, value: Any) -> str:
    rounds = request.config.rounds
    return "" if _is_count(value, 0, rounds) else f"this run has rounds={rounds}"


def _past_rounds(request: Request, value: Any) -> str:
    rounds = request.config.rounds
    fits = isinstance(value, list) and all(_is_count(number, 0, rounds) for number in value)
    return "" if fits else f"this run has rounds={rounds}"


def _simulated(request: Request, value: Any) -> str:
    return "" if request.where.shared else "this node keeps its private parts in a folder of its own"


def _is_count(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


# --- training ----------------------------------------------------------------------------------------


def _local_domains(request: Request, value: Any) -> str:
    evaluate = request.config.evaluate
    if request.private:
        return request.private
    if not evaluate.scores_clients(request.server_round, request.config.rounds):
        return f"this run has evaluate.client_models={evaluate.client_models} ({_late(request)})"
    return _known_domains(request, value)


def _gap(request: Request, value: Any) -> str:
    rule = request.config.aggregation
    if request.private:
        return request.private
    if rule.weights != "ga":
        return f"this run has aggregation.weights={rule.weights}"
    wanted = [rule.gap, rule.gap_on]
    return "" if value == wanted else f"this run has aggregation.gap={rule.gap}, aggregation.gap_on={rule.gap_on}"


# --- scores ------------------------------------------------------------------------------------------


def _take_statistics(request: Request, value: Any) -> str:
    evaluate = request.config.evaluate
    if value is not True:
        return "it is true or absent"
    if request.private:
        return request.private
    if RETAKEN not in evaluate.bn:
        return f"this run has evaluate.bn=[{','.join(evaluate.bn)}]"
    if others := sorted(request.given.keys() & _OF_SCORES):
        return f"then nothing is scored, and {others[0]} has no place"
    if BN_IMAGES not in request.given:
        return f"without {BN_IMAGES}"
    return _scored_round(request)


def _bn_images(request: Request, value: Any) -> str:
    most = request.config.evaluate.bn_images
    if not (TAKE_STATISTICS in request.given or BN_WAYS in request.given):
        return f"without {BN_WAYS} and {TAKE_STATISTICS}"
    return "" if _is_count(value, 2, most) and value == most else f"this run has evaluate.bn_images={most}"


def _domains(request: Request, value: Any) -> str:
    if value and not request.config.evaluate.test:
        return "this run has evaluate.test=false"
    return _known_domains(request, value) or _scored_round(request) or _statistics_left_out(request)


def _known_domains(request: Request, value: Any) -> str:
    """Allow domains of the run, each once; of a real node its own alone."""
    own = request.config.dataset.domains if request.where.shared else (request.where.domain,)
    whose = "this run has" if request.where.shared else "this node holds"
    fits = isinstance(value, list) and len(set(value)) == len(value) and set(value) <= set(own)
    return "" if fits else f"{whose} {', '.join(own)}, each to be named once"


def _scored_round(request: Request) -> str:
    evaluate, rounds = request.config.evaluate, request.config.rounds
    if evaluate.scores_global(request.server_round, rounds):
        return ""
    return (
        f"round {request.server_round} is not scored: this run has evaluate.every={evaluate.every} ({_late(request)})"
    )


def _late(request: Request) -> str:
    return f"rounds={request.config.rounds}, evaluate.last={request.config.evaluate.last}"


def _drawn(request: Request, value: Any) -> str:
    """Allow a real node's share of its test images as configured; what a simulated node shares out is the server's."""
    if not _fit_domains(request, value):
        return "it is one count for each domain"
    if request.where.shared:
        return ""
    evaluate, rounds = request.config.evaluate, request.config.rounds
    share = evaluate.share(request.server_round, rounds)
    for domain, drawn in zip(request.given[DOMAINS], value, strict=True):
        images = len(node_data.test_images(node_data.uncorrupted(request.config), request.where, domain))
        wanted = sample_size(images, request.config.images.eval_batch, share)
        if wanted < min(images, LEAST_SAMPLE):
            return f"a sample of fewer than {LEAST_SAMPLE} images tells of single ones, see evaluate.fraction"
        if drawn != wanted:
            return (
                f"this run scores {wanted} of this node's {images} test images of {domain!r} in this round "
                f"(evaluate.fraction={evaluate.fraction:g})"
            )
    return ""


def _part(request: Request, value: Any) -> str:
    if not request.where.shared:
        return "parts of test sets are for simulations alone: a real node scores all that the run draws of its own"
    if not (_fit_domains(request, value) and DRAWN in request.given and {STARTS, STOPS} <= request.given.keys()):
        return f"{DRAWN}, {STARTS} and {STOPS} come together, one count for each domain"
    counts = zip(request.given[STARTS], request.given[STOPS], request.given[DRAWN], strict=False)
    return "" if all(start <= stop <= drawn for start, stop, drawn in counts) else "a part lies within what is drawn"


def _fit_domains(request: Request, value: Any) -> bool:
    fits = isinstance(value, list) and all(_is_count(number, 0, 2**62) for number in value)
    return fits and len(value) == len(request.given.get(DOMAINS, ()))


def _validation(request: Request, value: Any) -> str:
    fraction = request.config.allocation.validation_fraction
    return "" if value is True and fraction > 0 else f"this run has allocation.validation_fraction={fraction:g}"


def _figures(request: Request, value: Any) -> str:
    evaluate = request.config.evaluate
    if value is not True or not evaluate.figures or not evaluate.test:
        return f"this run has evaluate.figures={_word(evaluate.figures)}, evaluate.test={_word(evaluate.test)}"
    return ""


def _bn_statistics(request: Request, value: Any) -> str:
    wanted = request.config.evaluate.bn
    possible = (list(wanted), [name for name in wanted if name != RETAKEN])  # where no statistics travel
    if value not in possible or not value:
        return f"this run has evaluate.bn=[{','.join(wanted)}]"
    return "" if BN_IMAGES in request.given else f"without {BN_IMAGES}"


def _statistics_left_out(request: Request) -> str:
    """Refuse a score with averaged statistics alone, where the run asks for others."""
    if BN_WAYS in request.given:
        return ""
    wanted = request.config.evaluate.bn
    alone = tuple(name for name in wanted if name != RETAKEN) == (AVERAGED,)
    return "" if alone else f"without {BN_WAYS}, where this run has evaluate.bn=[{','.join(wanted)}]"


def _word(value: bool) -> str:
    return str(value).lower()


#: What any message may have; the round first, on which other rules rest.
_ALWAYS = (SERVER_ROUND, ENGINE, RUN, RUN_ID, NODE_INDEX, MEMORY_ROUND, RESUMED_AFTER, CHOSEN, KEPT_IN, START_DIGEST)
_OF_SCORES = frozenset((DOMAINS, DRAWN, STARTS, STOPS, VALIDATION, FIGURES, BN_WAYS))
#: Which keys each kind of message may have, besides the method's own numbers and words (``told/NAME``).
ALLOWED: dict[str, tuple[str, ...]] = {
    MessageType.QUERY: _ALWAYS,
    MessageType.TRAIN: (*_ALWAYS, LOCAL_DOMAINS, GAP),
    MessageType.EVALUATE: (
        *_ALWAYS, TAKE_STATISTICS, DOMAINS, DRAWN, STARTS, STOPS, VALIDATION, FIGURES, BN_WAYS, BN_IMAGES
    ),
}  # fmt: skip
REQUIRED: dict[str, tuple[str, ...]] = {
    MessageType.QUERY: (),
    MessageType.TRAIN: (SERVER_ROUND, NODE_INDEX),
    MessageType.EVALUATE: (SERVER_ROUND, NODE_INDEX),
}
#: Under which configuration a key is allowed, and with which value. ``RUN`` was read before; what ``START_DIGEST`` and
#: ``RUN_ID`` name is checked where it is used.
RULES: dict[str, Rule] = {
    SERVER_ROUND: _round, ENGINE: _engine, RUN: _any, RUN_ID: _any, NODE_INDEX: _index, MEMORY_ROUND: _past_round,
    RESUMED_AFTER: _past_rounds, CHOSEN: _past_rounds, KEPT_IN: _simulated, START_DIGEST: _any,
    LOCAL_DOMAINS: _local_domains, GAP: _gap, TAKE_STATISTICS: _take_statistics, DOMAINS: _domains, DRAWN: _drawn,
    STARTS: _part, STOPS: _part, VALIDATION: _validation, FIGURES: _figures, BN_WAYS: _bn_statistics,
    BN_IMAGES: _bn_images,
}  # fmt: skip

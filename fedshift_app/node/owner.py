"""The owner of a real node: what the policy refuses of a message, and what it lets out of a reply.

Before work :func:`admit` holds a message against the policy, as ``fedshift_app.node.requests`` holds it against the
run's configuration. While the node works, :class:`Owner` hides what the policy hides. After it :meth:`Owner.leaves`
looks at the whole reply once more, and charges the ledger. A refusal is one line in the node's own log and at the
server, which goes on with the other nodes.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import ledger, own_code, partition, policy, policy_rules, rounding, setup
from fedshift_app.node.data import Place, class_counts, own_images
from fedshift_app.node.ledger import Book, Cost, Ledger
from fedshift_app.node.place import PolicyError
from fedshift_app.node.policy import Policy
from fedshift_clients import features
from fedshift_core import disclosure
from fedshift_core.arrays import Arrays
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import plural
from fedshift_core.wire.messages import NodeIntroduction
from fedshift_core.wire.names import (
    CLASS_COUNTS,
    CLASSES,
    CONFIG,
    CONFUSION,
    COUNT,
    COUNTS,
    HELD_TEST,
    KNOWLEDGE,
    METRICS,
    NUM_EXAMPLES,
    NUM_TEST,
    RUN_ID,
    STATISTICS_IMAGES,
    STATISTICS_MODE_COUNTS,
    STATISTICS_SIZE_COUNTS,
    STATISTICS_STYLES,
    WITHHELD,
)
from fedshift_core.wire.records import config_record, decode, num_bytes
from fedshift_strategies.contributions import COUNTS as IMAGES_BY_CLASS
from fedshift_strategies.contributions import behind

log = logging.getLogger("fedshift")

SEEN = "policy"  # the record of context.state with the SHA-256 of the policy that the node went by last
_SHA256 = "sha256"
STATISTICS = "statistics"  # the feature that a key of the policy keeps back
IMAGE_STATISTICS = "image-statistics"  # what another one keeps back of it
_ROUNDING = 1 + 1e-9  # of epsilon, which the rule of a whole run (``policy_rules``) sums up in another order
_OF_IMAGES = (CLASS_COUNTS, NUM_EXAMPLES, NUM_TEST)  # numbers of the node's own images
_SAID, _WORKED = ("introduction",), ("train_reply", "evaluate_reply")  # kinds of messages of a feature


@dataclass(frozen=True)
class Owner:
    """What the owner of a node allows in a run.

    Attributes:
        policy: The policy; ``open`` of a simulated node.
        config: The configuration of the run.
        where: The node.
        run: The run's id, of the ledger.
        ledger: What the node has spent; None of a simulated node.
        question: Hash of what decides the scores that are asked of a guarded node; empty where none are.
    """

    policy: Policy
    config: RunConfig
    where: Place
    run: str = ""
    ledger: Ledger | None = None
    question: str = ""

    @property
    def least_images(self) -> int:
        """Least number of images behind a number that may leave."""
        return self.policy.least_images

    @property
    def trusted(self) -> tuple[str, ...]:
        """Fingerprints of the nodes that may be in a secure sum with this one; empty: any."""
        return self.policy.secure_sums.trusted if self.policy.secure_sums else ()

    @property
    def withheld(self) -> frozenset[str]:
        """Features whose answers the policy keeps back, which a run goes on without."""
        allowed = {STATISTICS: self.policy.statistics, IMAGE_STATISTICS: self.policy.image_statistics}
        return frozenset(name for name, leaves in allowed.items() if not leaves)

    @property
    def _few_in_sums(self) -> bool:
        """Whether classes of few images are trained on all the same, as only sums over nodes leave."""
        return self.where.guard is not None and self.where.guard.keeps_few

    # --- while the node works ------------------------------------------------------------------------

    def introduction(self, said: NodeIntroduction) -> NodeIntroduction:
        """Return what the node may say of itself: sets of few images it has none of.

        A class of few training images that it trains on all the same (``weights: masked``) counts as the least.
        """
        least, guard = self.least_images, self.where.guard
        if guard is not None and not guard.keeps_few:
            whole = own_images(self.config, replace(self.where, guard=replace(guard, keeps_few=True))).train
            if few := len(whole) - sum(said.class_counts):
                images = plural(few, "training image")
                log.warning("%s of classes with fewer than least_images=%d stay at home", images, least)

        def enough(number: int) -> int:
            return number if number >= least else 0

        more = {name: enough(n) for name, n in said.numbers.items() if self._counts_images(name, _SAID)}
        return replace(
            said,
            class_counts=self.announced(said.class_counts),
            num_test=enough(said.num_test),
            numbers={**said.numbers, **more},
            held_tests={domain: enough(n) for domain, n in said.held_tests.items()},
        )

    def announced(self, counts: Sequence[int]) -> list[int]:
        """Return the training images of each class as the server knows them."""
        return [max(number, self.least_images) if number else 0 for number in counts]

    def _counts_images(self, name: str, kinds: Sequence[str]) -> bool:
        """Tell whether features declare that a number of these kinds of messages is one of the node's own images."""
        return any(key.fits(name) for kind in kinds for key in features.of(self.config).images(kind))

    # --- before the reply leaves -----------------------------------------------------------------------

    def leaves(self, kind: str, reply: RecordDict) -> RecordDict:
        """Return what may leave of a reply. A round of training is in the ledger when this returns.

        Raises:
            PolicyError: If it may not leave.
        """
        if self.ledger is None:  # a simulated node
            return reply
        numbers = reply.metric_records.get(METRICS, MetricRecord())
        self._check_images(kind, numbers)
        if kind == MessageType.QUERY:
            self._check_statistics(reply.config_records[CONFIG])
        if COUNTS in reply and not (self.policy.figures and self._has_images(reply.array_records[COUNTS])):
            del reply[COUNTS]
            numbers[WITHHELD] = 1
        if kind == MessageType.TRAIN:
            if self._few_in_sums:
                numbers[NUM_EXAMPLES] = sum(self.announced(class_counts(self.config, self.where)))
            self._check_contribution(decode(reply.array_records[KNOWLEDGE]))
        if self.question:
            rounding.round_scores(kind, reply, self.config, self.where)
        most, size = self.policy.largest_out, num_bytes(reply)
        if most is not None and size > most:
            raise PolicyError(f"the reply is larger than largest_out={most} bytes")
        self._charge(self.ledger, kind)
        return reply

    def _check_images(self, kind: str, numbers: MetricRecord) -> None:
        """Refuse a number of images below the least, whatever the reply calls it."""
        kinds = _SAID if kind == MessageType.QUERY else _WORKED
        for name, value in numbers.items():
            if name in _OF_IMAGES or name.startswith((COUNT, HELD_TEST)) or self._counts_images(name, kinds):
                each = value if isinstance(value, list) else [value]
                if any(0 < number < self.least_images for number in each):
                    raise PolicyError(_too_few(self.least_images, f"images are behind {plain(name, MOST_NAME)}"))

    def _check_statistics(self, said: Mapping[str, Any]) -> None:
        """Refuse statistics of images that the policy keeps back, or that have too few images behind them."""
        if STATISTICS_IMAGES not in said:
            return
        if STATISTICS in self.withheld:
            raise PolicyError("statistics of images, allowed are statistics=false")
        if IMAGE_STATISTICS in self.withheld and STATISTICS_STYLES in said:
            raise PolicyError("statistics of single images, allowed are image_statistics=false")
        each = [said[STATISTICS_IMAGES], *said[STATISTICS_SIZE_COUNTS], *said[STATISTICS_MODE_COUNTS]]
        if any(number < self.least_images for number in each):
            raise PolicyError(_too_few(self.least_images, "images are behind a statistic"))

    def _has_images(self, counts: ArrayRecord) -> bool:
        """Tell whether each class of scored images has enough of them, or none."""
        for name, array in decode(counts).items():
            if not name.startswith((CONFUSION, CLASSES)):
                continue
            of_class = array[0] if name.startswith(CLASSES) else array.sum(axis=1)
            if ((of_class > 0) & (of_class < self.least_images)).any():
                return False
        return True

    def _check_contribution(self, knowledge: Arrays) -> None:
        if not knowledge:
            return
        counted = knowledge.get(IMAGES_BY_CLASS)  # of all that it has trained on
        counts = class_counts(self.config, self.where) if counted is None else counted.tolist()
        strategy, least = self.config.declared.strategy_class(), 1 if self._few_in_sums else self.least_images
        for name in knowledge:
            word = behind(strategy, name, self.config.method)
            why = policy_rules.refuse_array(self.policy, name, word)
            _refuse(why or disclosure.refuse_images(word, name, least, counts))

    # --- the ledger --------------------------------------------------------------------------------------

    def _charge(self, own: Ledger, kind: str) -> None:
        """Write down what the reply spends, on the disk before it leaves.

        Rounds with noise are written down always, for a budget that the owner may set later.
        """
        trains = kind == MessageType.TRAIN and bool(self._cost or self.policy.rounds_per_day is not None)
        if not (trains or self.question):
            return

        def spent(book: Book, now: float) -> Book | str:
            if why := self._unpaid(kind, book, now):
                return why
            book = book.charged(self.run, self._cost, now) if trains else book
            return book.asked(self.run, self.question, now) if self.question else book

        with _told_at_home("this node's ledger cannot be written"):
            _refuse(own.change(spent))

    def check_spending(self, kind: str) -> None:
        """Refuse what could not be charged. Who has nothing left to spend takes no part; a day passes.

        Raises:
            PolicyError: With the key.
        """
        limits = self.policy.budget or self.policy.rounds_per_day or self.policy.privacy or self.question
        if self.ledger is not None and limits:
            with _told_at_home("this node's ledger cannot be read"):
                _refuse(self._unpaid(kind, self.ledger.read(), self.ledger.clock()))

    @cached_property
    def _cost(self) -> Cost:
        """What a round spends; of ``dp-sgd`` by the node's own number of images."""
        privacy = self.config.privacy
        if privacy.of_images:
            return setup.spending_of(self.config, len(own_images(self.config, self.where).train))
        return privacy.mu_squared if privacy.of_updates else 0.0

    def _unpaid(self, kind: str, book: Book, now: float) -> str:
        """Return why what a message asks for may not be charged; empty where it may."""
        most, wanted = self.policy.rounds_per_day, self.policy.privacy
        budget, scores = self.policy.budget, self.policy.scores
        if kind == MessageType.TRAIN:
            if most is not None and book.rounds_of_day(now) >= most:
                return f"the node has trained in as many rounds within 24 hours as rounds_per_day={most} allows"
            of_run = Book(runs={run: spent for run, spent in book.runs.items() if run == self.run})  # repeats included
            if wanted and of_run.epsilon(self.config.privacy.delta, self._cost) > wanted.epsilon * _ROUNDING:
                return f"one more round would bring this run above the allowed privacy.epsilon={wanted.epsilon:g}"
        spends = kind in (MessageType.TRAIN, MessageType.QUERY)
        if spends and budget and book.epsilon(budget.delta, self._cost) > budget.epsilon:
            allowed = f"budget.epsilon={budget.epsilon:g} at delta {budget.delta:g}"
            return f"one more round would bring all runs above the allowed {allowed}"
        if scores is None or not self.question:
            return ""
        return book.exhausted(self.run, self.question, scores.per_run, scores.runs_per_day, now)


def admit_code(context: Context) -> None:
    """Refuse a run of other code than this node's, before anything of its message is read.

    Raises:
        PolicyError: With both hashes.
    """
    if (run := own_code.of_run()) is None:
        return
    code = policy_of(context).code
    _refuse(own_code.refuse(run, code.trusted if code else ()))


def admit(kind: str, msg: Message, context: Context) -> Owner:
    """Let a message pass that was held against the run's configuration, or refuse it before any work.

    Args:
        kind: The type of the message.
        msg: The message, unpacked.
        context: The node's; its ``node_config`` names the policy, :data:`fedshift_app.node.policy.STRICT` where not.

    Raises:
        PolicyError: In one line: what the run has, what the policy allows.
    """
    record: Any = config_record(msg.content, CONFIG)
    config, where = setup.open_message(record, context)
    if where.shared:
        return Owner(policy.BUILT_IN[policy.OPEN], config, where)
    allowed = policy_of(context)
    folder = where.source.data_dir
    assert folder is not None  # of a real node (``setup.place``)
    run = str(record.get(RUN_ID) or msg.metadata.run_id)
    own = ledger.of_images(folder)
    with _told_at_home("this node's ledger cannot be read or written"):
        where = replace(where, guard=partition.guard(allowed, own))
    owner = Owner(allowed, config, where, run, own, rounding.question(kind, msg.content, config, where))
    _refuse(next(policy_rules.refusals(allowed, config, where), ""))
    most, size = allowed.largest_in, num_bytes(msg.content)
    if most is not None and size > most:
        raise PolicyError(f"the message has {plural(size, 'byte')}, allowed are largest_in={most}")
    with _told_at_home("this node's ledger cannot be written"):
        _refuse(partition.pinned(allowed, own, config, where, record))
    owner.check_spending(kind)
    return owner


def policy_of(context: Context) -> Policy:
    """Return the owner's policy as it is now; one that has changed since the last message is named in a line."""
    given = context.node_config
    with _told_at_home("this node's policy cannot be read"):
        loaded = policy.load(str(given.get(policy.POLICY, policy.STRICT)))
    kept: Mapping[str, Any] = context.state.config_records.get(SEEN, {})
    before = str(kept.get(_SHA256, given.get(policy.POLICY_SHA256, loaded.sha256)))
    if loaded.sha256 != before:
        log.warning("this node's policy has changed, and holds from this message on: %s", loaded)
    context.state[SEEN] = ConfigRecord({_SHA256: loaded.sha256})
    return loaded.policy


@contextmanager
def _told_at_home(reason: str) -> Iterator[None]:
    """Refuse with a reason that names no file of the node; the error itself is for the node's log."""
    try:
        yield
    except PolicyError:
        raise
    except FedShiftError as error:
        log.warning("%s", error)
        raise PolicyError(reason) from None


def _refuse(why: str) -> None:
    """Refuse for a reason, if there is one."""
    if why:
        raise PolicyError(why)


def _too_few(least: int, what: str) -> str:
    """Return that there are too few of something, without their number."""
    return f"fewer than least_images={least} {what}"

"""Who takes part: each node is asked once what it is, and gets a place in a fixed order.

Node ids are random, and replies come in any order; everything that must not depend on chance goes by
the index of a node instead.
"""

import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedshift_core.errors import FederationError
from fedshift_core.limits import Refused
from fedshift_core.params import Arithmetic
from fedshift_core.plural import plural
from fedshift_core.wire.messages import RunHeader
from fedshift_strategies.federation import announced, checks, refusals
from fedshift_strategies.federation.introduction import Introduction
from fedshift_strategies.federation.nodes import UNSEATED, Agreement, agreed_of, in_order
from fedshift_strategies.federation.nodes import Listener as Listener
from fedshift_strategies.federation.nodes import Node as Node
from fedshift_strategies.federation.pending import Sent
from fedshift_strategies.federation.silence import Silence

log = logging.getLogger("fedshift")

POLL_SECONDS = 0.2
REMIND_SECONDS = 10.0
#: A round waits no longer for what a new node says of itself; later it is read in the background. Before the first
#: round, when nodes may have to read all their images first, it is ``federation.node_timeout``.
NEWCOMER_SECONDS = 15.0
#: Nor for a node that is back and was asked again, whose processes may have to start.
RETURN_SECONDS = 30.0
#: Simulated nodes that are asked at once what they are: so many questions are in memory, whatever the number of nodes.
MOST_ASKED = 1000


class Roster:
    """The nodes of a federation, by index.

    Attributes:
        listener: Is called with who is connected.
        silence: Which nodes do not answer; none of a simulation.
        max_images: How many times the median of the nodes' training images one weighs by at most.
    """

    def __init__(
        self,
        domains: tuple[str, ...],
        engine: str,
        run_json: str,
        num_classes: int,
        agreement: Agreement | None = None,
        held_out: Collection[str] = (),
    ) -> None:
        self._agreement = agreement
        self.listener = Listener()
        self._domains = domains
        self._simulated = engine == "simulation"
        self._header = RunHeader(engine, run_json)
        self._introduction = Introduction(domains, num_classes, simulated=self._simulated, held_out=held_out)
        self.silence = Silence()
        self.max_images = math.inf
        self._excluded: set[int] = set()  # indices of nodes that take no part any more
        self._large: set[int] = set()  # indices of nodes that weigh less than they announce, as a line has said
        self._copy: Any = None  # of the public set, once the first nodes have their places
        self._nodes: dict[int, Node] = {}  # by node id
        self._refused: set[int] = set()  # node ids that cannot take part, or whose place another took
        self._doubled: set[int] = set()  # node ids that wait, and were reported, because their place is taken
        self._reasons: dict[str, int] = {}  # why nodes were refused, with their number
        self._declined: dict[int, str] = {}  # by node id, why its owner lets it take no part
        self._online: set[int] = set()  # ids of nodes that were connected at the last look
        self._connected = 0  # those of them that have a place
        self._announced = 0  # how many nodes there are by the nodes' own word
        self._ordered: list[Node] | None = None  # the nodes that have a place; None after a change
        self._most_images: float | None = None  # None after a change
        self._compared = False  # it was looked which nodes announce far more images than the others

    @property
    def nodes(self) -> list[Node]:
        """All nodes that have ever had a place, in the order of their index. The same list until one changes."""
        if self._ordered is None:
            seated = (node for node in self._nodes.values() if node.index != UNSEATED)
            self._ordered = sorted(seated, key=lambda node: node.index)
        return self._ordered

    @property
    def fastest(self) -> dict[int, Arithmetic]:
        """What trains fastest on a node's machine, by node id, of nodes that reported it."""
        return {node.node_id: node.fastest for node in self._nodes.values() if node.fastest is not None}

    def _change(self) -> None:
        """Forget what was worked out of the nodes' places."""
        self._ordered = self._most_images = None
        self._compared = False

    @property
    def most_images(self) -> float:
        """The largest number of training images that a node weighs by."""
        if self._most_images is None:
            self._most_images = announced.most_images(self.nodes, self.max_images)
        return self._most_images

    def weighs(self, node: Node) -> int:
        """Return by how many training images a node weighs: at most ``max_images`` times the median of the nodes."""
        return int(min(self.most_images, node.num_examples))

    def exclude(self, node: Node) -> None:
        """Let a node take no part any more, also under a new id."""
        self._excluded.add(node.index)

    def declined(self) -> list[str]:
        """Return why owners let connected nodes take no part, one line each."""
        return [line for node_id, line in self._declined.items() if node_id in self._online]

    def expect(self, nodes: Iterable[Node]) -> None:
        """Give the places of a run that goes on to the nodes which had them before and are not here."""
        taken = {node.index for node in self.nodes}
        self._nodes |= {node.node_id: node for node in nodes if node.index not in taken}
        self._change()

    def why_absent(self, node: Node) -> str:
        """Return the reason why a node of the run is not asked."""
        if node.index in self._excluded:
            return "it was left out of the rest of the run"
        return "it does not answer" if node.node_id in self._online else "it is not connected"

    @property
    def num_domains(self) -> int:
        """How many domains those nodes hold."""
        return len({node.domain for node in self.nodes})

    def tell(self, run_json: str) -> None:
        """Send this configuration to nodes that come from now on."""
        self._header = replace(self._header, run=run_json)

    def gather(self, grid: Grid, at_least: int, timeout: float) -> None:
        """Wait until ``at_least`` nodes, or as many as the nodes say there are, can take part.

        A real node that cannot is left out with a line and does not count: it may be its owner's mistake, or his will.
        Simulated nodes have one configuration, so what is wrong with one is the user's own mistake.

        Raises:
            FederationError: If too few come in ``timeout`` seconds; in a simulation, if a node cannot take part.
        """
        started = reminded = time.monotonic()
        while True:
            problems = self._ask_strangers(grid, timeout)
            if problems and self._simulated:
                raise FederationError(refusals.first_two(list(problems)))
            refusals.warn(problems)
            agreed, disagreements = agreed_of(self._nodes.values(), self._agreement)
            twins = refusals.twins(in_order(agreed, self._domains))
            if (twins or len(agreed) < len(self._nodes)) and self._simulated:
                raise FederationError(refusals.first_two(twins or disagreements))
            wanted, here = max(at_least, self._announced), len(agreed) - len(twins)
            if here >= wanted:
                refusals.warn(self._settle_copy())
                del agreed  # which would keep what nodes were before they have their places
                self._seat(set(self._nodes), started=False)
                return
            now = time.monotonic()
            if now - started > timeout:
                reasons = dict(self._reasons)
                for problem in (*twins, *disagreements):
                    refusals.count(reasons, problem)
                raise FederationError(refusals.too_few(here, wanted, timeout, reasons))
            if now - reminded > REMIND_SECONDS:
                log.info("waiting for nodes: %d of %d are here", here, wanted, extra={"event": "waiting"})
                reminded = now
            time.sleep(POLL_SECONDS)

    def _settle_copy(self) -> dict[str, int]:
        """Take the public set of most nodes for the run's, and refuse the others. Return why, each with its number."""
        self._copy = self._agreement and self._agreement.of_most(self._nodes.values())
        problems: dict[str, int] = {}
        for node in list(self._nodes.values()):
            if wrong := self._another_copy(node):
                self._refuse(node.node_id, wrong, problems)
        return problems

    def _another_copy(self, node: Node) -> str:
        """Return that a node has another public set than the run; empty where it has the same, or the run has none."""
        known, copy = self._agreement, self._copy
        return known.another(node, copy) if known and copy is not None and known.copy_of(node) != copy else ""

    def online(self, grid: Grid, timeout: float) -> list[Node]:
        """Return the nodes that are connected now and answer, in the order of their index; newcomers are asked first.

        A newcomer that cannot take part is logged and left out: the others go on.
        """
        wait = timeout if self._simulated else min(timeout, NEWCOMER_SECONDS)
        for problem in self._ask_strangers(grid, wait):  # each once, however many nodes have it
            log.warning("a new node cannot take part: %s", problem, extra={"event": checks.event_of(problem)})
        ids = self._online = set(grid.get_node_ids())
        self._seat(ids, started=True)
        nodes = self.nodes
        present = [node for node in nodes if node.node_id in ids]
        self._connected = len(present)
        answering = self._answering(present)
        self.listener.connected(present, nodes)
        self.listener.silent({node_id: since for node_id, since in self.silence.since().items() if node_id in ids})
        return answering

    def missed(self, node: Node, kind: str) -> None:
        """Note that a node has not answered a message of this type. No phase waits for it until it answers again."""
        if self._simulated or self.silence.has(node.node_id):
            return
        self.silence.miss(node.node_id, kind)
        fields = node.fields("silent_node")
        log.warning("%s does not answer: it is asked in the background, the others go on", node, extra=fields)
        self.listener.silent(self.silence.since())

    def _answering(self, present: Sequence[Node]) -> list[Node]:
        """Return the connected nodes without those that are silent; who answers again is taken back."""
        taken = [node for node in present if node.index not in self._excluded]
        resting_too = all(self.silence.has(node.node_id) for node in taken)
        back = set(self.silence.back(also_resting=resting_too))
        for node in present:
            if node.node_id in back:
                log.info("%s answers again, and takes part again", node, extra=node.fields("node_back"))
        return [node for node in taken if not self.silence.has(node.node_id)]

    def wait_for(self, grid: Grid, at_least: int, timeout: float) -> list[Node]:
        """Return the nodes of :meth:`online`, once ``at_least`` are connected and one of them, or more, answers.

        Raises:
            FederationError: If there are not in ``timeout`` seconds.
        """
        started, reminded = time.monotonic(), -2 * REMIND_SECONDS
        while True:
            nodes, waited = self.online(grid, timeout), time.monotonic() - started
            patience = min(timeout, RETURN_SECONDS)
            is_awaited = waited < patience and self.silence.is_awaited(self._online, patience)
            if nodes and self._connected >= at_least and not is_awaited:
                return nodes
            if waited > timeout:
                if self._connected >= at_least:
                    problem = f"none of {plural(self._connected, 'connected node')} answered"
                else:
                    problem = (
                        f"{self._connected} of at least {plural(at_least, 'node')} (federation.min_nodes) "
                        "were connected"
                    )
                raise FederationError(
                    f"{problem} for {timeout:.0f} s (federation.node_timeout); the rounds before are in the run folder"
                )
            if waited - reminded > REMIND_SECONDS:
                self.listener.waiting(nodes, self.nodes)
                log.warning(
                    "waiting for nodes: %d of at least %d (federation.min_nodes) are connected; the run ends in %.0f s",
                    self._connected,
                    at_least,
                    timeout - waited,
                    extra={"event": "waiting"},
                )
                reminded = waited
            time.sleep(POLL_SECONDS)

    def _ask_strangers(self, grid: Grid, timeout: float) -> dict[str, int]:
        """Ask every node that was not asked yet what it is. Return the problems, each with its number of nodes.

        Who does not answer in time is asked again in the background. Answers to such questions are taken in first.
        """
        connected = set(grid.get_node_ids())
        problems: dict[str, int] = {}
        self._meet(self.silence.look(grid, connected, self._question), problems)
        strangers = sorted(
            node_id for node_id in connected - self._nodes.keys() - self._refused if not self.silence.has(node_id)
        )
        at_once = MOST_ASKED if self._simulated else max(len(strangers), 1)
        for start in range(0, len(strangers), at_once):
            questions = [self._question(node_id) for node_id in strangers[start : start + at_once]]
            answers, _ = Sent(questions).answers(grid.send_and_receive(questions, timeout=timeout))
            self._meet(answers, problems)
        if not self._simulated:
            for node_id in set(strangers) - self._nodes.keys() - self._refused:
                self.silence.miss(node_id, MessageType.QUERY)
        return dict(sorted(problems.items()))

    def _question(self, node_id: int) -> Message:
        return Message(self._header.to_record(), node_id, MessageType.QUERY)

    def _meet(self, replies: Iterable[Message], problems: dict[str, int]) -> None:
        """Take in what nodes say of themselves, and count what is wrong. A known node only shows that it lives."""
        for reply in replies:
            node_id = reply.metadata.src_node_id
            if node_id in self._nodes or node_id in self._refused:
                continue
            self.silence.forget(node_id)
            try:
                node, number = self._introduction.read(reply)
                if wrong := self._another_copy(node):
                    raise FederationError(wrong)
            except (FederationError, Refused) as error:
                self._refuse(node_id, str(error), problems)
                continue
            self._nodes[node_id] = node
            self._announced = max(self._announced, number)

    def _refuse(self, node_id: int, problem: str, problems: dict[str, int]) -> None:
        """Keep a node out for good, and count why."""
        if problem.startswith(checks.OWNER):
            problem = f"{problem} (SuperNode {node_id})"  # as `flwr supernode list` names it
            self._declined[node_id] = f"a node: {problem}"
        problems[problem] = problems.get(problem, 0) + 1
        refusals.count(self._reasons, problem)
        self._nodes.pop(node_id, None)
        self._change()
        self._refused.add(node_id)

    def _seat(self, online: Collection[int], *, started: bool) -> None:
        """Give each node without an index its own: the partition id where it has one, else the next free.

        The order is by domain, then node id. A node that comes back under a new id takes its old place, also while
        Flower has not yet noticed (for up to a minute) that the SuperNode of before is gone: it is the same node if
        it holds the same images by their numbers. Any other that asks for the place waits until it is free: of two that
        come at once the first in this order has it.
        """
        if any(node.index == UNSEATED for node in self._nodes.values()):
            self._seat_waiting(online, started)
            self._change()
        if not self._compared:
            self._tell_of_large()

    def _seat_waiting(self, online: Collection[int], started: bool) -> None:
        taken = {node.index: node for node in self._nodes.values() if node.index != UNSEATED}
        free = 1 + max(taken, default=-1)
        waiting = in_order((node for node in self._nodes.values() if node.index == UNSEATED), self._domains)
        waiting.reverse()
        while waiting:  # what has its place is let go at once: there may be a hundred thousand
            node = waiting.pop()
            index = node.partition_id
            if index < 0:
                index = self._former_place(node, taken, online, free) if started else free
            former = taken.get(index)
            claims = former is not None and started and self._is_former(former, node, online)
            if former is not None and former.node_id in online and not claims:
                problem = refusals.doubled(index, former, node)
                if node.node_id not in self._doubled:
                    log.warning("a node cannot take part: %s", problem, extra={"event": "refused_node"})
                    self._doubled.add(node.node_id)
                continue
            if former is not None:
                log.info("%s is here again, under a new id", former, extra=former.fields("node_back"))
                del self._nodes[former.node_id]
                self._refused.add(former.node_id)
                self.silence.forget(former.node_id)
            taken[index] = self._nodes[node.node_id] = replace(node, index=index)
            free = max(free, index + 1)

    def _former_place(self, node: Node, taken: Mapping[int, Node], online: Collection[int], free: int) -> int:
        """Return the place of a node without a number: that which it had before a restart, or the next free one.

        While Flower takes its former process for connected, it waits for that place.
        """
        alike = [index for index, former in taken.items() if former.is_same(node)]
        away = [index for index in alike if self._is_former(taken[index], node, online)]
        return min(away or alike, default=free)

    def _is_former(self, former: Node, node: Node, online: Collection[int]) -> bool:
        """Tell whether a node is another after a restart: by its number, or else if the other does not answer.

        Without a number, two nodes may well hold as many images.
        """
        away = former.node_id not in online or self.silence.has(former.node_id)
        return former.is_same(node) and (node.partition_id >= 0 or away)

    def _tell_of_large(self) -> None:
        """Say which nodes announce so many images that they weigh by fewer, or that their scores are not counted."""
        self._compared = True
        medians = announced.Medians(self.nodes, self.max_images)
        for node in self.nodes:
            if node.index not in self._large and (warning := medians.warning(node)):
                self._large.add(node.index)
                fields = node.fields("many_images")
                log.warning("%s announces %s (federation.max_images)", node, warning, extra=fields)

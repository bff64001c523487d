"""COPA strategy [Wu & Gong, 2021].

Paper: "Collaborative Optimization and Aggregation for Decentralized Domain Generalization and Adaptation", Guile Wu,
Shaogang Gong; ICCV 2021, pp. 6484-6493. Reference code: none of the authors; WenkeHuang/MarsFL at commit 581283b has
one by others (``Methods/COPADG.py``, ``Sever/COPADGSever.py``).

Symbols: h_d the head of domain d.

Deviations: (1) of several nodes of a domain the heads are averaged by number of images (the paper has one node a
domain); (2) a domain of which no node takes part in a round keeps its head; (3) extractors are averaged by the run's
rule.
"""

import numpy as np
from flwr.app import ArrayRecord

from fedshift_core.wire.names import HEADS
from fedshift_strategies.method import ANY_COUNT, Arrays, Ask, DomainStrategy, Node, Scalars, Update, decode, shares
from fedshift_strategies.methods.heads import head_of, mean_head, stacked, unstacked


class CopaStrategy(DomainStrategy):
    """FedAvg, and one head of each domain, which all nodes are sent.

    Knowledge: ``heads/NAME``, (M, ...), of M domains. State: ``domains`` (M,), which they are, by their place in
    ``federation.domains``.
    """

    sends = (HEADS + "*",)
    tells = {"head": ANY_COUNT}

    def start_run(self, weights: ArrayRecord) -> None:
        """Begin with the run's initial head for each domain that a node holds."""
        initial = head_of(decode(weights))
        held = {node.domain for node in self.roster.nodes}
        self._keep({place: initial for place, domain in enumerate(self.federation.domains) if domain in held})

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average the heads of this round within each domain."""
        heads = self._heads()
        for place, domain in enumerate(self.federation.domains):
            own = [update for update in updates if update.node.domain == domain]
            if own:
                sizes = shares([update.num_examples for update in own])
                heads[place] = mean_head([head_of(update.arrays()) for update in own], sizes)
        self._keep(heads)

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Send a node the place of its domain's head. The first node of a new domain gets nothing."""
        domains = self.noted("domains")
        place = self.federation.domains.index(node.domain)
        return {"head": domains.index(place)} if place in domains else {}

    def _heads(self) -> dict[int, Arrays]:
        """Return the heads by the place of their domain."""
        domains = self.noted("domains")
        return dict(zip(domains, unstacked(self.knowledge), strict=True))

    def _keep(self, heads: dict[int, Arrays]) -> None:
        places = sorted(heads)
        self.knowledge = stacked([heads[place] for place in places])
        self.state = {"domains": np.array(places, dtype=np.int64)}

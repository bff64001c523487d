"""StableFDG strategy [Park et al., 2023].

Paper: "StableFDG: Style and Attention Based Learning for Federated Domain Generalization", Jungwuk Park, Dong-Jun Han,
Jinho Kim, Shiqiang Wang, Christopher G. Brinton, Jaekyun Moon; NeurIPS 2023, https://arxiv.org/abs/2311.00227.
Reference code: savertm/StableFDG_github at commit 77eac35 (``dassl/engine/trainer.py``, ``run_epoch``). The text of the
paper was not at hand: the code is followed.

A style is what a node tells: mean and deviation over its images of mean mu and deviation sigma of the channels of a
map, (2, 2, S). Each node that trains is sent that of another node, as it is.

Deviations: (1) styles are of the round before, or of the node's last one (the code asks for them before each round, but
uses none in round 1 either); (2) who gets whose is a cycle in random order through all nodes whose style is known (the
code: each node of the round gets that of another of the round, no two the same).
"""

import numpy as np

from fedshift_core.methods.stablefdg import StableFDGParams
from fedshift_core.plural import plural
from fedshift_strategies.method import Arrays, Ask, Declaration, DomainStrategy, Node, Update, generator

STYLE = "style"  # of a node, (2, 2, S)
NODES, STYLES = "nodes", "styles"


class StableFDGStrategy(DomainStrategy[StableFDGParams]):
    """Averages weights as FedAvg does; passes each node another one's style.

    State: ``nodes`` (N,), those whose style is known, and ``styles`` (N, 2, 2, S).
    """

    sends = (STYLE,)
    contributes = {STYLE: (2, 2, "S")}
    behind = {STYLE: "sum over classes"}

    @classmethod
    def needs_single(cls, params: StableFDGParams) -> str:
        """Return that styles are of single nodes, where any travel."""
        return super().needs_single(params) if params.shift > 0 else ""

    def expected(self) -> Declaration:
        """Return the style, if batches are shifted."""
        return self.contributes if self.params.shift > 0 else {}

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return another node's style, where there is one; nothing for a score."""
        if not ask.trains or NODES not in self.state:
            return {}
        place = self._other(node.index, ask.server_round)
        return {} if place is None else {STYLE: self.state[STYLES][place]}

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Take the styles of this round's nodes in the place of those before; a node may tell none."""
        if self.params.shift == 0:
            return
        styles = dict(zip(self.noted(NODES), self.state.get(STYLES, ()), strict=True))
        width = next(iter(styles.values())).shape[2] if styles else None
        for update in updates:
            sent = update.knowledge[STYLE]
            if not sent.shape[2]:
                continue
            width = width or sent.shape[2]
            if sent.shape[2] != width:
                self._leave_out(
                    update.node, f"its style is of {plural(sent.shape[2], 'channel')}, that of others of {width}"
                )
                continue
            styles[update.node.index] = sent
        if styles:
            known = sorted(styles)
            self.state = {NODES: np.array(known, np.int64), STYLES: np.stack([styles[index] for index in known])}

    def _other(self, index: int, server_round: int) -> int | None:
        """Return the place of the style that a node gets; None if its own is all that there is."""
        known = self.state[NODES]
        order = generator(self.federation.seed, "stablefdg-styles", server_round).permutation(len(known))
        own = np.flatnonzero(known[order] == index)
        if not len(own):  # its own is not known yet
            return int(order[index % len(order)])
        return int(order[(own[0] + 1) % len(order)]) if len(order) > 1 else None

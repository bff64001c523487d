"""FedPall strategy [Zhang et al., 2025].

Paper: "FedPall: Prototype-based Adversarial and Collaborative Learning for Federated Learning with Feature Drift",
Yong Zhang, Feng Liang, Guanghu Yuan, Min Yang, Chengming Li, Xiping Hu, ICCV 2025; https://arxiv.org/abs/2507.04781.
Reference code: DistriAI/FedPall, commit e08e675 (``exps/federated_main.py``, ``ours``; ``exps/util.py``, ``get_mean``).

No weights travel. Nodes send class prototypes, and features of their images that are mixed with the global prototypes
and masked. On these the server trains a classifier, which takes the place of the nodes' own, and the amplifier, which
tells nodes apart and which nodes train against.

Deviations: (1) the classifier is the network's, one linear layer (the code: three, with BatchNorm); (2) features are
mixed with the prototypes of the round before, as those of a round are known after it (the code, in one process, mixes
after it has averaged); (3) a class that no node of a round holds keeps its prototype; (4) a node that comes later adds
an output to the amplifier.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.methods.fedpall import FedPallParams
from fedshift_core.wire.names import HEAD
from fedshift_strategies.method import Declaration, DomainStrategy, Floats, Shape, Update, generator
from fedshift_strategies.methods import dense
from fedshift_strategies.methods.dense import Network
from fedshift_strategies.methods.prototypes import (
    PROTOTYPES,
    FloatArray,
    as_kept,
    one_per_class,
    stack_prototypes,
    weighted_prototypes,
)

FEATURES: dict[str, Shape] = {"features": ("P", "D"), "labels": ("P",)}
AMPLIFIER = "amplifier/"  # prefix of what nodes are sent of it
MOMENTUM = "momentum/"  # prefix in the server's state, before a name of knowledge
SEATED = "nodes"  # in the server's state: the nodes' indices in the order of the amplifier's outputs
#: What the classifier's arrays are called here and in a model.
OF_HEAD = {"linear1": "weight", "bias": "bias"}
OF_AMPLIFIER = {name: name for name in ("linear1", "scale1", "shift1", "linear2", "scale2", "shift2", "linear3")}
SGD_MOMENTUM, DECAY = 0.9, 1e-5  # of both networks, as in the code


class FedPallStrategy(DomainStrategy[FedPallParams]):
    """Trains a classifier and an amplifier on the nodes' mixed features.

    Knowledge: ``prototypes`` and ``labels``, ``head/NAME`` the global classifier, ``amplifier/NAME``. State: what SGD
    keeps of both, under ``momentum/``, and ``nodes``, which node has which of the amplifier's outputs.
    """

    sends = ("prototypes", "labels", HEAD + "*", AMPLIFIER + "*")
    contributes = PROTOTYPES | FEATURES
    scores_with_knowledge = False  # a node's own model scores

    @property
    def _trains(self) -> bool:
        return self.params.lambda_adv > 0 or self.params.take > 0

    def expected(self) -> Declaration:
        """Return features if the server trains on them, and prototypes if anything needs them."""
        return (PROTOTYPES if self._trains or self.params.lambda_con > 0 else {}) | (FEATURES if self._trains else {})

    def start_run(self, weights: ArrayRecord) -> None:
        """Draw both networks."""
        fed = self.federation
        if self.params.take > 0:
            rng = generator(fed.seed, "fedpall-classifier-weights")
            drawn = dense.uniform(rng, fed.num_classes, fed.feature_dim + 1)
            drawn *= np.sqrt((fed.feature_dim + 1) / fed.feature_dim)  # the bias is within the same bound
            head = {"weight": drawn[:, 1:], "bias": drawn[:, 0]}
            self.knowledge |= {HEAD + name: array.astype(np.float32) for name, array in head.items()}
        if self.params.lambda_adv > 0:
            rng, h = generator(fed.seed, "fedpall-amplifier-weights"), self.params.hidden
            amplifier = {
                "linear1": dense.uniform(rng, h, fed.feature_dim),
                "scale1": np.ones(h),
                "shift1": np.zeros(h),
                "linear2": dense.uniform(rng, h, h),
                "scale2": np.ones(h),
                "shift2": np.zeros(h),
                "linear3": np.zeros((0, h)),
            }
            self._keep(AMPLIFIER, amplifier, {})
            self._seat([node.index for node in self.roster.nodes])

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Average the prototypes and train both networks."""
        if not self.expected():
            return
        directions = mean_directions(*stack_prototypes(updates))
        self.knowledge = self.knowledge | one_per_class(*directions, self.knowledge)
        if not self._trains:
            return
        x = np.concatenate([update.knowledge["features"] for update in updates]).astype(np.float64)
        y = np.concatenate([update.knowledge["labels"] for update in updates])
        if not len(y):
            return
        if self.params.take > 0:
            self._train("fedpall-classifier", HEAD, OF_HEAD, x, y)
        if self.params.lambda_adv > 0:
            seats = self._seat([update.node.index for update in updates])
            whose = [np.full(len(update.knowledge["labels"]), seats[update.node.index]) for update in updates]
            self._train("fedpall-amplifier", AMPLIFIER, OF_AMPLIFIER, x, np.concatenate(whose))

    def _train(self, purpose: str, prefix: str, names: Mapping[str, str], x: Floats, y: NDArray[np.int64]) -> None:
        """Train a network, of whose arrays ``names`` has the names here and in what nodes are sent."""
        p, own = self.params, MOMENTUM + prefix
        with np.errstate(all="ignore"):  # what is not finite is reported when it is kept
            trained = dense.train(
                {ours: self.knowledge[prefix + name] for ours, name in names.items()},
                {ours: self.state[own + name] for ours, name in names.items() if own + name in self.state},
                x,
                y,
                generator(self.federation.seed, purpose, self.server_round),
                epochs=p.server_epochs,
                batch=p.server_batch,
                lr=p.server_lr,
                momentum=SGD_MOMENTUM,
                decay=DECAY,
            )
        self._keep(prefix, *({name: arrays[ours] for ours, name in names.items()} for arrays in trained))

    def _keep(self, prefix: str, network: Network, momenta: Network) -> None:
        rate = self.params.server_lr
        network, momenta = (as_kept(arrays, self.server_round, rate) for arrays in (network, momenta))
        self.knowledge = self.knowledge | {prefix + name: array for name, array in network.items()}
        self.state = self.state | {MOMENTUM + prefix + name: array for name, array in momenta.items()}

    def _seat(self, nodes: Sequence[int]) -> dict[int, int]:
        """Give the amplifier an output for each of these nodes that has none. Return the place of each by its index."""
        last = AMPLIFIER + "linear3"
        rows, h = self.knowledge[last], self.params.hidden
        seated = self.noted(SEATED)
        added = sorted(set(nodes) - {*seated})
        new = [
            dense.uniform(generator(self.federation.seed, "fedpall-amplifier-node", index), 1, h).astype(np.float32)
            for index in added
        ]
        self.knowledge = self.knowledge | {last: np.concatenate([rows, *new])}
        self.state = self.state | {SEATED: np.array(seated + added, np.int64)}
        if new and MOMENTUM + last in self.state:
            kept = self.state[MOMENTUM + last]
            none = np.zeros((len(new), h), np.float32)
            self.state = self.state | {MOMENTUM + last: np.concatenate([kept, none])}
        return {index: place for place, index in enumerate(seated + added)}


def mean_directions(p: FloatArray, counts: NDArray[np.int64]) -> tuple[FloatArray, NDArray[np.bool_]]:
    r"""Average the directions of prototypes by images: :math:`G^k=\sum_nc_n^k\frac{p_n^k}{\|p_n^k\|}/\sum_nc_n^k`.

    Args:
        p: Local prototypes, (N, C, D).
        counts: Images behind each, (N, C).

    Returns:
        G, (C, D), not of norm one, and which classes a node holds (C,).
    """
    norms = np.linalg.norm(p.astype(np.float64), axis=2, keepdims=True)
    return weighted_prototypes(p / np.maximum(norms, 1e-12), counts)

r"""Fed3R strategy [Fani et al., 2024].

Paper: "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", Eros Fani, Raffaello Camoriano,
Barbara Caputo, Marco Ciccone; ICML 2024, https://arxiv.org/abs/2406.01116.

Symbols: f frozen feature of an image (F numbers), y its one-hot label, A = sum f f^T and B = sum f y^T over all images
of all nodes, around the mean feature; lambda the ridge.

    W = (A + lambda tr(A) / F I)^-1 B

Each node tells its part of A and B once. One round gives the head, which does not depend on who holds which image. With
``model.projection=N``, whose initial weights nobody trains, f is relu(R f' + b) of random R and b: Fed3R-RF with a
ReLU. AFL (He et al., CVPR 2025) comes to the same W by another way.

Deviations: (1) the bias is not penalised (the paper's regression has none); (2) lambda is relative to the mean diagonal
of A (the paper: 0.01 as it is), and may be chosen on validation images; (3) the classifier is not normalised by column,
and no fine-tuning follows.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from fedshift_core.disclosure import Word
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.limits import Refused
from fedshift_core.methods.feature_sums import GRAM, RIDGES, Fed3RParams
from fedshift_core.plural import plural
from fedshift_strategies.method import Arrays, Declaration, Floats, Node, Sum, Update, Whole
from fedshift_strategies.methods.feature_sums import FeatureSumsStrategy, Head, ridge_head


class Fed3RStrategy(FeatureSumsStrategy[Fed3RParams]):
    """Solves the ridge regression of all nodes' sums; with ``ridge=validation`` nodes score each of a grid.

    Knowledge: ``heads`` (L, C, F) and ``biases`` (L, C), one for each lambda of the grid. State: besides the sums
    ``right`` (L,), how many validation images each of them classifies rightly.
    """

    sends = ("heads", "biases")
    scores_with_knowledge = False
    summed: ClassVar[Mapping[str, Sum]] = {**FeatureSumsStrategy.summed, "right": "total"}
    contributes: ClassVar[Declaration] = {**FeatureSumsStrategy.contributes, "right": Whole(len(RIDGES))}
    behind: ClassVar[Mapping[str, Word]] = {**FeatureSumsStrategy.behind, "right": "sum over classes"}
    optional: ClassVar[Mapping[str, str]] = dict.fromkeys((*sends, "right"), "method.ridge=validation")

    @classmethod
    def check_run(cls, params: Fed3RParams, rounds: int) -> None:
        """Refuse a run without the round in which nodes score the grid."""
        if params.ridge == "validation" and rounds < 2:
            raise ConfigError(f"method.ridge=validation scores its grid in a second round, found rounds={rounds}")

    def expected(self) -> Declaration:
        """Return the sums, and the scores of the grid where there is one."""
        scores: Declaration = {"right": Whole(len(RIDGES))} if self.params.ridge == "validation" else {}
        return {**super().expected(), **scores}

    def comparable(self, knowledge: Arrays, nodes: Sequence[Node]) -> Arrays:
        """Return the sums for an image; hold scores of the grid against the validation images that were announced.

        Raises:
            Refused: If a head is right for more images, or for fewer than none.
        """
        right, most = knowledge.get("right", np.zeros(1, np.int64)), sum(node.num_validation for node in nodes)
        if not 0 <= right.min() <= right.max() <= most:
            raise Refused(
                f"right says {right.min()} to {right.max()}, announced were {plural(most, 'validation image')}"
            )
        return super().comparable(knowledge, nodes)

    def merge_knowledge(self, updates: list[Update]) -> None:
        """Add sums and scores; solve a head for each lambda of the grid.

        Raises:
            FederationError: If no validation image was classified rightly.
        """
        before = self.state.get(GRAM)
        super().merge_knowledge(updates)
        if self.params.ridge != "validation":
            return
        if self.knowledge:
            self.state["right"] = sum((u.knowledge["right"] for u in updates), np.zeros(len(RIDGES), np.int64))
            if not self.state["right"].any():
                raise FederationError(
                    "method.ridge=validation: no validation image is classified rightly, if there are any; give them "
                    "with allocation.validation_fraction, or state method.ridge=NUMBER"
                )
            if before is not None and np.array_equal(before, self.state[GRAM]):
                return  # the heads that were scored are those of these sums
        totals = self.totals()
        weights, biases = zip(*(ridge_head(*totals, ridge) for ridge in RIDGES), strict=True)
        self.knowledge = {"heads": np.array(weights, np.float32), "biases": np.array(biases, np.float32)}

    def solve(self, counts: Floats, gram: Floats, cross: Floats) -> Head:
        """Return the head of the ridge, of the best one of the grid, or of its middle before it was scored."""
        return ridge_head(counts, gram, cross, self.chosen())

    def chosen(self) -> float:
        """Return lambda; of several that are right as often, the largest."""
        if self.params.ridge != "validation":
            return self.params.ridge
        right = self.state.get("right")
        if right is None:
            return RIDGES[len(RIDGES) // 2]
        return RIDGES[int(np.flatnonzero(right == right.max())[-1])]

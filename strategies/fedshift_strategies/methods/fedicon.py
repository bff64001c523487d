"""FedICON strategy [Tan et al., 2023].

Paper: "Is Heterogeneity Notorious? Taming Heterogeneity to Handle Test-Time Shift in Federated Learning",
Yue Tan, Chen Chen, Weiming Zhuang, Xin Dong, Lingjuan Lyu, Guodong Long, NeurIPS 2023 (equation 4,
section 3.1, algorithm 1). Reference code: none published.

Global invariance sharing (Eq. 4) is FedAvg's average; the strategy adds the two phases of training: rounds that
train the encoder, then ``classifier_rounds`` that train the linear classifier on the frozen encoder.

Deviations: (1) Eq. 4 prints 1/m in front of weights that already sum to one; it is dropped (methods A1);
(2) the paper gives no number of classifier rounds (section 4 of the specification recommends 10).
"""

from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedicon import FedICONParams
from fedshift_strategies.method import Ask, DomainStrategy, Node, Scalars

PHASE = "phase"  # a scalar: ENCODER or CLASSIFIER; only in runs that have both
ENCODER, CLASSIFIER = "encoder", "classifier"


class FedICONStrategy(DomainStrategy[FedICONParams]):
    """FedAvg that tells the nodes whether a round trains the encoder or the classifier."""

    tells = {PHASE: (ENCODER, CLASSIFIER)}

    @classmethod
    def check_run(cls, params: FedICONParams, rounds: int) -> None:
        """Refuse a run that leaves no round for the encoder."""
        if params.last_rounds >= rounds:
            raise ConfigError(
                f"rounds={rounds}: method.classifier_rounds={params.classifier_rounds} leaves no round for "
                "the encoder; allowed are fewer, or more rounds"
            )

    @classmethod
    def uses_rounds(cls, params: FedICONParams) -> str:
        """Return that the two phases do, in a run that has both."""
        return "its classifier is trained in the last method.classifier_rounds" if params.last_rounds else ""

    def tell(self, node: Node, ask: Ask) -> Scalars:
        """Tell the phase of this round, if the run has two."""
        if not self.params.last_rounds:
            return {}
        return {PHASE: CLASSIFIER if self._trains_classifier(ask.server_round) else ENCODER}

    def scores_round(self, server_round: int) -> bool:
        """Tell whether there is a classifier to score with: not before the first classifier round."""
        return not self.params.last_rounds or self._trains_classifier(server_round)

    def _trains_classifier(self, server_round: int) -> bool:
        return server_round > self.federation.rounds - self.params.last_rounds

"""FedAvg-FT client: FedAvg, and one more local training round before a test image is scored.

No paper of its own; as in FedICON's comparison (Tan et al., NeurIPS 2023, A.3). Training and the global model are
FedAvg's, bit for bit: the tuned copy lives for one evaluation only.

Deviations: (1) the copy is made anew in every scored round, the paper names the last one; (2) it is what the node's
next local round would make of the global weights (its order of images, its augmentation).
"""

from typing import Any

from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from clients.base import DomainClient, Scores
from clients.models.networks import SplitModel
from clients.training.settings import ModelConfig
from datasets.base import ImageSet
from fedshift_wire.params import Params
from fedshift_wire.records import Arrays

BEFORE = "before-fine-tuning"  # the global model itself, among ``Scores.others``


class FedAvgFTParams(Params):
    """The node's side of FedAvg-FT."""

    ft_epochs: int | None = Field(None, ge=1)  # null: train.epochs; FedICON: 5, which is its train.epochs


class FedAvgFTClient(DomainClient):
    """Scores the received global model after ``ft_epochs`` more epochs on the node's own training images."""

    params_model = FedAvgFTParams
    params: FedAvgFTParams

    _tuning = False  # the training loop runs for a test, not for the server
    _trained_here = False  # the model is what local training left, not the global one
    _tuned: dict[str, Tensor] | None = None  # weights and buffers after fine-tuning, for all domains of one call

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: Params) -> bool:
        """Return that each node is scored with a model of its own, though nothing is kept."""
        return True

    def epochs(self, server_round: int) -> int:
        """Return the local epochs of a round, or those of fine-tuning."""
        own = self.params.ft_epochs if self._tuning else None
        return super().epochs(server_round) if own is None else own

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute nothing; what is scored from here on is a client model and needs no tuning."""
        self._trained_here = True
        return super().finish_round(server_round)

    def evaluate(self, parameters: list[NDArray[Any]], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:
        """Score as the base does; all domains of this call share one tuned copy."""
        self._trained_here, self._tuned = False, None
        return super().evaluate(parameters, config)

    def score_test(self, test: ImageSet) -> Scores:
        """Score the tuned copy, and the global model beside it."""
        if self._trained_here:
            return super().score_test(test)
        before, _ = self.score(test)
        with self.kept_weights():
            self._fine_tune()
            return Scores(*self.score(test), {BEFORE: before})

    def _fine_tune(self) -> None:
        """Put the tuned copy into the model; the first time in a call, train it."""
        state = self.model.state_dict()
        if self._tuned is not None:
            for name, tensor in self._tuned.items():
                state[name].copy_(tensor)
            return
        coming = self.server_round + 1
        if self._plugin is not None:
            self._plugin.start_round(self.model, self.torch_rng("modules", coming))
        self._tuning = True
        try:
            self._train(coming)
        finally:
            self._tuning = False
        self._tuned = {name: tensor.clone() for name, tensor in state.items()}

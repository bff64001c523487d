"""Cross-entropy and a penalty on long features."""

from pydantic import Field
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.training.batches import Batch
from fedshift_core.params import Params


class ShortFeaturesParams(Params):
    mu: float = Field(0.01, ge=0, description="Weight of the length; 0 leaves FedAvg's client.")


class ShortFeatures(DomainClient[ShortFeaturesParams]):
    def loss(self, batch: Batch) -> dict[str, Tensor]:
        features, logits = self.forward(batch.x)  # B x D, B x C
        terms = {"ce": self.cross_entropy(logits, batch.y)}
        if self.params.mu > 0:
            terms["length"] = self.params.mu * features.square().mean()
        return terms

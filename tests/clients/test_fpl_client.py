"""FPL on a node: its terms are of the features of the whole model."""

from functools import partial

import numpy as np
import torch
from method_cases import clusters
from support import (
    ROUND,
    C,
    D,
    batch,
    begun,
    new_client,
)
from torch import Tensor

from fedshift_clients.losses.prototypes import prototype_distance
from fedshift_clients.methods.fpl import FPLClient, unbiased_prototypes
from fedshift_clients.models.networks import SplitModel, build

client = partial(new_client, FPLClient)


# --- the loss --------------------------------------------------------------------------------------


class Doubled(SplitModel):
    """A model with something put around it, as modules do: features are twice the encoder's."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = 2 * self.encoder(x)
        return features, self.classifier(features)


def test_terms_and_prototypes_are_of_the_features_that_the_whole_model_gives() -> None:
    inner = build("cnn", C, 0)
    model = Doubled(inner.encoder, D, C)
    model.classifier = inner.classifier
    made, given = begun(client({}, clusters(), network=model)), batch()
    prototypes, labels = (torch.from_numpy(array) for array in clusters().values())
    unbiased = unbiased_prototypes(prototypes, labels, C)
    wanted = prototype_distance(2 * inner.encoder(given.x), given.y, *unbiased, reduction="mse_mean")
    torch.testing.assert_close(made.loss(given)["upcr"], wanted)
    plain = begun(client({}, clusters())).finish_round(ROUND)["prototypes"]
    np.testing.assert_allclose(made.finish_round(ROUND)["prototypes"], 2 * plain, rtol=1e-4, atol=1e-6)

"""FedICON client [Tan et al., 2023].

Paper: "Is Heterogeneity Notorious? Taming Heterogeneity to Handle Test-Time Shift in Federated Learning",
Yue Tan, Chen Chen, Weiming Zhuang, Xin Dong, Lingjuan Lyu, Guodong Long, NeurIPS 2023 (equations 1-5,
algorithm 1). Reference code: none published.

Symbols: theta encoder, z = h(x; theta) its output, tau temperature, P_i training and Q_i test distribution of node i,
A(x) all views of the batch but x, P(x) those of its class.

* LIE, local invariance extraction: encoder rounds on the contrast of two views (Eq. 2).
* GIS, global invariance sharing: the server averages the encoders (Eq. 4, ``fedshift_strategies.methods.fedicon``).
* Classifier rounds: the linear layer on the frozen encoder; then each node makes it its own.
* TTA, test-time adaptation: the encoder is tuned on the node's unlabelled test images (Eq. 5): ``adapt.name=fedicon``,
  in ``fedshift_clients.adapt.fedicon``.

Deviations: (1) A(x) is the two-view batch (methods A3); (2) losses are means over anchors (A4); (3) the personal
classifier is made anew, from the weights received, whenever a test set is scored (A7); (4) numbers of rounds, epochs
and rates that the paper does not give are parameters.
"""

import torch
from torch import nn

from fedshift_clients.adapt.fedicon import PROJECTION, two_views
from fedshift_clients.base import Phase, Scores
from fedshift_clients.losses import contrast as terms
from fedshift_clients.methods.common import names_of
from fedshift_clients.methods.heads import HeadFirst
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.model_cache import optimizer_of
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedicon import FedICONParams
from fedshift_core.wire.names import CLASSIFIER
from fedshift_datasets.base import ImageSet

PROJECTION_WIDTH = 128  # as in SupCon (Khosla et al., NeurIPS 2020)


class FedICONClient(HeadFirst[FedICONParams]):
    """Contrast in encoder rounds, cross-entropy in classifier rounds, adaptation before a test is scored."""

    @classmethod
    def trains_encoder_alone(cls, params: FedICONParams) -> bool:
        """Return whether there are encoder rounds."""
        return params.lie

    @classmethod
    def check_run(cls, params: FedICONParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse a contrast of fewer than two views."""
        if params.lie and images.views != 2:
            raise ConfigError(f"images.views={images.views}: method fedicon with lie=true contrasts 2 views")

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedICONParams) -> SplitModel:
        """Add the projection head, if there is to be one."""
        model = super().build_model(plan, params)
        if params.projection == "mlp":
            width = model.feature_dim
            head = initialised(
                plan.seed,
                "fedicon-projection",
                lambda: nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTION_WIDTH)),
            )
            model.add_module(PROJECTION, head)
        return model

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedICONParams) -> frozenset[str]:
        """Return everything if ``gis`` is off, and the classifier if only nodes train it."""
        if not params.gis:
            return frozenset(model.state_dict())
        local = params.lie and params.classifier_training == "local"
        return super().private(model, config, params) | names_of(model, CLASSIFIER if local else ())

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: FedICONParams) -> bool:
        """Tell whether nodes classify with a classifier of their own."""
        return params.personalises or super().personal(model, config, params)

    @classmethod
    def scores_as_sent(cls, params: FedICONParams) -> bool:
        """Not where each node trains its own classifier ahead of a score (A7)."""
        return not params.personalises

    # --- training ----------------------------------------------------------------------------------

    @property
    def _trains_classifier(self) -> bool:
        """Whether the server says that this is a classifier round; it says nothing where there is none."""
        return self.scalars.get("phase") == "classifier"

    def phases(self, server_round: int) -> list[Phase]:
        """Return the one part of this round: encoder (two views), classifier (no augmentation), or both at once."""
        if self._trains_classifier:
            return [Phase(self.params.classifier_epochs, trains=(CLASSIFIER,), views=0)]
        if not self.params.lie:
            return [Phase(self.setup.train.epochs, views=1)]
        return [Phase(self.setup.train.epochs, freezes=(CLASSIFIER,), views=2)]

    def loss(self, batch: Batch) -> Terms:
        """Return Eq. 2 (or Eq. 5) in encoder rounds, cross-entropy in classifier rounds and without LIE."""
        if self._trains_classifier or not self.params.lie:
            return super().loss(batch)
        first, second = two_views(self, batch)
        if self.params.supervised:
            return {"supcon": terms.supervised_contrast(first, second, batch.y, self.params.tau)}
        return {"instance": terms.instance_contrast(first, second, self.params.tau)}

    # --- test phase --------------------------------------------------------------------------------

    def score_test(self, test: ImageSet) -> Scores:
        """Make the classifier personal, score as the base does (TTA included), and undo both (A7, A8)."""
        with self.kept_weights():
            if self.params.personalises:
                self._personalise()
            return super().score_test(test)

    def _personalise(self) -> None:
        """Train the classifier on the node's own images, not augmented, encoder frozen (section 3.1)."""
        cfg = self.setup.train
        features, y = self.encoded(self.train_set, self.encode)  # they stay what they are, so once is enough
        classifier = self.model.classifier.requires_grad_(True)
        optimizer = optimizer_of(cfg, classifier.parameters())
        order = self.torch_rng("fedicon-personal", self.server_round)
        for _ in range(self.params.personal_epochs):
            for index in torch.split(self.training_order(self.train_set, order).to(y.device), cfg.batch_size):
                loss = self.cross_entropy(classifier(features[index]), y[index])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

"""Ditto client [Li et al., 2021].

Paper: "Ditto: Fair and Robust Federated Learning Through Personalization", Tian Li, Shengyuan Hu, Ahmad Beirami,
Virginia Smith, ICML 2021; https://arxiv.org/abs/2012.04221 (equations 1 and 2, algorithms 1 and 2).
Reference code: litian96/ditto, commit 26d9b29 (``flearn/trainers_MTL/ditto.py``).

Symbols: w^t global weights of round t, w_n the node's after local training from w^t, v_n the node's personal model,
which stays, F_n the node's loss, lambda the weight of the proximal term, eta the learning rate.

    w_n <- w_n - eta grad F_n(w_n);   v_n <- v_n - eta (grad F_n(v_n) + lambda (v_n - w^t))

v_n begins with the initial weights of the run.

Deviations: (1) the node takes all steps of w_n, then those of v_n on batches of their own; the code takes both on the
same batch; (2) optimiser, momentum and weight decay are the experiment's, for w_n and v_n the same; (3) statistics of
BatchNorm and private parts (``model.bn = local``) of v_n are held to nothing; (4) a node without v_n is scored with
w^t, the code scores its initial weights; (5) lambda is one for all nodes; the code can choose among 0.1, 1 and 2 in
each step, by a tenth of the node's training images.
"""

from collections.abc import Sequence

from torch import Tensor

from fedshift_clients.base import Phase, Scores
from fedshift_clients.methods.common import keep, kept, put
from fedshift_clients.methods.fedprox import HeldToReceived
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.settings import ModelConfig
from fedshift_core.arrays import Arrays
from fedshift_core.methods.ditto import DittoParams
from fedshift_datasets.base import ImageSet

PERSONAL = "personal/"  # prefix in a node's memory of v_n, before a state-dict name


class DittoClient(HeldToReceived[DittoParams]):
    """Trains as FedAvg's client, then its personal model, with which it is scored."""

    remembers_shared = True

    @classmethod
    def personal(cls, model: SplitModel, config: ModelConfig, params: DittoParams) -> bool:
        """Return True: each node is scored with a model of its own."""
        return True

    def start_round(self, server_round: int) -> None:
        """Pair each weight with w^t; the model is not v_n yet."""
        super().start_round(server_round)
        self._aside: dict[str, Tensor] = {}  # w_n, while v_n is in the model

    def phases(self, server_round: int) -> Sequence[Phase]:
        """Return FedAvg's phase and that of v_n."""
        first, p = super().phases(server_round), self.params
        epochs = self.setup.train.epochs if p.personal_epochs is None else p.personal_epochs
        return [*first, Phase(epochs, lr=p.personal_lr, loss=self._personal_loss, fresh=True)]

    def start_epoch(self, epoch: int) -> None:
        """Put w_n aside and v_n into the model, before the first epoch of v_n."""
        if self.phase.loss is None or self._aside:
            return
        self._aside = {name: tensor.clone() for name, tensor in self._changing.items()}
        initial = {name: self._bench.initial[name] for name in self._aside}
        put(self.model, initial | kept(self, PERSONAL, initial))

    def finish_round(self, server_round: int) -> Arrays:
        """Keep v_n and put w_n back into the model; contribute nothing."""
        keep(self, PERSONAL, self._changing)
        put(self.model, self._aside)
        return {}

    def score_test(self, test: ImageSet) -> Scores:
        """Score with v_n; before the node's first training with the weights that came."""
        with self.kept_weights():
            put(self.model, kept(self, PERSONAL, self._changing))
            return super().score_test(test)

    def _personal_loss(self, batch: Batch) -> Terms:
        """Return F_n(v_n) and lambda/2 ||v_n - w^t||^2, over the parameters that travel."""
        terms = {"personal": self.cross_entropy(self.forward(batch.x)[1], batch.y)}
        if self.params.lambda_prox > 0:
            terms["prox"] = self.distance(self.params.lambda_prox)
        return terms

    @property
    def _changing(self) -> dict[str, Tensor]:
        """The model's weights and buffers that are not frozen, by state-dict name."""
        return {name: tensor for name, tensor in self.state.items() if name not in self.model.frozen}

"""FedTHE client [Jiang & Lin, 2023].

Paper: "Test-Time Robust Personalization for Federated Learning", Liangze Jiang, Tao Lin; ICLR 2023,
https://arxiv.org/abs/2205.10920. Reference code: LINs-lab/FedTHE at commit 9eeff19
(``pcode/local_training/THE_worker.py``).

Symbols: z features, l^g and l^p logits of the global and of the personal head, z^g the mean feature of all nodes'
training images, z^p that of the node's own, e the weights of the heads for one test image.

A local round trains the personal head on the received body, which stands still, with cross-entropy; then body and
global head with balanced softmax. A test image is classified by e^g l^g + e^p l^p, where e takes some steps down an
objective that sees no label and makes use of a moving average of the features of the images before it: the order of
the test set and the batches in which it is scored are part of the result.

Before a test the personal head trains its epochs on the body at hand, and z^p is taken of it, both as in the node's
next local round (the code tests a round's received body right after that phase); afterwards all is put back.

Deviations: (1) the body is in evaluation mode while the personal head trains (the code's networks for it have neither
BatchNorm nor dropout); (2) z^p is taken of images that are not augmented; (3) FedTHE+, which tunes the body for each
test image, is left out.

B batch, C classes, D feature width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedshift_clients.base import Phase, Scores
from fedshift_clients.methods.common import names_of, put
from fedshift_clients.methods.heads import HeadFirst
from fedshift_clients.models.networks import Blueprint, SplitModel, initialised
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.eval_slices import warn_if_by_class
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.methods.fedthe import FedTHEParams
from fedshift_datasets.base import ImageSet

STILL = 1e-5  # a batch whose weights have a gradient of a smaller norm is done
EPS = 1e-6  # least product of norms in the cosine

Pair = tuple[Tensor, Tensor]  # of the global and of the personal head


def balanced_cross_entropy(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    r"""Return cross-entropy under the node's own class prior: of :math:`l_k+\log(n_k+1)`.

    Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020; 1 is added for classes that
    the node does not hold.

    Args:
        logits: l, (B, C).
        y: Labels (B,).
        counts: n, the node's images of each class, (C,).

    Returns:
        A scalar, the mean over the batch.
    """
    return F.cross_entropy(logits.float() + (counts.float() + 1).log(), y)


def history(features: Tensor, last: Tensor | None, alpha: float) -> Tensor:
    r"""Return the moving average of features in the order of the images, one for each of a batch.

    .. math:: \bar z_i=\alpha z_i+(1-\alpha)\bar z_{i-1}

    The first image of a test set begins it: :math:`\bar z_1=z_1`. The first image of a later batch gets the average as
    the batch before left it, and does not move it, as in the authors' code.

    Args:
        features: z, (B, D).
        last: The average after the batch before, (D,); None in the first batch.
        alpha: How much an image moves it.

    Returns:
        (B, D).
    """
    averages = [features[0] if last is None else last]
    for feature in features[1:]:
        averages.append(alpha * feature + (1 - alpha) * averages[-1])
    return torch.stack(averages)


def objective(weights: Tensor, logits: Pair, distances: Pair) -> Tensor:
    r"""Return what the weights of the two heads are to make small, as a mean over the batch.

    .. math:: \rho\,H\big(e^gl^g+e^pl^p\big)+(1-\rho)\big(e^g\|\tilde z-\bar z^g\|+e^p\|\tilde z-\bar z^p\|\big)

    with H the entropy of the prediction and :math:`\rho` the cosine of the two heads' softmaxes: where they agree the
    prediction is to be sure, where they do not the head counts whose training features are nearer.

    Args:
        weights: e, (B, 2): of the global and of the personal head, each row 1 in sum.
        logits: l^g and l^p, of the two heads, (B, C) each.
        distances: Of an image to the federation's mean feature and to the node's own, (B,) each.

    Returns:
        A scalar.
    """
    both = mixed(weights, *logits)
    entropy = -(both.softmax(dim=1) * both.log_softmax(dim=1)).sum(dim=1)
    rho = F.cosine_similarity(logits[0].softmax(dim=1), logits[1].softmax(dim=1), dim=1, eps=EPS)
    far = weights[:, 0] * distances[0] + weights[:, 1] * distances[1]
    return (rho * entropy + (1 - rho) * far).mean()


def mixed(weights: Tensor, by_global: Tensor, by_personal: Tensor) -> Tensor:
    """Return the logits (B, C) of both heads, weighted by (B, 2)."""
    return weights[:, :1] * by_global + weights[:, 1:] * by_personal


def interpolation(logits: Pair, distances: Pair, *, steps: int, lr: float) -> Tensor:
    """Return the weights of the two heads for each image. They begin equal; Adam's steps go down the objective.

    The steps end for the whole batch where its gradient is nearly nothing, so that the batch is part of the result.

    Args:
        logits: As in :func:`objective`, without gradient.
        distances: Likewise.
        steps: How many, at most.
        lr: Adam's learning rate.

    Returns:
        (B, 2), each row from 0 up and 1 in sum.
    """
    given = torch.ones(len(logits[0]), 2, device=logits[0].device, requires_grad=True)
    optimizer = torch.optim.Adam([given], lr=lr)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = objective(given.softmax(dim=1), logits, distances)
        loss.backward()  # type: ignore[no-untyped-call]
        assert given.grad is not None
        if given.grad.norm() < STILL:
            break
        optimizer.step()
    return given.detach().softmax(dim=1)


PERSONAL = "personal_head"  # the model's part
FEATURE = "feature"  # z^p, and z^g on its way back


class FedTHEClient(HeadFirst[FedTHEParams]):
    """Trains two heads on one body; weighs them anew for each test image."""

    scores_images_alone = False

    _history: Tensor | None = None  # of the pass over test images that goes on
    _own: Tensor | None = None  # z^p of the body that is scored
    _ahead: dict[str, Tensor] | None = None  # the personal head on that body
    _kept_head: dict[str, Tensor] | None = None  # as it was before that

    @classmethod
    def build_model(cls, plan: Blueprint, params: FedTHEParams) -> SplitModel:
        """Add the personal head, which has no bias in the code."""
        model = super().build_model(plan, params)
        if params.personal_head:
            width, number = model.feature_dim, model.num_classes
            head = initialised(plan.seed, "fedthe-head", lambda: nn.Linear(width, number, bias=False))
            model.add_module(PERSONAL, head)
        return model

    @classmethod
    def check_run(cls, params: FedTHEParams, model: ModelConfig, train: TrainConfig, images: ImageConfig) -> None:
        """Refuse another way to balance classes next to the method's own.

        Raises:
            ConfigError: With the key.
        """
        if params.balanced and (train.class_weights != "none" or train.loss == "focal" or train.sampler != "shuffle"):
            raise ConfigError(
                "fedthe balances classes by the prior in its logits (method.balanced=true); train.class_weights, "
                "train.loss and train.sampler go with method.balanced=false"
            )

    @classmethod
    def private(cls, model: SplitModel, config: ModelConfig, params: FedTHEParams) -> frozenset[str]:
        """Keep the personal head on the node."""
        return super().private(model, config, params) | names_of(model, PERSONAL)

    @classmethod
    def scores_as_sent(cls, params: FedTHEParams) -> bool:
        """Not where the heads are weighed anew for each image."""
        return not params.personal_head

    # --- training ----------------------------------------------------------------------------------

    def start_round(self, server_round: int) -> None:
        """Count the node's images of each class; take the mean feature of the received body."""
        y = torch.from_numpy(self.train_set.y)
        self._class_counts = torch.bincount(y, minlength=self.model.num_classes).to(self.setup.device)
        if self.params.personal_head and server_round == self.server_round:  # not of a round ahead
            self._contributed = self._mean_feature()

    def phases(self, server_round: int) -> list[Phase]:
        """Return the personal head's phase on the received body, then that of body and global head."""
        rest = list(super().phases(server_round))
        if not self.params.personal_head:
            return rest
        own = (PERSONAL,)
        return [
            Phase(self.params.personal_epochs, trains=own, loss=self._personal_loss),
            *(Phase(phase.epochs, freezes=own) for phase in rest),
        ]

    def loss(self, batch: Batch) -> Terms:
        """Return the global head's cross-entropy, under the node's class prior."""
        if not self.params.balanced:
            return super().loss(batch)
        return {"ce": balanced_cross_entropy(self.forward(batch.x)[1], batch.y, self._class_counts)}

    def _personal_loss(self, batch: Batch) -> Terms:
        features, _ = self.forward(batch.x)
        return {"personal": self.cross_entropy(self._personal(features.detach()), batch.y)}

    def finish_round(self, server_round: int) -> Arrays:
        """Contribute the mean feature of the node's images, of the received body."""
        self._ahead = self._own = None  # the model is what training left
        return {FEATURE: self._contributed.cpu().numpy()} if self.params.personal_head else {}

    def _personal(self, features: Tensor) -> Tensor:
        logits: Tensor = self.model.get_submodule(PERSONAL)(features)
        return logits

    def _mean_feature(self) -> Tensor:
        means, counts = self.class_prototypes()  # C x D, C
        return (means * counts[:, None]).sum(dim=0) / counts.sum()

    # --- test --------------------------------------------------------------------------------------

    def received(self) -> None:
        """Forget the personal head and the mean feature that were made of another body."""
        self._ahead = self._own = None

    def other_statistics(self) -> None:
        """Forget them likewise."""
        self.received()

    def start_pass(self) -> None:
        """Begin with an empty history. What an adaptation has made of the body has a mean feature of its own."""
        self._history = None
        if self._adaptation is not None and self.params.personal_head:
            self._own = self._mean_feature()

    def train_ahead(self, epochs: int | None = None, most: int | None = None) -> None:
        """Train from the personal head as it is, as the node's next round will. The head trained ahead is not used."""
        put(self.model, self._kept_head or {})
        super().train_ahead(epochs, most)

    @property
    def mixes_tests(self) -> bool:
        """Whether test images come in an order that mixes their classes, as the history goes by their order."""
        return self.params.personal_head and self.params.tta_order == "shuffled"

    def score_test(self, test: ImageSet) -> Scores:
        """Score with the personal head trained as in the node's next round, once for all test sets; put it back."""
        if not self.params.personal_head:
            return super().score_test(test)
        if not self.mixes_tests:
            warn_if_by_class(test.y)
        with self.kept_weights():
            self._kept_head = self._head()
            if self._ahead is None:
                with self.round_ahead() as (coming, phases):
                    self._train(coming, phases[:1])
                self._ahead, self._own = self._head(), self._mean_feature()
            put(self.model, self._ahead)
            return super().score_test(test)

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits of both heads, weighted for each image; the history goes on."""
        features, by_global = self.forward(x)  # B x D, B x C
        if not self.params.personal_head:
            return by_global
        by_personal = self._personal(features)
        with torch.inference_mode(False), torch.enable_grad():
            # Copies: what inference mode made has no gradients, nor may anything be made of it that has.
            z, *logits = (part.detach().clone() for part in (features, by_global, by_personal))
            weights = self._weights(z, (logits[0], logits[1]))
        return mixed(weights, by_global, by_personal)

    def _weights(self, z: Tensor, logits: Pair) -> Tensor:
        """Return e (B, 2) of a batch, and move the history on."""
        p, cfg = self.params, self.setup.train
        averages = history(z, self._history, p.alpha)
        self._history = averages[-1]
        compared = p.beta * z + (1 - p.beta) * averages
        if self._own is None:
            self._own = self._mean_feature()
        sent = self.tensor(FEATURE)
        everybody = self._own if sent is None else sent  # before the first round is over nobody knows more
        distances = (compared - everybody).norm(dim=1), (compared - self._own).norm(dim=1)
        rate = p.lr_times * cfg.lr * cfg.lr_factor(self.server_round + 1, self.setup.rounds)
        return interpolation(logits, distances, steps=p.steps, lr=rate)

    def _head(self) -> dict[str, Tensor]:
        """Return a copy of the personal head as it is, by state-dict name; without one nothing."""
        return {name: self.state[name].clone() for name in names_of(self.model, PERSONAL)}

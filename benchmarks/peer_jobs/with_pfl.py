"""The job with pfl-research, in as many processes as ``torch.distributed.run`` starts."""

import os

import torch
from common import MOMENTUM, WEIGHT_DECAY, RoundClock, arguments, encoded, network, pool, score
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """The network with the loss that pfl asks it for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = network(name)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch."""
        self.train()
        return functional.cross_entropy(self.network(encoded(x)), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """Return nothing: no model is scored."""
        return {}


class Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Tells the time at the start and after each round."""

    def __init__(self, clock: RoundClock) -> None:
        self._clock = clock if int(os.environ.get("RANK", "0")) == 0 else None

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Tell the start of round 1."""
        if self._clock:
            self._clock.now()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Tell the end of a round."""
        if self._clock:
            self._clock.now()
        return False, Metrics()


def main() -> None:
    """Run the job."""
    job, rounds, clock = arguments()
    pool()
    model = Classifier(job.network)

    def images_of(user: int) -> Dataset:
        return Dataset(raw_data=list(pool().of(user)))

    def optimizer(parameters: object, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)  # type: ignore[arg-type]

    users = FederatedDataset(images_of, get_user_sampler("minimize_reuse", list(range(job.clients))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=job.cohort, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=users, val_data=None),
        model=PyTorchModel(model, optimizer, torch.optim.SGD(model.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch, local_num_epochs=job.epochs, local_learning_rate=job.lr
        ),
        callbacks=[Clock(clock)],
    )
    if int(os.environ.get("RANK", "0")) == 0:
        score(model.network)


if __name__ == "__main__":
    main()

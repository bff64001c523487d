r"""A moving average of the merged weights (``server.ema``).

With w_t the weights after round t (the average, after ``server.optimizer``) and d the decay:

    average_1 = w_1,    average_t = d average_{t-1} + (1 - d) w_t

The average is scored, and kept as the model of the round; training goes on from w_t, which the average never changes.
Averaging of iterates: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control and
Optimization 30(4), 1992; with a constant decay as Tarvainen & Valpola, "Mean teachers are better role models", NeurIPS
2017, https://arxiv.org/abs/1703.01780; of a federation's global weights, with equal weights of late rounds in place of
a decay: Caldarola, Caputo & Ciccone, "Improving Generalization in Federated Learning by Seeking Flat Minima", ECCV
2022, https://arxiv.org/abs/2203.11834.

The first average is w_1, as in PyTorch's ``AveragedModel``, so that it has no part of the initial weights. Running
statistics of BatchNorm are averaged like weights; arrays of integers are those of w_t.
"""

import numpy as np
from flwr.app import ArrayRecord

from fedshift_app.features.server_ema import Options
from fedshift_core.wire.records import encode
from fedshift_strategies.features.base import Merge, RoundResult, Scoring, ServerFeature, Steps, Training, Update
from fedshift_strategies.federation.updates import decode

PREFIX = "ema/"


class MovingAverage(ServerFeature):
    """Keeps the average, and has it scored and saved."""

    prefixes = (PREFIX,)

    def on_round(self, training: Training) -> Steps:
        """Hand on the average as what is kept of the round."""
        yield None
        self._keep(training.result)

    def merge(self, updates: list[Update], weights: list[float], training: Training, next: Merge) -> ArrayRecord:
        """Move the average on, and return the weights as they are."""
        merged, decay, average = next(updates, weights), Options.read(self.run.config).ema, self.state
        floats = {PREFIX + name: array for name, array in decode(merged).items() if array.dtype.kind == "f"}
        self.state = {
            name: np.asarray(decay * average[name] + (1 - decay) * array, array.dtype) if name in average else array
            for name, array in floats.items()
        }
        return merged

    def on_scores(self, scoring: Scoring) -> Steps:
        """Have the average scored; before the first round, and of arrays of integers, the weights."""
        if self.state:
            arrays = decode(scoring.weights)
            scoring.weights = encode({name: self.state.get(PREFIX + name, array) for name, array in arrays.items()})
        yield None
        self._keep(scoring.result)

    def _keep(self, result: RoundResult) -> None:
        result.kept |= {name.removeprefix(PREFIX): array for name, array in self.state.items()}

"""Scores of a node's model on test images, adapted to them if the run says so."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from fedshift_clients.adapt.base import Adaptation
from fedshift_clients.training.eval_slices import Scores, warn_if_by_class
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.params import P
from fedshift_datasets.base import ImageSet


class LocalScorer(LocalTrainer[P]):
    """Scores the model of one node; :class:`fedshift_clients.base.DomainClient` adds messages.

    Attributes:
        test_set: Gives the test images of a domain that the node sees.
        own_sets: Labelled images of the node that it does not train on, by split; those that there are.
    """

    test_set: Callable[[str], ImageSet]
    own_sets: Mapping[str, ImageSet]
    _adaptation: Adaptation | None

    def other_statistics(self) -> None:
        """Forget what was worked out of the received weights: they are scored with other statistics of BatchNorm."""

    @property
    def mixes_tests(self) -> bool:
        """Whether test images come in an order that mixes their classes, as a score depends on those before; no."""
        return False

    def score_test(self, test: ImageSet) -> Scores:
        """Score a test set, adapted to it if the run says so. The model must be afterwards what it was before."""
        adaptation = self._adaptation
        self.start_pass()
        if adaptation is None or (self.trained_here and not adaptation.after_training):
            return self.scored(test)
        if adaptation.goes_by_order:
            warn_if_by_class(test.y)
        before, _ = self.score(test)
        total, times = Scores(0, 0.0), np.zeros(len(test), np.int64)
        dropout = self.own_draws("dropout-adapt", self.server_round)
        with self.kept_weights(), dropout, self._run_by(adaptation):
            for places in adaptation.adapt(self, test.x):
                if not times.any():
                    self.start_pass()  # with the model as it is adapted
                complete = len(places) == len(test) and bool((places[:-1] < places[1:]).all())
                part = test if complete else test.select(places)
                total += self.scored(part)
                np.add.at(times, places, 1)
        if not (times == 1).all():
            raise RuntimeError(f"{type(adaptation).__name__} must have each test image scored once")
        return replace(total, others={adaptation.before: before})

    @contextmanager
    def _run_by(self, adaptation: Adaptation) -> Iterator[None]:
        """Let an adaptation classify, and withhold the labels of what is scored, while its code runs."""
        held = self.test_set, self.own_sets
        self.test_set, self.own_sets = _no_labels, {}
        self._predictor = lambda x: adaptation.predict(self, x)
        try:
            yield
        finally:
            self.test_set, self.own_sets = held
            self._predictor = None

    def other_weights(self) -> None:
        """Tell the adaptation, if there is one, that the model is another one."""
        if self._adaptation is not None:
            with self._run_by(self._adaptation):
                self._adaptation.received(self)


def _no_labels(domain: str) -> ImageSet:
    """Stand in for the test sets of a client while code of an adaptation runs."""
    raise RuntimeError(f"an adaptation asks for the labelled test set of {domain!r}; it is given test images alone")

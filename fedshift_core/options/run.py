"""What strategies and features read of a run's configuration, as types: the ground floor knows no section of it."""

from collections.abc import Mapping
from typing import Any, Protocol

from fedshift_core.options.averaging import AggregationConfig, ServerConfig
from fedshift_core.options.privacy import PrivacyConfig
from fedshift_core.options.scoring import EvaluateConfig
from fedshift_core.options.statistics import StatisticsConfig


class _Allocation(Protocol):
    @property
    def validation_fraction(self) -> float: ...
    @property
    def held_out(self) -> tuple[str, ...]: ...


class _Classes(Protocol):
    @property
    def classes(self) -> tuple[str, ...]: ...


class _Dataset(Protocol):
    @property
    def domains(self) -> tuple[str, ...]: ...
    def known(self) -> _Classes: ...


class _Federation(Protocol):
    @property
    def participation(self) -> float: ...
    @property
    def max_value(self) -> float: ...
    @property
    def max_update(self) -> float: ...
    @property
    def max_images(self) -> float: ...
    @property
    def secure_sums(self) -> bool: ...
    @property
    def secure_sums_nodes(self) -> int: ...
    @property
    def secure_sums_least(self) -> float: ...
    @property
    def secure_sums_range(self) -> float: ...


class _Images(Protocol):
    @property
    def eval_batch(self) -> int: ...
    @property
    def normalization(self) -> str: ...


class _Shift(Protocol):
    @property
    def label_mix(self) -> str: ...


class _Train(Protocol):
    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def optimizer(self) -> str: ...
    def lr_factor(self, server_round: int, rounds: int) -> float: ...
    @property
    def asks_federation(self) -> bool: ...


class RunSettings(Protocol):
    """The parts of ``RunConfig`` that a round goes by. Each key is described in docs/reference."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def rounds(self) -> int:
        """Rounds of the run."""

    @property
    def keep(self) -> str:
        """Which round's model the run keeps: ``last`` or ``best-validation``."""

    @property
    def profile(self) -> bool:
        """Whether time is measured."""

    @property
    def method(self) -> Mapping[str, Any]:
        """Name and parameters of the method."""

    @property
    def features(self) -> tuple[Mapping[str, Any], ...]:
        """Features of other packages, each with its parameters."""

    @property
    def aggregation(self) -> AggregationConfig:
        """How updates become the next weights."""

    @property
    def server(self) -> ServerConfig:
        """Server optimizer."""

    @property
    def privacy(self) -> PrivacyConfig:
        """Noise on what leaves a node."""

    @property
    def evaluate(self) -> EvaluateConfig:
        """Which models are scored in which rounds."""

    @property
    def allocation(self) -> _Allocation:
        """How images are divided."""

    @property
    def dataset(self) -> _Dataset:
        """Which images."""

    @property
    def federation(self) -> _Federation:
        """Who takes part."""

    @property
    def statistics(self) -> StatisticsConfig:
        """What nodes tell once of their images."""

    @property
    def train(self) -> _Train:
        """Local training."""

    @property
    def images(self) -> _Images:
        """From images to batches."""

    @property
    def shift(self) -> _Shift:
        """How test images differ."""

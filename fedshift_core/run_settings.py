"""A run's configuration as a round reads it, in types: the ground floor knows no section of it.

The keys of a feature have no type here; its room reads them (``fedshift_core.features.FeatureOptions.read``).
"""

from collections.abc import Mapping
from typing import Any, Protocol


class WithRooms(Protocol):
    """A section that has keys of features too."""

    def __getattr__(self, key: str) -> Any: ...


class _Allocation(Protocol):
    @property
    def validation_fraction(self) -> float: ...
    @property
    def held_out(self) -> tuple[str, ...]: ...


class _Dataset(WithRooms, Protocol):
    @property
    def domains(self) -> tuple[str, ...]: ...


class _Evaluate(WithRooms, Protocol):
    @property
    def test(self) -> bool: ...
    def scores_global(self, server_round: int, rounds: int) -> bool: ...
    def share(self, server_round: int, rounds: int) -> float: ...


class _Federation(WithRooms, Protocol):
    @property
    def participation(self) -> float: ...
    @property
    def max_value(self) -> float: ...
    @property
    def max_update(self) -> float: ...
    @property
    def max_images(self) -> float: ...


class RunSettings(WithRooms, Protocol):
    """The parts of ``RunConfig`` that a round goes by. Each key is described in docs/reference."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def rounds(self) -> int:
        """Rounds of the run."""

    @property
    def method(self) -> Mapping[str, Any]:
        """Name and parameters of the method."""

    @property
    def features(self) -> tuple[Mapping[str, Any], ...]:
        """Features of other packages, each with its parameters."""

    @property
    def aggregation(self) -> WithRooms:
        """How updates become the next weights."""

    @property
    def evaluate(self) -> _Evaluate:
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

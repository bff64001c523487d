"""A run's configuration as a round reads it: the ground floor knows no section of it, but its basic numbers."""

from typing import Any, Protocol


class WithRooms(Protocol):
    """A section, whose keys its model in ``fedshift_app`` declares and docs/reference describes."""

    def __getattr__(self, key: str) -> Any: ...


class RunSettings(WithRooms, Protocol):
    """The sections of a run."""

    @property
    def seed(self) -> int:
        """The run's seed."""

    @property
    def rounds(self) -> int:
        """Rounds of the run."""

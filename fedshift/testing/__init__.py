"""Holds a method of one's own to what every method of FedShift is held to: :func:`check_method`."""

from fedshift.api.testing import (
    Bench,
    ContractError,
    Traffic,
    check_beats_chance,
    check_declared,
    check_finite,
    check_method,
    check_repeats,
    rounds,
    server_round,
)

__all__ = [
    "Bench",
    "ContractError",
    "Traffic",
    "check_beats_chance",
    "check_declared",
    "check_finite",
    "check_method",
    "check_repeats",
    "rounds",
    "server_round",
]

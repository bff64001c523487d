"""Modules that any method's model can carry: the section ``modules`` of a configuration.

A method and a plugin know nothing of each other: the plugin wraps the method's model, and the training loop
adds the plugin's loss terms to the method's.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor

from clients.models.networks import Blueprint, SplitModel
from clients.training.batches import Batch
from fedshift_wire.params import Params


class Plugin(Protocol):
    """Parts put into a model, with loss terms of their own."""

    params_model: ClassVar[type[Params]]

    def __init__(self, params: Params) -> None:
        """Take the plugin's own parameters."""

    @property
    def personal(self) -> bool:
        """Whether each node is to be scored with modules of its own."""

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Return the model with the modules in it; names and initial weights of the others stay."""

    def private(self, model: SplitModel) -> frozenset[str]:
        """Return the state-dict names of the modules' parts that never travel."""

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Prepare local training; all noise comes from ``rng``, a CPU generator."""

    def terms(self, model: SplitModel, batch: Batch) -> dict[str, Tensor]:
        """Return the named, weighted loss terms of the batch that the method's loss has just seen."""

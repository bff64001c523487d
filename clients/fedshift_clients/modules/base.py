"""Modules: parts that sit in any method's model, with loss terms of their own (the section ``modules``).

A method and modules know nothing of each other: modules wrap the method's model, and the training loop adds their
loss terms to the method's.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from fedshift_clients.losses.imbalance import PLAIN, Classification
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.training.batches import Batch, Terms
from fedshift_clients.training.own_code import weighs_classes
from fedshift_core.errors import FedShiftError
from fedshift_core.params import P, Parametrised
from fedshift_core.plural import plural


class Modules(Parametrised[P]):
    """One entry of the section: parts put into a model; this one puts none.

    Attributes:
        params: Its parameters.
        cross_entropy: As the run weighs classes; for the terms that classify.
    """

    #: Whether :meth:`wrap` makes another model, and so comes before entries that put something into the model.
    remakes_model: ClassVar[bool] = False

    def __init__(self, params: P) -> None:
        self.params = params
        self.cross_entropy: Classification = PLAIN

    @classmethod
    def can_weigh_classes(cls) -> bool:
        """Tell whether terms that classify are made of ``self.cross_entropy``, as far as their code shows it."""
        return weighs_classes(cls, Modules, ("terms",))

    @property
    def personal(self) -> bool:
        """Whether each node is to be scored with modules of its own."""
        return False

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Return the model with the modules in it; names and initial weights of the others stay.

        Raises:
            ConfigError: If they cannot sit in this network.
        """
        return model

    def private(self, model: SplitModel) -> frozenset[str]:
        """Return the state-dict names of the modules' parts that never travel."""
        return frozenset()

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Prepare local training; all noise comes from ``rng``, a CPU generator."""

    def end_round(self, model: SplitModel) -> None:
        """Forget what :meth:`start_round` has left in the model, which another node may have next."""

    def start_batch(self, model: SplitModel, batch: Batch) -> None:
        """Look at a batch before the method's loss does."""

    def terms(self, model: SplitModel, batch: Batch) -> Terms:
        """Return the named, weighted loss terms of the batch that the method's loss has just seen."""
        return {}

    def forget(self, model: SplitModel) -> None:
        """Let go of what passes over a batch left; called in place of :meth:`terms` where labels are no classes."""


class FirstPass:
    """Keeps what the first training pass with gradients gave since it was last taken, for terms of modules.

    Args:
        name: Of the modules, for messages.

    Attributes:
        kept: A tensor of all images of the pass (B, ...) and more; None while there was no pass.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.kept: Any = None

    def wanted(self, model: nn.Module) -> bool:
        """Tell whether a pass of a model is to be kept."""
        return self.kept is None and model.training and torch.is_grad_enabled()

    def look(self, model: nn.Module, _: Any, outcome: Any) -> None:
        """Keep the outcome of a pass; a hook of the model."""
        if self.wanted(model):
            self.kept = outcome

    def take(self, images: int) -> Any:
        """Return what a pass over a batch of so many images left, and forget it.

        Raises:
            RuntimeError: If there was no pass, or the first was over another number of images.
        """
        kept, self.kept = self.kept, None
        if kept is None:
            raise RuntimeError(f"modules {self._name}: the method's loss made no training pass with gradients")
        if len(kept[0]) != images:
            raise RuntimeError(
                f"modules {self._name}: the method's first pass had {plural(len(kept[0]), 'image')}, the batch has "
                f"{images}"
            )
        return kept


def joined(terms: Terms, more: Terms) -> Terms:
    """Return loss terms with those of modules.

    Raises:
        FedShiftError: If a name is in both: one of the two would not be minimised.
    """
    if shared := terms.keys() & more.keys():
        raise FedShiftError(f"loss term {min(shared)!r} of modules is also one of the method or of other modules")
    return {**terms, **more}


class AllModules:
    """The entries of a section ``modules``, in their order; one that makes another model is put in first."""

    def __init__(self, entries: Sequence[Modules] = ()) -> None:
        self._entries = tuple(entries)

    def __len__(self) -> int:
        """Return how many entries there are."""
        return len(self._entries)

    @property
    def personal(self) -> bool:
        """Whether each node is to be scored with modules of its own."""
        return any(entry.personal for entry in self._entries)

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Return the model with all modules in it.

        Raises:
            ConfigError: If one cannot sit in this network.
        """
        for entry in sorted(self._entries, key=lambda entry: not entry.remakes_model):
            model = entry.wrap(model, plan)
        return model

    def private(self, model: SplitModel) -> frozenset[str]:
        """Return the state-dict names of all parts that never travel."""
        return frozenset().union(*(entry.private(model) for entry in self._entries))

    def start_round(
        self, model: SplitModel, rng: Callable[[str], torch.Generator], loss: Classification | None = None
    ) -> None:
        """Prepare local training.

        Args:
            model: The model with the modules.
            rng: Gives a CPU generator for a purpose, one for each entry.
            loss: Cross-entropy as the run weighs classes; None: all alike.
        """
        for place, entry in enumerate(self._entries):
            entry.cross_entropy = loss or PLAIN
            entry.start_round(model, rng(f"modules-{place}" if place else "modules"))

    def end_round(self, model: SplitModel) -> None:
        """Forget what :meth:`start_round` and passes have left in the model."""
        for entry in self._entries:
            entry.forget(model)
            entry.end_round(model)

    def start_batch(self, model: SplitModel, batch: Batch) -> None:
        """Let all entries look at a batch before the method's loss does."""
        for entry in self._entries:
            entry.start_batch(model, batch)

    def terms(self, model: SplitModel, batch: Batch) -> Terms:
        """Return the loss terms of all entries.

        Raises:
            FedShiftError: If two entries have a term of one name.
        """
        weighted: Terms = {}
        for entry in self._entries:
            weighted = joined(weighted, entry.terms(model, batch))
        return weighted

    def forget(self, model: SplitModel) -> None:
        """Let all entries let go of what passes over a batch left."""
        for entry in self._entries:
            entry.forget(model)

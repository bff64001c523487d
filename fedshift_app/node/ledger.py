"""What a real node has spent of its images' privacy, and how often it has trained, over all runs; on its own disk.

A ledger belongs to a folder of images. It is written, and synced to the disk, before a noised update leaves: a node
that dies in between has counted a round that never left, never the reverse. Whoever removes the file starts anew.

What a round of ``local-dp`` spends is the square of mu in Gaussian differential privacy, which adds up over rounds and
runs however their noise differs: Dong, Roth & Su, "Gaussian Differential Privacy", 2022, corollaries 1 and 2. Of a
round of ``dp-sgd`` the sampling rate, steps and noise are kept; all rounds are then composed by Renyi differential
privacy (``fedshift_core.dp_accounting``).
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from fedshift_app.node import state_folder
from fedshift_core import atomic_io, dp_accounting, private_files
from fedshift_core.dp_accounting import Spending
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.options.privacy import epsilon_of

DAY = 86_400.0  # seconds


class Sampled(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Rounds of ``dp-sgd`` with the same numbers, as ``fedshift_core.dp_accounting.Spending`` has them."""

    images: int = Field(gt=0)
    sampling_rate: float = Field(gt=0, le=1)
    steps: int = Field(gt=0)
    noise_multiplier: float = Field(gt=0)
    prototype_noise: float = Field(ge=0)
    rounds: int = Field(gt=0)

    @classmethod
    def of(cls, spends: Spending, rounds: int) -> "Sampled":
        """Return so many rounds."""
        numbers = {name: getattr(spends, name) for name in cls.model_fields if name != "rounds"}
        return cls(**numbers, rounds=rounds)

    def spending(self) -> Spending:
        """Return what one of them spends; its delta is that of whoever asks."""
        return Spending(**self.model_dump(exclude={"rounds"}), delta=0.0)


#: What a round spends: the square of mu of ``local-dp``, 0 without noise, or what ``dp-sgd`` does.
Cost = float | Spending


class Spent(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What one run has spent.

    Attributes:
        rounds: In how many rounds an update with noise left.
        mu_squared: What they spent together, with ``local-dp``.
        sampled: Those of ``dp-sgd``.
    """

    rounds: int = Field(0, ge=0)
    mu_squared: float = Field(0.0, ge=0)
    sampled: tuple[Sampled, ...] = ()

    def one_more(self, cost: Cost) -> "Spent":
        """Return the same with another round."""
        if not isinstance(cost, Spending):
            return self.model_copy(update={"mu_squared": self.mu_squared + cost, "rounds": self.rounds + 1})
        *before, last = *self.sampled, Sampled.of(cost, 1)
        if before and before[-1] == Sampled.of(cost, before[-1].rounds):
            last = Sampled.of(cost, before.pop().rounds + 1)
        return self.model_copy(update={"sampled": (*before, last), "rounds": self.rounds + 1})


class Book(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a ledger holds.

    Attributes:
        images: The folder of images, for whoever reads the file.
        runs: By the run's id.
        trained: When updates left within the last 24 hours, in seconds since 1970.
    """

    images: str = ""
    runs: dict[str, Spent] = Field(default_factory=dict)
    trained: tuple[float, ...] = ()

    @property
    def mu_squared(self) -> float:
        """What all runs have spent."""
        return math.fsum(spent.mu_squared for spent in self.runs.values())

    def epsilon(self, delta: float, more: Cost = 0.0) -> float:
        """Return the epsilon that all runs have spent, and would have with one more round."""
        if more:
            return self.charged("", more, 0.0).epsilon(delta)
        if sampled := [part for spent in self.runs.values() for part in spent.sampled]:
            rounds = [(part.spending(), part.rounds) for part in sampled]
            return dp_accounting.epsilon_of_all(rounds, self.mu_squared, delta)
        return epsilon_of(math.sqrt(self.mu_squared), delta)

    def rounds_of_day(self, now: float) -> int:
        """Return in how many rounds the node has trained in the 24 hours before."""
        return sum(moment > now - DAY for moment in self.trained)

    def charged(self, run: str, cost: Cost, now: float) -> "Book":
        """Return the book with a round that leaves now; without noise ``cost`` is 0, and only the day counts."""
        runs = self.runs
        if cost:
            runs = runs | {run: runs.get(run, Spent()).one_more(cost)}
        recent = (*(moment for moment in self.trained if moment > now - DAY), now)
        return Book(images=self.images, runs=runs, trained=recent)


#: Takes the book as it is and returns why a round may not be charged; empty where it may.
Check = Callable[[Book, float], str]


@dataclass(frozen=True)
class Ledger:
    """The ledger of a folder of images.

    Attributes:
        path: Its file, mode 0600.
        images: The folder of images.
        clock: Seconds since 1970.
    """

    path: Path
    images: str = ""
    clock: Callable[[], float] = time.time

    def read(self) -> Book:
        """Return what has been spent; nothing where there is no file.

        Raises:
            FedShiftError: If the file cannot be read: to begin anew would spend more than was allowed.
        """
        try:
            return Book.model_validate(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return Book(images=self.images)
        except (OSError, ValueError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not what was written"
            raise FedShiftError(
                f"cannot read the ledger {shown(self.path, WHOLE_PATH)}: {reason}; restore it: a node that has lost "
                "what it spent trains no more"
            ) from None

    def refused(self, check: Check) -> str:
        """Return why a round could not be charged now; empty where it could."""
        return check(self.read(), self.clock())

    def charge(self, run: str, cost: Cost, check: Check) -> str:
        """Write a round down, on the disk before this returns. Another node of the same images waits for its turn.

        Returns:
            Why it is not charged; empty where it was.

        Raises:
            FedShiftError: If the ledger cannot be read or written.
        """
        try:
            private_files.make_folder(self.path.parent)
            with private_files.locked(self.path.with_suffix(".lock")):
                book, now = self.read(), self.clock()
                if why := check(book, now):
                    return why
                text = book.charged(run, cost, now).model_dump_json(indent=1)
                atomic_io.write_durably(self.path, text.encode(), private=True)
        except OSError as error:
            raise FedShiftError(
                f"cannot write the ledger {shown(self.path, WHOLE_PATH)}: {error.strerror}; nothing leaves this node"
            ) from None
        return ""


def of_images(folder: Path) -> Ledger:
    """Return the ledger of a folder of images, in the node's state folder."""
    images = str(folder.resolve())
    name = hashlib.sha256(images.encode()).hexdigest()[:16]
    return Ledger(state_folder.state_dir() / state_folder.LEDGERS / f"{name}.json", images)


def all_ledgers() -> list[Ledger]:
    """Return the ledgers of this user's nodes."""
    return [Ledger(path) for path in sorted((state_folder.state_dir() / state_folder.LEDGERS).glob("*.json"))]

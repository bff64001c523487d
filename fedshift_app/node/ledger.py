"""What a real node has spent of its images' privacy, how often it has trained, and what it was asked, over all runs.

A ledger lies with its images, as ``.fedshift-node.json`` in their folder, so that nodes with other state folders share
it; where that cannot be written, in the state folder. It is written, and synced to the disk, before a reply leaves: a
node that dies in between has counted what never left, never the reverse. Whoever removes the file starts anew.
It also keeps the owner's secret and how the images are parted (``fedshift_app.node.partition``).

What a round of ``local-dp`` spends is the square of mu in Gaussian differential privacy, which adds up over rounds and
runs however their noise differs: Dong, Roth & Su, "Gaussian Differential Privacy", 2022, corollaries 1 and 2. Of a
round of ``dp-sgd`` the sampling rate, steps and noise are kept; all rounds are then composed by Renyi differential
privacy (``fedshift_core.dp_accounting``).
"""

import contextlib
import hashlib
import math
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from fedshift_app.features.privacy import epsilon_of
from fedshift_app.node import state_folder
from fedshift_core import atomic_io, dp_accounting, private_files
from fedshift_core.dp_accounting import Spending
from fedshift_core.errors import FedShiftError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.plural import plural

DAY = 86_400.0  # seconds
FILE = ".fedshift-node.json"  # in the folder of images


#: What a round spends: the square of mu of ``local-dp``, 0 without noise, or what ``dp-sgd`` does.
Cost = float | Spending


class Spent(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What one run has spent.

    Attributes:
        rounds: In how many rounds an update with noise left.
        mu_squared: What they spent together, with ``local-dp``.
        sampled: What those of ``dp-sgd`` spent, and how many had the same numbers; delta is that of whoever asks.
    """

    rounds: NonNegativeInt = 0
    mu_squared: NonNegativeFloat = 0.0
    sampled: tuple[tuple[Spending, PositiveInt], ...] = ()

    def one_more(self, cost: Cost) -> "Spent":
        """Return the same with another round."""
        more: dict[str, Any] = {"rounds": self.rounds + 1}
        if isinstance(cost, Spending):
            kept, spending, rounds = self.sampled, replace(cost, delta=0.0), 1
            if kept and kept[-1][0] == spending:
                kept, rounds = kept[:-1], kept[-1][1] + 1
            more["sampled"] = (*kept, (spending, rounds))
        else:
            more["mu_squared"] = self.mu_squared + cost
        return self.model_copy(update=more)


class Asked(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Scores that one run has asked for.

    Attributes:
        first: When it asked first, in seconds since 1970.
        last: When it asked last.
        questions: Short hashes of what it asked.
    """

    first: float
    last: float
    questions: tuple[str, ...] = ()


class Book(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a ledger holds.

    Attributes:
        images: The folder of images.
        secret: Decides the order of the images, in hexadecimal; empty where none was needed yet.
        partition: How they are parted for good: values by key of the policy's section ``partition``.
        runs: By the run's id.
        trained: When updates left within the last 24 hours, in seconds since 1970; a clock that was set back leaves
            some in the future, which count as well.
        scored: By the run's id, the scores asked for by runs of the last 24 hours.
    """

    images: str = ""
    secret: str = ""
    partition: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, Spent] = Field(default_factory=dict)
    trained: tuple[float, ...] = ()
    scored: dict[str, Asked] = Field(default_factory=dict)

    @property
    def mu_squared(self) -> float:
        """What all runs have spent."""
        return math.fsum(spent.mu_squared for spent in self.runs.values())

    def epsilon(self, delta: float, more: Cost = 0.0) -> float:
        """Return the epsilon that all runs have spent, and would have with one more round."""
        if more:
            return self.charged("", more, 0.0).epsilon(delta)
        if sampled := [part for spent in self.runs.values() for part in spent.sampled]:
            return dp_accounting.epsilon_of_all(sampled, self.mu_squared, delta)
        return epsilon_of(math.sqrt(self.mu_squared), delta)

    def rounds_of_day(self, now: float) -> int:
        """Return in how many rounds the node has trained in the 24 hours before."""
        return sum(moment > now - DAY for moment in self.trained)

    def charged(self, run: str, cost: Cost, now: float) -> "Book":
        """Return the book with a round that leaves now; without noise ``cost`` is 0, and only the day counts."""
        runs = self.runs | ({run: self.runs.get(run, Spent()).one_more(cost)} if cost else {})
        recent = (*(moment for moment in self.trained if moment > now - DAY), now)
        return self.model_copy(update={"runs": runs, "trained": recent})

    def _of_day(self, now: float) -> dict[str, Asked]:
        """Return the scores asked for by runs of the 24 hours before."""
        return {run: asked for run, asked in self.scored.items() if asked.last > now - DAY}

    def exhausted(self, run: str, question: str, per_run: int | None, runs_per_day: int | None, now: float) -> str:
        """Return why no scores may leave to another question; empty where they may, also to the same one again."""
        recent = self._of_day(now)
        asked = recent[run].questions if run in recent else ()
        if question in asked:
            return ""
        if asked and per_run is not None and len(asked) >= per_run:
            return (
                f"this run has had scores for {plural(per_run, 'other question')}, allowed are scores.per_run={per_run}"
            )
        if run not in recent and runs_per_day is not None and len(recent) >= runs_per_day:
            runs = plural(runs_per_day, "other run")
            return f"{runs} had scores within 24 hours, allowed are scores.runs_per_day={runs_per_day}"
        return ""

    def asked(self, run: str, question: str, now: float) -> "Book":
        """Return the book with scores that leave now; the same question again costs nothing."""
        recent = self._of_day(now)
        if run in recent and question in recent[run].questions:
            return self
        before = self.scored.get(run, Asked(first=now, last=now))
        more = before.model_copy(update={"last": now, "questions": (*before.questions, question)})
        return self.model_copy(update={"scored": recent | {run: more}})


@dataclass(frozen=True)
class Ledger:
    """The ledger of a folder of images.

    Attributes:
        path: Its file, mode 0600.
        images: The folder of images.
        before: The file in the state folder: a link to ``path``, or an older ledger.
        clock: Seconds since 1970.
    """

    path: Path
    images: str = ""
    before: Path | None = None
    clock: Callable[[], float] = time.time

    @property
    def with_images(self) -> bool:
        """Whether it lies with the images, so that a node with another state folder sees what was spent."""
        return self.path.name == FILE

    def read(self) -> Book:
        """Return what has been spent; nothing where there is no file.

        Raises:
            FedShiftError: If the file cannot be read: to begin anew would spend more than was allowed.
        """
        for path in (self.path, self.before):
            try:
                if path is not None:
                    return Book.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not what was written"
                raise FedShiftError(
                    f"cannot read the ledger {shown(path, WHOLE_PATH)}: {reason}; restore it: a node that has lost "
                    "what it spent trains no more"
                ) from None
        return Book()

    def change(self, made: Callable[[Book, float], Book | str]) -> str:
        """Write what is made of the book, on the disk before this returns. Another node of the same images waits.

        Args:
            made: Takes the book and the time; returns the new book, or why there is none.

        Returns:
            Why nothing was written; empty where it was, or where nothing has changed.

        Raises:
            FedShiftError: If the ledger cannot be read or written.
        """
        try:
            private_files.make_folder(self.path.parent)
            with private_files.locked(self.path.with_suffix(".lock")):
                before = self.read()
                new = made(before.model_copy(update={"images": self.images}), self.clock())
                if isinstance(new, str):
                    return new
                if new != before:
                    atomic_io.write_durably(self.path, new.model_dump_json(indent=1).encode(), private=True)
                    self._link()
        except OSError as error:
            raise FedShiftError(
                f"cannot write the ledger {shown(self.path, WHOLE_PATH)}: {error.strerror}; nothing leaves this node"
            ) from None
        return ""

    def _link(self) -> None:
        """Let the state folder's file lead to this one, for ``fedshift policy explain``."""
        if self.before is None or self.before.is_symlink():
            return
        new = self.before.with_suffix(".link")
        with contextlib.suppress(OSError):  # as without a state folder
            private_files.make_folder(new.parent)
            new.unlink(missing_ok=True)
            new.symlink_to(self.path)
            new.replace(self.before)


def new_secret() -> str:
    """Return a secret that decides the order of images, in hexadecimal."""
    return secrets.token_hex(32)


def of_images(folder: Path) -> Ledger:
    """Return the ledger of a folder of images: with them, or in the node's state folder where that cannot be."""
    place = folder.resolve()
    name = hashlib.sha256(str(place).encode()).hexdigest()[:16]
    stated = state_folder.state_dir() / state_folder.LEDGERS / f"{name}.json"
    here = (place / FILE).exists() or can_be_written(place)
    return Ledger(place / FILE if here else stated, str(place), stated if here else None)


def can_be_written(folder: Path) -> bool:
    """Tell whether this process may make files in a folder."""
    return os.access(folder, os.W_OK | os.X_OK)


def all_ledgers() -> list[Ledger]:
    """Return the ledgers of this user's nodes."""
    paths = sorted((state_folder.state_dir() / state_folder.LEDGERS).glob("*.json"))
    return [Ledger(path.resolve()) for path in paths if path.exists()]

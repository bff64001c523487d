"""What a run shows of figures: ``figures`` of ``results.json``. No Flower: whoever compares runs reads it."""

from collections.abc import Sequence

from pydantic import BaseModel, Field

#: The figures that are one number, all in percent.
SHORT = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "ece")
MOST_DOMAINS, MOST_CLASSES = 500, 20_000  # of a results file


class _FromFile(BaseModel, frozen=True, extra="ignore", allow_inf_nan=False):
    """A part of the figures of a run folder."""


class PerClass(_FromFile):
    """Figures by class in percent; None if a class has no test image or is never predicted."""

    recall: tuple[float | None, ...] = Field((), max_length=MOST_CLASSES)
    precision: tuple[float | None, ...] = Field((), max_length=MOST_CLASSES)
    n: tuple[int, ...] = Field((), max_length=MOST_CLASSES)


class Of(_FromFile):
    """The figures of a domain, or of all domains."""

    n: int = Field(ge=0)  # scores: an image counts once for each model scored on it
    images: int | None = Field(None, ge=0)  # distinct images; None if unknown
    accuracy: float | None
    balanced_accuracy: float | None
    macro_f1: float | None
    auc: float | None
    auc_within: float | None = None
    ece: float | None
    per_class: PerClass = PerClass()
    confusion: tuple[tuple[int, ...], ...] | None = Field(None, max_length=MOST_CLASSES)

    @property
    def images_text(self) -> str:
        """The number of distinct test images, with the number of scores if it differs."""
        return images_text(self.n, self.images)


class Figures(_FromFile):
    """The key ``figures`` of ``results.json``."""

    round: int
    classes: tuple[str, ...] = Field((), max_length=MOST_CLASSES)
    domains: dict[str, Of | None] = Field(max_length=MOST_DOMAINS)
    overall: Of | None = None


def images_text(scores: int, images: int | None, noun: str = "", mark: str = "") -> str:
    """Return the number of distinct images behind some scores, with the number of scores if it differs.

    Args:
        scores: Number of scores; an image counts once for each model scored on it.
        images: Number of distinct images; None if unknown.
        noun: Text after the number of images.
        mark: Separator of thousands.
    """
    if images is None or images == scores:
        return f"{scores:{mark}}{noun}"
    return f"{images:{mark}}{noun} ({scores:{mark}} scores)"


def total_images_text(domains: Sequence[Of]) -> str:
    """Return :func:`images_text` of several domains together."""
    distinct = [figures.images for figures in domains if figures.images is not None]
    total = sum(distinct) if len(distinct) == len(domains) else None
    return images_text(sum(figures.n for figures in domains), total, mark=",")

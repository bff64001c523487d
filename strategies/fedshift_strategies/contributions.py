"""What nodes contribute besides weights, as a strategy declares it: names, shapes, types, and the check by them.

    contributes = {"prototypes": ("C", "D"), "counts": ("C",)}            # one of each class
    contributes = {"prototypes": ("P", "D"), "labels": ("P",), "counts": ("P",)}   # any number, with their classes

A dimension is a number or a letter: C is the number of classes, D the feature width; any other letter is the node's
own, the same in all its arrays and at most ``MOST_OWN``, or what :class:`Own` says. ``counts`` and ``labels`` are
int64, as is a shape that is :class:`Whole`, all else float32.

One of four words says what each array tells of images (``fedshift_core.disclosure``):

    behind = {"style-prototype": "sum over classes", "head-weight": "model"}
    behind_with = {"method.option=I": {"delta-c": "class"}}                       # where a setting makes it another

A row with a label is, or stands for, images of that class: a node may send no more of a class than it announced
training images of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedshift_core.disclosure import CLASS, IMAGE, MODEL, Word, refuse_sum
from fedshift_core.limits import MOST_OWN, Refused, check_numbers
from fedshift_core.plural import plural
from fedshift_core.secure.layout import UNDIVIDED, Sum


class Own(str):
    """The letter of a dimension that is a node's own, with its largest size; of rows with labels, that of a class."""

    most: int

    def __new__(cls, letter: str, most: int) -> Self:
        """Return the letter; it equals that without a size."""
        own = super().__new__(cls, letter)
        own.most = most
        return own


class Whole(tuple[str | int, ...]):
    """The shape of an array of whole numbers, int64."""

    def __new__(cls, *parts: str | int) -> Self:
        """Return the shape with these dimensions."""
        return super().__new__(cls, parts)


if TYPE_CHECKING:  # it imports this
    from fedshift_strategies.hooks import MethodHooks

Strategy: TypeAlias = "type[MethodHooks[Any]]"
Shape = tuple[str | int, ...]
Declaration = Mapping[str, Shape]
COUNTS, LABELS = "counts", "labels"
WHOLE = (COUNTS, LABELS)  # names of arrays of int64
FEATURES = ("D", "F")  # letters of the width of a feature
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
BY_CLASS = ("prototypes", COUNTS)  # names of arrays that have a row for each class, unless a strategy says otherwise


def check_contribution(
    knowledge: Mapping[str, NDArray[Any]],
    declared: Declaration,
    sizes: Mapping[str, int],
    class_counts: Sequence[int],
    max_value: float,
) -> None:
    """Check what a node contributes against what its method declares.

    Args:
        knowledge: Named arrays.
        declared: Names and shapes of what may and must be there.
        sizes: The dimensions that the run fixes, C and D.
        class_counts: Training images per class, as the node announced them before the first round, (C,).
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If an array is missing, unexpected, of another shape or type, or a number is out of bounds; or more
            images of a class are counted, or more rows are labelled with it, than images were announced; or there are
            more rows than the declaration allows.
    """
    if strange := sorted(set(knowledge) - set(declared)):
        raise Refused(f"unexpected knowledge {', '.join(strange)}")
    known = dict(sizes)
    labelled = declared.get(LABELS, ())
    most = {part: MOST_OWN if part in labelled else _most(part) for shape in declared.values() for part in shape}
    for name, shape in declared.items():
        array = knowledge.get(name)
        if array is None:
            raise Refused(f"knowledge has no {name!r}")
        _check_shape(name, array, shape, known, most)
        check_numbers(name, array, max_value)
    if LABELS in declared and knowledge[LABELS].size:
        low, high = int(knowledge[LABELS].min()), int(knowledge[LABELS].max())
        if low < 0 or high >= len(class_counts):
            raise Refused(f"labels from {low} to {high}, allowed are 0 to {len(class_counts) - 1}")
        _check_rows(knowledge[LABELS], class_counts, _most(declared[LABELS][0]))
    if COUNTS in declared:
        _check_counts(knowledge, declared, class_counts)


def dtype_of(name: str, shape: Shape) -> str:
    """Return the type of an array that is declared so."""
    return "int64" if name in WHOLE or isinstance(shape, Whole) else "float32"


def _most(part: str | int) -> int:
    return part.most if isinstance(part, Own) else MOST_OWN


def _check_shape(
    name: str, array: NDArray[Any], shape: Shape, known: dict[str, int], most: Mapping[str | int, int]
) -> None:
    """Check one array; a dimension that is the node's own is noted in ``known`` the first time."""
    dtype = dtype_of(name, shape)
    if array.ndim == len(shape):
        for letter, size in zip(shape, array.shape, strict=True):
            if isinstance(letter, str) and letter not in known:
                if size > most[letter]:
                    raise Refused(f"{name} of shape {array.shape}: {letter} is {most[letter]} at most")
                known[letter] = size
    wanted = tuple(known.get(part, part) if isinstance(part, str) else part for part in shape)
    if array.shape != wanted or array.dtype != dtype:
        expected = f"({', '.join(map(str, wanted))}{',' if len(wanted) == 1 else ''})"
        raise Refused(f"{name} of shape {array.shape} and type {array.dtype}, expected {expected} and {dtype}")


def _check_rows(labels: NDArray[Any], class_counts: Sequence[int], most: int) -> None:
    """Check that no class has more rows than the node announced images of it, and than ``most``."""
    rows = np.bincount(labels.reshape(-1), minlength=len(class_counts))
    if rows.max() > most:
        raise Refused(f"labels has {plural(int(rows.max()), 'row')} of class {rows.argmax()}, allowed are {most}")
    _check_each("labels has", "row", rows, class_counts)


def _check_each(what: str, unit: str, numbers: NDArray[Any], class_counts: Sequence[int]) -> None:
    """Check that a number for each class is none above the images that the node announced of it."""
    for label, (number, announced) in enumerate(zip(numbers.tolist(), class_counts, strict=True)):
        if number > announced:
            raise Refused(
                f"{what} {plural(number, unit)} of class {label}, announced were {plural(announced, 'image')}"
            )


def _check_counts(knowledge: Mapping[str, NDArray[Any]], declared: Declaration, class_counts: Sequence[int]) -> None:
    """Check that no more images are counted of a class than the node announced."""
    counts = knowledge[COUNTS]
    if (counts < 0).any():
        raise Refused("counts holds negative numbers")
    if declared[COUNTS] == ("C",):
        _check_each("counts says", "image", counts, class_counts)
    elif LABELS in declared and declared[COUNTS] == declared[LABELS]:
        by_class = np.zeros(len(class_counts), np.int64)
        np.add.at(by_class, knowledge[LABELS], np.minimum(counts, sum(class_counts) + 1))
        _check_each("counts says", "image", by_class, class_counts)
    elif (number := sum(counts.reshape(-1).tolist())) > sum(class_counts):  # of which class is not known
        raise Refused(f"counts says {plural(number, 'image')}, announced were {sum(class_counts)}")


def behind(strategy: Strategy, name: str, settings: Mapping[str, Any] = NO_SETTINGS) -> Word:
    """Return the word of an array that nodes contribute; the strictest for one of which the strategy says nothing.

    Args:
        strategy: A subclass of :class:`fedshift_strategies.base.DomainStrategy`.
        name: The array's, of what the strategy declares.
        settings: The run's section ``method``; without it the word is that with the method's defaults.
    """
    for setting, words in strategy.behind_with.items():
        key, _, value = setting.removeprefix("method.").partition("=")
        if name in words and str(settings.get(key)) == value:
            return words[name]
    if name in strategy.behind:
        return strategy.behind[name]
    return CLASS if name in BY_CLASS and strategy.contributes.get(name, ())[:1] == ("C",) else IMAGE


def refuse_sums(strategy: Strategy, sums: Mapping[str, Sum], settings: Mapping[str, Any]) -> str:
    """Return why the server must not be given the sums that a strategy asks for; empty where it may.

    Args:
        strategy: A subclass of :class:`fedshift_strategies.base.DomainStrategy`.
        sums: How each array is a sum over nodes.
        settings: The run's section ``method``.
    """
    for name, how in sums.items():
        if why := refuse_sum(behind(strategy, name, settings), name, how):
            return why
        if isinstance(strategy.contributes.get(name), Whole) and how not in UNDIVIDED:
            return f"{name} is of whole numbers, and a sum of the kind {how} is divided"
    return ""


def of_features(strategy: Strategy, declared: Declaration) -> frozenset[str]:
    """Return the names of what a strategy's nodes contribute of features: D wide, or F where these are frozen."""
    wide = [name for name, shape in declared.items() if shape[-1:] and shape[-1] in FEATURES]
    return frozenset(name for name in wide if behind(strategy, name) != MODEL)


def described(declared: Declaration) -> str:
    """Return a declaration for people: ``prototypes (C x D), counts (C)``; ``nothing`` where it is empty."""
    parts = (f"{name} ({' x '.join(map(str, shape)) or '1'})" for name, shape in declared.items())
    return ", ".join(parts) or "nothing"


_BASE = "fedshift_strategies.base"  # the module of the strategy that all others are made of
#: What a strategy overrides to send nodes knowledge, and to tell them something.
_HOOKS = {
    "sends": ("start_run", "merge", "merge_knowledge", "knowledge_for", "configure_train", "aggregate_train"),
    "tells": ("tell",),
}


def declared(strategy: type, what: Literal["sends", "tells"]) -> tuple[str, ...] | None:
    """Return the names that a strategy declares for its nodes. None means that any may be sent.

    A strategy that overrides none of the hooks that could send something sends nothing. What a class inherits does not
    count where it overrides such a hook itself.

    Args:
        strategy: A subclass of :class:`fedshift_strategies.base.DomainStrategy`, or that itself.
        what: Knowledge that it sends, or numbers and words that it tells.
    """
    for kind in strategy.__mro__:
        own = vars(kind)
        if kind.__module__ == _BASE:
            break
        if what in own:
            names: Iterable[str] | None = own[what]
            return None if names is None else tuple(names)
        if any(hook in own for hook in _HOOKS[what]):
            return None
    return ()

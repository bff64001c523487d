"""Finds the values of a DICOM header that decide pixels: bits, rescaling, window, inversion.

A classic file has them at its top level. An enhanced file has them in functional groups, shared by all frames or of a
single frame. Nothing is guessed: two places that disagree, half a pair, and a place outside the standard are refused by
name.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fedshift_core.errors import DataError
from fedshift_core.limits import MOST_NAME, shown
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from pydicom import Dataset

_GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
_SPACING, _MEASURES = "PixelSpacing", "PixelMeasuresSequence"
_TOP = "the top level"
_GREY, _INVERTED = "MONOCHROME2", "MONOCHROME1"
_COLOUR_BITS = 8


class _Kind(NamedTuple):
    """A pair of numbers of the header.

    Attributes:
        pair: Their keywords.
        sequence: The sequence that holds them in functional groups.
        table: The keyword of a table at the top level that takes their place; empty for none.
        function: The keyword of a word that belongs to them; empty for none.
        several: Whether more than one value each is allowed, of which the first counts.
    """

    pair: tuple[str, str]
    sequence: str
    table: str = ""
    function: str = ""
    several: bool = False


_RESCALE = _Kind(("RescaleSlope", "RescaleIntercept"), "PixelValueTransformationSequence", table="ModalityLUTSequence")
_WINDOW = _Kind(("WindowCenter", "WindowWidth"), "FrameVOILUTSequence", function="VOILUTFunction", several=True)

#: Top-level tags that this module reads.
READ = [
    *_GROUPS,
    *_RESCALE.pair,
    *_WINDOW.pair,
    _RESCALE.sequence,
    _WINDOW.sequence,
    _RESCALE.table,
    _WINDOW.function,
    _SPACING,
    "PresentationLUTShape",
    "PhotometricInterpretation",
    "SamplesPerPixel",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
]


def shift(data: "Dataset", where: str) -> int:
    """Return the number of unused bits below the stored values.

    Args:
        data: The header.
        where: The file's name in messages.

    Raises:
        DataError: If the bits are inconsistent, or a compression leaves their position open.
    """
    from pydicom.uid import UID, RLELossless

    allocated, stored = int(data.BitsAllocated), int(data.BitsStored)
    high = stored - 1 if data.get("HighBit") is None else int(data.HighBit)
    if not 1 <= stored <= high + 1 <= allocated:
        raise DataError(
            f"{where}: BitsStored {stored} with HighBit {high} of BitsAllocated {allocated}; allowed is a HighBit from "
            f"BitsStored - 1 to BitsAllocated - 1"
        )
    colour = int(data.SamplesPerPixel) != 1
    if colour and (stored != _COLOUR_BITS or data.PixelRepresentation):
        kind = "signed" if data.PixelRepresentation else "unsigned"
        raise DataError(f"{where}: colours of {stored} bits, {kind}; allowed are {_COLOUR_BITS} bits, unsigned")
    syntax = UID(data.file_meta.TransferSyntaxUID)
    if high != stored - 1 and syntax.is_compressed and syntax != RLELossless:
        raise DataError(
            f"{where}: HighBit {high} with BitsStored {stored}, compressed as {shown(syntax.name, MOST_NAME)}; allowed "
            "there is BitsStored - 1"
        )
    return high + 1 - stored


def is_inverted(data: "Dataset", where: str) -> bool:
    """Return whether the largest value of a grey image means black.

    Raises:
        DataError: If PhotometricInterpretation and PresentationLUTShape contradict each other.
    """
    kind, shape = str(data.PhotometricInterpretation), str(data.get("PresentationLUTShape") or "")
    if shape not in ("", "IDENTITY", "INVERSE") or (kind, shape) == (_INVERTED, "IDENTITY"):
        raise DataError(
            f"{where}: PresentationLUTShape {shown(shape, MOST_NAME)} of a {kind} image; allowed are INVERSE and, with "
            f"{_GREY}, IDENTITY"
        )
    return kind == _INVERTED or shape == "INVERSE"


def rescaling(data: "Dataset", where: str) -> tuple[float, float] | None:
    """Return slope and intercept; None if there are none.

    Raises:
        DataError: If there are several that differ, half a pair, a slope of 0, or a table in addition.
    """
    numbers = _found(data, _RESCALE, where)
    tables: Sequence[Dataset] = data.get("ModalityLUTSequence") or ()
    if any(table != tables[0] for table in tables):
        raise DataError(f"{where}: ModalityLUTSequence has {plural(len(tables), 'table')} that differ; allowed is one")
    if numbers is None:
        return None
    slope, intercept = numbers
    if slope == 0:
        raise DataError(f"{where}: RescaleSlope is 0; allowed are other numbers")
    if tables and (slope, intercept) != (1, 0):
        raise DataError(f"{where}: ModalityLUTSequence and {_said(_RESCALE, numbers)}; allowed is one of them")
    return slope, intercept


def own_window(data: "Dataset", where: str) -> tuple[float, float, str] | None:
    """Return center, width and function of the file's own window; None if there is none.

    Raises:
        DataError: If there are several that differ, or half a pair.
    """
    return _found(data, _WINDOW, where, "; dataset.window=[low,high] takes its place")


def spacing(data: "Dataset") -> tuple[float, float] | None:
    """Return the millimetres from row to row and from column to column; None if they are unknown, or differ by place.

    ImagerPixelSpacing, which is that of a detector and not of the patient, does not count.
    """
    frames = [frame for group in _GROUPS for frame in _items(data, group)]
    places = [data, *(item for frame in frames for item in _items(frame, _MEASURES))]
    try:
        stated = {tuple(map(float, item[_SPACING].value)) for item in places if item.get(_SPACING)}
    except (TypeError, ValueError):  # no numbers: the pixels may be fine
        return None
    pair = stated.pop() if len(stated) == 1 else ()
    return (pair[0], pair[1]) if len(pair) == 2 and all(0 < part < math.inf for part in pair) else None


def place(data: "Dataset", frame: int) -> tuple[float, ...]:
    """Return where in space a frame begins, in millimetres; empty if it is unknown."""
    groups = data.get(_GROUPS[1]) or ()
    items = _items(groups[frame], "PlanePositionSequence") if frame < len(groups) else ()
    return next((tuple(map(float, item.get("ImagePositionPatient") or ())) for item in items), ())


def _found(data: "Dataset", kind: _Kind, where: str, remedy: str = "") -> tuple[Any, ...] | None:
    """Return the numbers of a pair and their word, or None if there is no pair."""
    pairs = [
        (place_name, values)
        for place_name, item in _places(data, kind)
        if (values := _values(place_name, item, kind, where, remedy))
    ]
    if not pairs:
        if not (kind.table and data.get(kind.table)):
            _check_elsewhere(data, kind, where, remedy)
        return None
    first, numbers = pairs[0]
    for place_name, values in pairs[1:]:
        if values != numbers:
            raise DataError(
                f"{where}: {_said(kind, numbers)} at {first}, {_said(kind, values)} at {place_name}; allowed is one "
                f"pair{remedy}"
            )
    return numbers


def _places(data: "Dataset", kind: _Kind) -> Iterator[tuple[str, "Dataset"]]:
    """Yield the parts of a header that may hold a pair, each with its name."""
    yield _TOP, data
    yield from ((kind.sequence, item) for item in _items(data, kind.sequence))
    for group in _GROUPS:
        yield from ((group, item) for frame in _items(data, group) for item in _items(frame, kind.sequence))


def _items(data: "Dataset", keyword: str) -> Iterable["Dataset"]:
    items: Iterable[Dataset] = data.get(keyword) or ()
    return items


def _values(place_name: str, item: "Dataset", kind: _Kind, where: str, remedy: str) -> tuple[Any, ...] | None:
    """Return the pair of one place with its word; None if both numbers are missing."""
    numbers = tuple(_number(place_name, item, keyword, kind, where) for keyword in kind.pair)
    if all(number is None for number in numbers):
        return None
    if None in numbers:
        there, missing = kind.pair if numbers[1] is None else kind.pair[::-1]
        raise DataError(f"{where}: {there} without {missing} at {place_name}; allowed are both or neither{remedy}")
    if not kind.function:
        return numbers
    return *numbers, str(item.get(kind.function) or "LINEAR")


def _number(place_name: str, item: "Dataset", keyword: str, kind: _Kind, where: str) -> float | None:
    """Return a number of a place; None if there is none.

    Raises:
        DataError: If there are several different values where one is allowed.
    """
    value = item.get(keyword)
    if value is None or isinstance(value, (int, float)):
        return value
    if not len(value):
        return None
    if not kind.several and any(other != value[0] for other in value):
        raise DataError(
            f"{where}: {keyword} at {place_name} has {plural(len(value), 'value')} that differ; allowed is one"
        )
    return float(value[0])


def _said(kind: _Kind, values: tuple[Any, ...]) -> str:
    numbers = " and ".join(f"{name} {value:g}" for name, value in zip(kind.pair, values, strict=False))
    return numbers if len(values) == len(kind.pair) else f"{numbers} by {shown(values[-1], MOST_NAME)}"


def _check_elsewhere(data: "Dataset", kind: _Kind, where: str, remedy: str) -> None:
    """Refuse numbers that stand only at a place of the functional groups outside the standard.

    Raises:
        DataError: With the place.
    """
    for group in _GROUPS:
        for keyword in filter(None, (*kind.pair, kind.table)):
            if any(item.get(keyword) is not None for item in _nested(_items(data, group))):
                raise DataError(
                    f"{where}: {keyword} within {group} but not in {kind.sequence}; allowed are that and {_TOP}{remedy}"
                )


def _nested(items: Iterable["Dataset"]) -> Iterator["Dataset"]:
    """Yield the items of sequences and of all nested ones, without converting other elements."""
    from pydicom.datadict import dictionary_has_tag, dictionary_VR

    waiting = list(items)
    while waiting:
        item = waiting.pop()
        yield item
        for tag in list(item.keys()):
            written = item.get_item(tag)
            vr = getattr(written, "VR", None) or (dictionary_VR(tag) if dictionary_has_tag(tag) else "")
            if vr == "SQ":
                waiting.extend(item[tag].value or ())

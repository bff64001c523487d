"""Decides which spellings of a class, site or patient are the same name.

Two spellings are one name if they differ only in letter case or in what is invisible: the encoding of an accent (NFC,
NFD), spaces around the name, the kind and number of spaces inside it, letters of no width (zero-width space, byte order
mark, soft hyphen), the non-breaking hyphen. Letters of other alphabets that look alike are different.

Numbers are special: ``0`` and ``0.0``, or ``1`` and ``01``, are different names, as one of them may be an identifier.
Both together are a mistake, so :func:`check_numbers` refuses them. Of patients they are one, as nothing is lost by
keeping two people's images together, and all by dividing one's.
"""

import functools
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence

from fedshift_core.limits import as_found

#: Letters of no width whose category is not Cf: a joiner, fillers, variation selectors.
_NO_WIDTH = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {chr(code) for code in range(0xFE00, 0xFE10)}
_HYPHENS = str.maketrans("\u2010\u2011", "--")  # they look like the one on the keyboard
#: How tables write that a patient is unknown.
NO_PATIENT = frozenset(("", "nan", "na", "n/a", "<na>", "nat", "none", "null", "unknown", "-", "?"))
_NUMBER = re.compile(r"([+-]?)(\d+)(?:[.,](\d*))?")


def cleaned(name: str) -> str:
    """Return a name without invisible differences: NFC, no letters of no width, single spaces, none around it."""
    if name.isascii():
        return " ".join(name.split())
    seen = (letter for letter in name if unicodedata.category(letter) != "Cf" and letter not in _NO_WIDTH)
    return " ".join(unicodedata.normalize("NFC", "".join(seen).translate(_HYPHENS)).split())


@functools.lru_cache(maxsize=1 << 14)
def key(name: str) -> str:
    """Return a key that is equal for all spellings of a name."""
    plain = cleaned(name)
    if plain.isascii():
        return plain.lower()
    # Twice, as Unicode requires for a comparison without case: case folding may leave letters to compose.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", plain).casefold())


def same(first: str, second: str) -> bool:
    """Return whether two spellings are one name."""
    return first == second or key(first) == key(second)


def place(name: str, names: Sequence[str]) -> int | None:
    """Return the index of a name among others, the same spelling first; None if it is not among them."""
    if name in names:
        return names.index(name)
    wanted_key = key(name)
    return next((index for index, other in enumerate(names) if key(other) == wanted_key), None)


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Return the first spelling of each name, cleaned, by key, in the order of the names."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(key(name), cleaned(name))
    return first


def twice(names: Iterable[str]) -> tuple[str, str] | None:
    """Return the first two spellings of one name; None if all names differ."""
    seen: dict[str, str] = {}
    for name in names:
        if (folded := key(name)) in seen:
            return seen[folded], name
        seen[folded] = name
    return None


def number(name: str) -> str | None:
    """Return the number that a name writes, in one form for ``1``, ``01`` and ``1.0``. None if it is no number."""
    written = _NUMBER.fullmatch(cleaned(name))
    if written is None:
        return None
    sign, whole, decimals = written.groups()
    digits = f"{int(whole) if len(whole) < 100 else whole.lstrip('0')}"
    fraction = (decimals or "").rstrip("0")
    written_number = f"{digits}.{fraction}" if fraction else digits
    return f"-{written_number}" if sign == "-" and written_number != "0" else written_number


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that are spellings of one number, such as ``0`` and ``0.0``; None if there are none."""
    seen: dict[str | None, str] = {}
    for name in names:
        other = seen.setdefault(number(name), name)
        if key(other) != key(name) and number(name) is not None:
            return other, name
    return None


def check_numbers(names: Iterable[str], what: str, places: Mapping[str, object] | None = None) -> None:
    """Refuse names that are one number in two spellings.

    Args:
        names: The names.
        what: The kind of names for the message: classes, sites.
        places: The place of each name for the message; None for no places.

    Raises:
        ValueError: With both spellings.
    """
    pair = clash(names)
    if pair is not None:
        first, second = (as_found(name) + (f" ({places[name]})" if places else "") for name in pair)
        raise ValueError(f"{what} {first} and {second} are one number in two spellings; write it in one form")


def patient(name: str) -> str:
    """Return a key that is equal for all spellings of a patient's name or number."""
    return number(name) or key(name)


def patients(names: Sequence[str], *, unknown: Collection[str] = NO_PATIENT) -> list[str]:
    """Return for each name of a patient the one spelling that stands for all, empty for an unknown patient.

    Args:
        names: The names.
        unknown: Keys of names that stand for an unknown patient.
    """
    first: dict[str, str] = {}
    keys = {name: patient(name) for name in sorted(set(names))}
    for name, of_patient in keys.items():
        first.setdefault(of_patient, "" if of_patient in unknown else cleaned(name))
    return [first[keys[name]] for name in names]

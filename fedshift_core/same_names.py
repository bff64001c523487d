"""The one rule for names that people write: which spellings of a class, site or patient are the same name.

Two spellings are one name if they differ only in what an eye does not see, or in letter case: how an accent is encoded
(NFC, NFD), spaces around the name, the kind and number of spaces inside it, letters of no width (zero-width space,
byte order mark, soft hyphen), the non-breaking hyphen. Letters of other alphabets that look alike are different.

Numbers are a kind of their own: ``0`` and ``0.0``, ``1`` and ``01`` are no spelling of each other, for one of them may
be an identifier; but side by side they are never meant, so :func:`check_numbers` refuses them.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from fedshift_core.limits import as_found

#: Letters of no width whose category is not Cf: a joiner, fillers, variation selectors.
_NO_WIDTH = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0") | {chr(code) for code in range(0xFE00, 0xFE10)}
_HYPHENS = str.maketrans("\u2010\u2011", "--")  # they look like the one on the keyboard
_NUMBER = re.compile(r"([+-]?)(\d+)(?:[.,](\d*))?")


def cleaned(name: str) -> str:
    """Return a name without what no eye sees: NFC, no letter of no width, single spaces, none around it."""
    if name.isascii():
        return " ".join(name.split())
    seen = (letter for letter in name if unicodedata.category(letter) != "Cf" and letter not in _NO_WIDTH)
    return " ".join(unicodedata.normalize("NFC", "".join(seen).translate(_HYPHENS)).split())


@functools.lru_cache(maxsize=1 << 14)
def key(name: str) -> str:
    """Return what all spellings of a name have in common; two names are the same if their keys are equal."""
    plain = cleaned(name)
    if plain.isascii():
        return plain.lower()
    # Twice, as Unicode wants it for a comparison without case: folding may leave letters to be composed.
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", plain).casefold())


def same(first: str, second: str) -> bool:
    """Return whether two spellings are one name."""
    return first == second or key(first) == key(second)


def place(name: str, names: Sequence[str]) -> int | None:
    """Return the place of a name among others: of the same spelling, else of the same name; None if it is none."""
    if name in names:
        return names.index(name)
    wanted = key(name)
    return next((number for number, known in enumerate(names) if key(known) == wanted), None)


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
    """Return the number that a name writes, the same for all its spellings (``1``, ``01``, ``1.0``); None if none."""
    written = _NUMBER.fullmatch(cleaned(name))
    if written is None:
        return None
    sign, whole, part = written.groups()
    digits = f"{int(whole) if len(whole) < 100 else whole.lstrip('0')}"
    rest = (part or "").rstrip("0")
    text = f"{digits}.{rest}" if rest else digits
    return f"-{text}" if sign == "-" and text != "0" else text


def clash(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two names that are spellings of one number, such as ``0`` and ``0.0``; None if there are none."""
    seen: dict[str, str] = {}
    for name in names:
        written = number(name)
        if written is None:
            continue
        other = seen.setdefault(written, name)
        if key(other) != key(name):
            return other, name
    return None


def check_numbers(names: Iterable[str], what: str, places: Mapping[str, object] | None = None) -> None:
    """Refuse names that are one number in two spellings.

    Args:
        names: The names.
        what: What they name, for the message: classes, sites, patients.
        places: Where a name stands, by name, for the message; None says nothing of it.

    Raises:
        ValueError: With both spellings.
    """
    both = clash(names)
    if both is not None:
        first, second = (as_found(name) + (f" ({places[name]})" if places else "") for name in both)
        raise ValueError(f"{what} {first} and {second} are one number in two spellings; write it in one way")

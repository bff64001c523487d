"""Bounds texts, names, counts and numbers from other parties or files before they are used or logged."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
_SURROGATE = re.compile("[\ud800-\udfff]")

MOST_TEXT = 500  # characters of a node's message that are shown
MOST_NAME = 80  # characters of a name that a node gives to anything
MOST_PATH = 300  # shown characters of a file's path: more than one name may have
WHOLE_PATH = 4096  # characters of an output path for `shown`, which then shows it complete
MOST_LINE = 293  # characters of a line of an error: 300 with the command's "error: " before it
MOST_REMEDY = 20_000  # characters of a remedy: paths in its command may have 4,096 each
MOST_LINES = 30  # lines of an error, such as the end of a process's log
MOST_FOUND = 100  # characters of a value in an error
MOST_METRICS = 1000  # numbers of a reply
MOST_SHOWN = 24  # names of a kind on a page or in a table; a folder with more is not trustworthy
LARGEST_COUNT = 10**9  # images, nodes
MOST_LOSS = 1e9  # loss per image, either sign; a model that learns stays below 1e4
MOST_SECONDS = 1e7  # time of a part of a node's work in a round
LARGEST_INTEGER = 2**53  # in arrays: integers are averaged in float64, which is exact up to here
MOST_STYLES = 2000  # images of a node whose statistics are sent one by one
BINS = 16  # of a histogram of pixels, for each channel
MOST_NODES = 10**5  # of a run: a hundred times the largest measured run
MOST_ROUNDS = 10**6  # of a run; and epochs of a round
MOST_OWN = 10_000  # of a dimension of what nodes contribute that is a node's own
MOST_KEPT = 20  # rounds of `keep_rounds`
MOST_BATCH = 10**6  # images of a batch
MOST_CORES = 1024  # threads of a node, cores of a client, clients at a time
MOST_WAIT = 10**8  # three years; the clocks of some systems end at ten times as much
LARGEST_SEED = 2**63 - 1  # limit of torch and of a Flower run's configuration
BLOCK = 1 << 19  # bytes of an array that are processed together, to stay in a core's cache


class Refused(ValueError):  # noqa: N818 (a verdict, not a malfunction)
    """A node's reply that must not be used; the message gives the reason in one short line."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(plain(reason))


class Wild(Refused):
    """A reply refused for numbers that are not finite or out of bounds, such as after diverged training."""


def plain(text: str | None, most: int = MOST_TEXT) -> str:
    """Return a text for the log: one line of at most ``most`` characters, without control characters."""
    text = text or "(no reason given)"
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return cut if cut.isprintable() else "".join(letter if letter.isprintable() else " " for letter in cut)


def shown(name: object, most: int = MOST_PATH) -> str:
    """Return a name of a file or folder, or a file's text, in a form that is safe to print.

    Anyone can name a file: a character that does not print (ESC, a line end, a direction mark) becomes its escape, and
    so does a byte that is not UTF-8. A long text is shortened in the middle.
    """
    text = str(name)
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)
    if len(text) <= most:
        return text
    first = (most - 3) // 3
    return f"{text[:first]}...{text[len(text) - (most - 3 - first) :]}"


def _escaped(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file's name that Python could not decode
        return f"\\x{code - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: a byte of a file's name that is not UTF-8 becomes its escape."""
    return _SURROGATE.sub(lambda found: _escaped(found[0]), text)


def few(named: Mapping[str, T]) -> dict[str, T]:
    """Return at most ``MOST_SHOWN`` entries of a mapping from a file, with names that are safe to show."""
    return {plain(name, MOST_NAME): value for name, value in islice(named.items(), MOST_SHOWN)}


def some(names: Sequence[str], most: int, separator: str = ", ", what: str = "") -> str:
    """Return up to ``most`` names in one line; the rest is counted, as ``and 3 more`` and ``what``."""
    more = len(names) - most
    return separator.join(names[:most]) + (f" and {more} more{what}" if more > 0 else "")


def message(text: str) -> str:
    """Return an error's text as it is shown: at most ``MOST_LINES`` lines of at most ``MOST_LINE`` characters.

    No line has a control character. A long line loses its middle, as it begins with the key or file and ends with what
    is allowed.
    """
    lines = text.split("\n", MOST_LINES)
    shown_lines = lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "..."]
    return "\n".join(plain(shortened(line, MOST_LINE)) if line else line for line in shown_lines)


def as_found(value: object) -> str:
    """Return a value for a message in Python's notation, in at most ``MOST_FOUND`` characters.

    It is fast, however large or deep the value is.
    """
    return shortened(_SHORT.repr(value), MOST_FOUND)


class _Short(reprlib.Repr):
    """Python's own bounded representation, extended to large whole numbers and all kinds of dicts."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, MOST_FOUND, MOST_FOUND, MOST_FOUND
        self.maxdict = self.maxlist = self.maxtuple = 8

    def repr_int(self, x: int, level: int) -> str:
        """Represent a whole number; Python refuses one of thousands of digits."""
        return super().repr_int(x, level) if x.bit_length() <= 300 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shortened(text: str, most: int = MOST_FOUND) -> str:
    """Return a text of at most ``most`` characters: two thirds from its beginning, the rest from its end."""
    if len(text) <= most:
        return text
    begin = (2 * most) // 3
    return f"{text[:begin]} ... {text[len(text) - (most - begin - 5) :]}"


def largest(array: "NDArray[Any]") -> float:
    """Return the largest absolute value without a copy of the array. NaN if there is one, 0 for an empty array."""
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))  # NaN is the first of two that are compared


def check_numbers(name: str, array: "NDArray[Any]", max_value: float) -> float:
    """Return the largest absolute value, after a check that all numbers are finite and plausible.

    Args:
        name: The array's name.
        array: Booleans or real numbers of any shape.
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If one is not.
    """
    if array.dtype.kind == "c":
        raise Refused(f"{name} holds complex numbers")
    size = largest(array)
    if not math.isfinite(size):
        raise Wild(f"{name} holds numbers that are not finite (training diverged? try a lower train.lr)")
    if array.dtype.kind == "f" and size > max_value:
        raise Wild(f"{name} holds {size:.3g}, allowed is {max_value:g} at most (federation.max_value)")
    if array.dtype.kind in "iu" and size > LARGEST_INTEGER:
        raise Refused(f"{name} holds {size:.3g}, allowed is {LARGEST_INTEGER:.3g} at most")
    return size


def whole(value: object, least: int, most: int) -> int | None:
    """Return a whole number from ``least`` to ``most``; None for anything else."""
    if not is_number(value) or not least <= value <= most:
        return None
    return int(value) if value == int(value) else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)

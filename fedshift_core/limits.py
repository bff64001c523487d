"""Bounds of what another party or a file says: texts, names, counts, numbers, before they are used or logged."""

import math
import reprlib
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

MOST_TEXT = 500  # characters of a node's message that are shown
MOST_NAME = 80  # characters of a name that a node gives to anything
MOST_PATH = 300  # characters of a file's path that are shown: more than one name may have
WHOLE_PATH = 4096  # characters of the place of what a command wrote, as `shown` takes them: it is not cut
MOST_LINE = 293  # characters of a line of a mistake: 300 with the command's "error: " before it
MOST_REMEDY = 20_000  # characters of a command that mends a mistake: paths in it may have 4,096 each
MOST_LINES = 30  # lines of a mistake: the end of a process's log is some
MOST_FOUND = 100  # characters of a value that was found and is not allowed
MOST_METRICS = 1000  # numbers of a reply
MOST_SHOWN = 24  # names of a kind on a page or in a table: more of them come from a folder that is not to be trusted
LARGEST_COUNT = 10**9  # images, nodes
MOST_LOSS = 1e9  # of a loss for each image, either sign: those of a model that learns stay below 1e4
MOST_SECONDS = 1e7  # of a part of a node's work in a round
LARGEST_INTEGER = 2**53  # in arrays: integers are averaged in float64, which is exact up to here
MOST_NODES = 10**5  # of a run: a hundred times what FedShift was measured with
MOST_ROUNDS = 10**6  # of a run; and epochs of a round
MOST_KEPT = 20  # rounds that a run is asked to keep the checkpoints of
MOST_BATCH = 10**6  # images of a batch
MOST_CORES = 1024  # threads of a node, cores of a client, clients at a time
MOST_WAIT = 10**8  # three years; the clocks of some systems end at ten times as much
LARGEST_SEED = 2**63 - 1  # what torch, and the configuration of a Flower run, take
BLOCK = 1 << 19  # bytes of an array that are looked at together: they stay in a core's cache


class Refused(ValueError):  # noqa: N818 (a verdict, not a malfunction)
    """A reply of a node that must not be used; the message says why, in one line of bounded length."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(plain(reason))


class Wild(Refused):
    """It is refused for numbers that are not finite or out of bounds, as those of training that diverged are."""


def plain(text: str | None, most: int = MOST_TEXT) -> str:
    """Return a text that may be logged: in one line, without control characters, at most ``most`` characters."""
    text = text or "(no reason given)"
    cut = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def shown(name: object, most: int = MOST_PATH) -> str:
    """Return the name of a local file or folder, or a text out of a file, as it may be printed and logged.

    Anyone can name a file: what does not print (ESC, a line's end, a direction mark) stands as its escape, and so does
    a byte that is no UTF-8, which no terminal could be sent. What is too long is cut in the middle.
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


def few(named: Mapping[str, T], most: int = MOST_SHOWN) -> dict[str, T]:
    """Return the first entries of what a file says, at most ``most``, under names that may be shown."""
    return {plain(name, MOST_NAME): value for name, value in islice(named.items(), most)}


def message(text: str) -> str:
    """Return a mistake as a person is shown it: at most ``MOST_LINES`` lines of at most ``MOST_LINE`` characters.

    No line holds a control character. Of a line that is too long the middle is left out: it begins with the key or
    file and ends with what is allowed.
    """
    lines = text.split("\n", MOST_LINES)
    told = lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES - 1], "..."]
    return "\n".join(plain(shortened(line, MOST_LINE)) if line else line for line in told)


def as_found(value: object) -> str:
    """Return a value that is not allowed as a message shows it: as Python writes it, at most ``MOST_FOUND`` characters.

    It costs little, however large or deep the value is.
    """
    return shortened(_SHORT.repr(value), MOST_FOUND)


class _Short(reprlib.Repr):
    """Python's own bounded representation, for whole numbers of any size and for dicts of any kind."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, MOST_FOUND, MOST_FOUND, MOST_FOUND
        self.maxdict = self.maxlist = self.maxtuple = 8

    def repr1(self, x: Any, level: int) -> str:
        """Represent a dict of any kind as a dict."""
        return self.repr_dict(x, level) if isinstance(x, dict) else super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        """Represent a whole number; Python refuses to write out one of thousands of digits."""
        return super().repr_int(x, level) if x.bit_length() <= 300 else f"a whole number of {x.bit_length()} bits"


_SHORT = _Short()


def shortened(text: str, most: int = MOST_FOUND) -> str:
    """Return a text of at most ``most`` characters: about two thirds of them its beginning, the rest its end."""
    if len(text) <= most:
        return text
    begin = (2 * most) // 3
    return f"{text[:begin]} ... {text[len(text) - (most - begin - 5) :]}"


def largest(array: "NDArray[Any]") -> float:
    """Return the largest absolute value: NaN if there is one, 0 of no numbers; no copy of the array's size is made."""
    import numpy as np  # here: the command line starts without it

    flat, step = array.reshape(-1), max(BLOCK // array.itemsize, 1)
    parts = (flat[i : i + step] for i in range(0, flat.size, step))
    # np.maximum, unlike max, lets NaN through.
    return float(np.max([[float(part.max()), -float(part.min())] for part in parts], initial=0.0))


def check_numbers(name: str, array: "NDArray[Any]", max_value: float) -> float:
    """Check that all numbers are finite and of a plausible size; return the largest absolute value.

    Args:
        name: The array's name.
        array: Booleans or real numbers of any shape.
        max_value: The largest absolute value of a floating-point number.

    Raises:
        Refused: If one is not.
    """
    if array.dtype.kind == "c":
        raise Refused(f"{name} holds complex numbers")
    found = largest(array)
    if not math.isfinite(found):
        raise Wild(f"{name} holds numbers that are not finite (training diverged? try a lower train.lr)")
    if array.dtype.kind == "f" and found > max_value:
        raise Wild(f"{name} holds {found:.3g}, allowed is {max_value:g} at most (federation.max_value)")
    if array.dtype.kind in "iu" and found > LARGEST_INTEGER:
        raise Refused(f"{name} holds {found:.3g}, allowed is {LARGEST_INTEGER:.3g} at most")
    return found


def whole(value: object, least: int, most: int) -> int | None:
    """Return a whole number from ``least`` to ``most``; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        return None
    return int(value) if value == int(value) else None

"""What a person may have meant by a word that is unknown."""

import difflib
from collections.abc import Iterable

from fedshift_core.limits import MOST_FOUND

MOST_NEAR = 2  # words that are offered


def near(word: object, known: Iterable[str], most: int = MOST_NEAR) -> list[str]:
    """Return the known words that a word is most like, the best first; none where it is like none of them."""
    if not isinstance(word, str) or len(word) > MOST_FOUND:
        return []
    words = list(known)
    by_small = {name.lower(): name for name in reversed(words)}  # PACS is pacs, and Fed_Avg nearly fedavg
    found = difflib.get_close_matches(word.lower(), by_small, n=most)
    return [by_small[small] for small in found]


def meant(word: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: what may have been meant; empty where nothing is like it."""
    words = near(word, known)
    return f"; did you mean {' or '.join(words)}?" if words else ""


def begun_with(words: Iterable[str], begun: str) -> list[str]:
    """Return the words that go on from what was begun."""
    return [word for word in words if word.startswith(begun)]

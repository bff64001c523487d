"""Suggests known words for an unknown one."""

import difflib
from collections.abc import Iterable

from fedshift_core.limits import MOST_FOUND

MOST_NEAR = 2  # suggestions


def near(word: object, known: Iterable[str]) -> list[str]:
    """Return the known words that are most similar to a word, best first; empty if none is similar."""
    if not isinstance(word, str) or len(word) > MOST_FOUND:
        return []
    words = list(known)
    by_small = {name.lower(): name for name in reversed(words)}  # PACS matches pacs, and Fed_Avg nearly fedavg
    matches = difflib.get_close_matches(word.lower(), by_small, n=MOST_NEAR)
    return [by_small[small] for small in matches]


def meant(word: object, known: Iterable[str]) -> str:
    """Return a suggestion for the end of a message about an unknown word; empty if no word is similar."""
    words = near(word, known)
    return f"; did you mean {' or '.join(words)}?" if words else ""


def begun_with(words: Iterable[str], start: str) -> list[str]:
    """Return the words that begin with a text."""
    return [word for word in words if word.startswith(start)]

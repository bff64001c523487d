"""Words of a sentence: a number and what it counts (``1 image``, ``2 images``), a first letter."""


def plural(number: int, one: str, many: str = "", form: str = "") -> str:
    """Return a number with the word for what it counts, in the singular for 1.

    Args:
        number: How many.
        one: The word for one of them, other words before it where there are any: ``local epoch``.
        many: The word for several; empty for ``one`` with an s.
        form: How the number is written, as after the colon of an f-string: ``,`` for thousands.
    """
    return f"{number:{form}} {one if number == 1 else many or one + 's'}"


def capital(text: str) -> str:
    """Return a text with a large first letter; names in it stay as they are."""
    return text[:1].upper() + text[1:]

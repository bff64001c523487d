"""The releases of Flower whose internals FedShift patches; others stay unchanged."""

RELEASES = ("1.41.", "1.42.")
RELEASES_TEXT = " and ".join(f"{release}x" for release in RELEASES)


def unread(version: str) -> str:
    """Return a reason if a version of Flower is not one of these; otherwise an empty text."""
    return "" if version.startswith(RELEASES) else f"this is Flower {version}, supported are {RELEASES_TEXT}"

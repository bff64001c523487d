"""The releases of Flower whose inner parts were read; in others FedShift changes nothing of them."""

RELEASES = ("1.41.", "1.42.")
TOLD = " and ".join(f"{release}x" for release in RELEASES)


def unread(found: str) -> str:
    """Return that a version of Flower is none of these; empty if it is one."""
    return "" if found.startswith(RELEASES) else f"this is Flower {found}, read were {TOLD}"

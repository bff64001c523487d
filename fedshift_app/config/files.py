"""The YAML files of ``conf/``."""

from pathlib import Path

CONF = Path(__file__).resolve().parents[2] / "conf"


def names(kind: str) -> list[str]:
    """Return the names of all files of ``conf/<kind>``."""
    return sorted(path.stem for path in (CONF / kind).glob("*.yaml"))

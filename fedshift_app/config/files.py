"""The app's folder, and the YAML files of its ``conf/``."""

from pathlib import Path

#: The folder with pyproject.toml, which ``flwr run`` takes: a checkout, or ``fedshift/app`` of an installed wheel.
APP = Path(__file__).resolve().parents[2]
CONF = APP / "conf"


def names(kind: str) -> list[str]:
    """Return the names of all files of ``conf/<kind>``."""
    return sorted(path.stem for path in (CONF / kind).glob("*.yaml"))

"""The app's folder, and the YAML files of its ``conf/``."""

from fedshift_app import APP as APP

CONF = APP / "conf"


def names(kind: str) -> list[str]:
    """Return the names of all files of ``conf/<kind>``."""
    return sorted(path.stem for path in (CONF / kind).glob("*.yaml"))


def doc_page(page: str) -> str:
    """Return a page of the documentation by its path in a checkout; an installed package says that it is there."""
    return page if (APP / page).is_file() else f"{page} in a checkout of FedShift"

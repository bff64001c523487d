"""The app's folder, and the YAML files of its ``conf/``."""

import shlex

from fedshift_app import APP as APP
from fedshift_app.run.files import CONFIG_FILE
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, shown, some
from fedshift_core.paths import typed_path

CONF = APP / "conf"
_NAMED = 2  # files of a folder that a remedy names


def names(kind: str) -> list[str]:
    """Return the names of all files of ``conf/<kind>``."""
    return sorted(path.stem for path in (CONF / kind).glob("*.yaml"))


def doc_page(page: str) -> str:
    """Return a page of the documentation by its path in a checkout; an installed package says that it is there."""
    return page if (APP / page).is_file() else f"{page} in a checkout of FedShift"


def folder_remedy(given: str) -> str:
    """Return what to type where a folder was given in place of an experiment or a data set.

    Args:
        given: What was given.

    Returns:
        The configuration of a run folder, the YAML files of another folder, or how an experiment is made of images in
        it; empty if there is no such folder.
    """
    try:
        folder = typed_path(given)
    except ConfigError:
        return ""
    if not given or not folder.is_dir():
        return ""
    name, typed = shown(folder, WHOLE_PATH), shown(shlex.quote(str(folder)), WHOLE_PATH)
    if (folder / CONFIG_FILE).is_file():
        file = shown(folder / CONFIG_FILE, WHOLE_PATH)
        return f"{name} is a run folder: its experiment is {file}; `fedshift run resume={typed}` continues the run"
    own = folder / f"{folder.resolve().name}.yaml"  # as `fedshift init` writes it
    found = [own] if own.is_file() else sorted(path for path in folder.glob("*.yaml") if path.is_file())
    if found:
        return f"{name} is a folder: give its file {some([shown(path, WHOLE_PATH) for path in found], _NAMED, ' or ')}"
    return f"{name} is a folder: if it holds images, `fedshift init NAME data-dir={typed}` writes an experiment's file"

"""The versions of the code that a run used: packages, extensions, the commit of a checkout."""

import functools
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from fedshift_app import __version__
from fedshift_app.config.files import APP

if TYPE_CHECKING:
    from fedshift_app.config.sections import RunConfig

VERSIONS_OF = ("flwr", "ray", "torch", "torchvision", "numpy", "scikit-learn", "finch-clust")


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, with ``-dirty`` after changes; empty if the folder is no checkout."""
    if not (checkout / ".git").exists():
        return ""
    try:
        described = subprocess.run(
            ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git here
        return ""
    return described.stdout.strip()


@functools.cache  # this process imports its files once, and so do those that are forked from it
def own_commit() -> str:
    """Return the commit of this copy of FedShift when this process, or the one it was forked from, first asked."""
    return commit(APP)


def installed(name: str) -> str | None:
    """Return the version of a package; None if it is missing."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def versions(config: "RunConfig") -> dict[str, str]:
    """Return the versions of all packages and extensions that decide the numbers of a run."""
    from fedshift_app.config import plugins  # with all sections, a tenth of `fedshift doctor`, which needs none

    known = {"fedshift": __version__, "python": platform.python_version()}
    # Ray is missing where there is no wheel of it: only simulations need it.
    packages = {name: number for name in VERSIONS_OF if (number := installed(name))}
    return known | packages | plugins.brought(config)

"""What is installed under the name FedShift: where the Flower app lies, and the command that runs it.

A wheel holds this package alone, with the whole app in its folder ``app``: the app's packages would not be alone under
their names in an environment (``datasets`` is also Hugging Face's library). In a checkout the app is the checkout.
"""

import os
import sys
from pathlib import Path


def app_dir() -> Path:
    """Return the folder of the Flower app, which holds its pyproject.toml and which ``flwr run`` takes."""
    here = Path(__file__).resolve().parent
    inside = here / "app"
    return inside if (inside / "pyproject.toml").is_file() else here.parent


def put_on_path() -> None:
    """Let this process, and what it starts, import the app's packages before others of their names."""
    folder = str(app_dir())
    sys.path[:] = [folder, *(place for place in sys.path if place != folder)]
    given = os.environ.get("PYTHONPATH", "")
    others = [place for place in given.split(os.pathsep) if place != folder] if given else []
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *others])


def main() -> None:
    """Entry point of the ``fedshift`` command."""
    put_on_path()
    import fedshift_app  # noqa: F401 (first: it says where another package hides ours)
    from fedshift import cli

    cli.main()

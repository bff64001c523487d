"""``fedshift doctor --publish``: the checks of ``flwr app publish`` on a folder, and some more. Nothing is sent."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedshift.run.doctor.diagnostics import Problem
from fedshift_app.flower import sources
from fedshift_core.plural import plural

PUBLISH, CONFIG = "flwr.cli.app_cmd.publish", "flwr.cli.config_utils"
FORMAT = 1  # of the bundle; the Hub takes no other from new apps
LONGEST_DESCRIPTION = 200  # characters
REMEDY = "see https://flower.ai/docs/hub/"


def problems(folder: Path) -> list[Problem]:
    """Return the problems that Flower Hub would have with a folder."""
    import click

    if problem := sources.other_source(PUBLISH, CONFIG):
        return [Problem(f"what the Hub refuses cannot be told: {problem}", REMEDY)]
    from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_app_name, _validate_files
    from flwr.cli.config_utils import load_and_validate

    found: list[str] = []

    def passed(check: Callable[..., Any], *given: Any) -> Any:
        """Return what a check of Flower returns; None where it refuses."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return check(*given)
        except (click.ClickException, ValueError) as error:
            found.append(" ".join(getattr(error, "message", str(error)).split()))

    loaded: tuple[dict[str, Any], list[str]] | None = passed(load_and_validate, folder / "pyproject.toml", False)
    config, warnings = loaded or ({}, [])
    project, app = config.get("project", {}), config.get("tool", {}).get("flwr", {}).get("app", {})
    description = str(project.get("description", "")).strip()
    passed(_validate_app_name, folder.name, "the folder's name")
    if config:
        passed(_validate_app_name, str(project["name"]), "project.name")
    files = passed(_collect_file_paths, folder)
    if files is not None:
        passed(_validate_files, files)
    length, version = len(description), app.get("fab-format-version")
    of_length = f"project.description has {plural(length, 'character')}, the Hub accepts 1 to {LONGEST_DESCRIPTION}"
    own: dict[str, Any] = {
        f"fab-format-version is {version or 'not set'}, the Hub accepts {FORMAT}": config and version != FORMAT,
        of_length: config and not 0 < length <= LONGEST_DESCRIPTION,
        "no README.md would be uploaded": files and folder.resolve() / "README.md" not in files,
    }
    return [Problem(line, REMEDY) for line in (*found, *warnings, *(line for line, holds in own.items() if holds))]

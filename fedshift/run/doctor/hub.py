"""Runs the checks of Flower's `flwr app publish` on a folder, without sending it."""

import re
from pathlib import Path

from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")  # of an app
LIMITS = 1_000, 2**20, 10 * 2**20  # number of files, bytes of one file, bytes of all files


def refusals(folder: Path) -> list[str]:
    """Return Flower's refusals and warnings on the folder's pyproject.toml and name, one per line."""
    import click
    from flwr.cli.config_utils import load_and_validate

    names = {"the folder's name": folder.name}
    try:
        config, lines = load_and_validate(folder / "pyproject.toml", check_module=False)
        names["project.name"] = str(config["project"]["name"])
    except (click.ClickException, ValueError) as error:
        lines = [" ".join(str(error).split())]
    wrong = [f'{what} "{name}" is invalid' for what, name in names.items() if not NAME.fullmatch(name)]
    return lines + [f"{line}: expected a letter, then at most 31 letters, digits and hyphens" for line in wrong]


def uploaded(folder: Path) -> dict[str, Path]:
    """Return the files that would be sent, by their path in the folder.

    Raises:
        ConfigError: If Flower refuses all of them because one lies too deep.
    """
    from flwr.cli.utils import filter_paths_for_publish

    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if _is_sent(folder, path)}
    try:
        return {name: Path(str(path)) for name, path in filter_paths_for_publish({**files}).items()}
    except ValueError as error:
        raise ConfigError(f"{shown(folder)}: {' '.join(str(error).split())}") from None


def _is_sent(folder: Path, path: Path) -> bool:
    inside = path.resolve().is_relative_to(folder.resolve())
    return path.is_file() and not path.is_symlink() and inside


def limits() -> tuple[int, int, int]:
    """Return Flower's limits: number of files, bytes of one file, bytes of all files."""
    return LIMITS

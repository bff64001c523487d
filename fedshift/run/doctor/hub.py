"""Runs the checks of Flower's `flwr app publish` on a folder, without sending it."""

from pathlib import Path

from fedshift_core.errors import ConfigError


def refusals(folder: Path) -> list[str]:
    """Return Flower's refusals and warnings on the folder's pyproject.toml and name, one per line."""
    import click
    from flwr.cli.config_utils import load_and_validate
    from flwr.cli.utils import validate_project_name

    lines = []
    try:
        config, warnings = load_and_validate(folder / "pyproject.toml", check_module=False)
        lines += warnings
        validate_project_name(str(config["project"]["name"]), "project.name")
    except (click.ClickException, ValueError) as error:
        lines.append(_line(error))
    try:
        validate_project_name(folder.name, "the folder's name")
    except ValueError as error:
        lines.append(_line(error))
    return lines


def uploaded(folder: Path) -> dict[str, Path]:
    """Return the files that would be sent, by their path in the folder.

    Raises:
        ConfigError: If Flower refuses all of them because one lies too deep.
    """
    from flwr.cli.utils import AppPathDepthError, collect_files, filter_paths_for_publish

    try:
        taken = filter_paths_for_publish(collect_files(folder))
    except (AppPathDepthError, ValueError) as error:
        raise ConfigError(_line(error)) from None
    return {name: path for name, path in taken.items() if isinstance(path, Path)}


def limits() -> tuple[int, int, int]:
    """Return Flower's limits: number of files, bytes of one file, bytes of all files."""
    from flwr.supercore.constant import MAX_FILE_BYTES, MAX_FILE_COUNT, MAX_TOTAL_BYTES

    return MAX_FILE_COUNT, MAX_FILE_BYTES, MAX_TOTAL_BYTES


def _line(error: Exception) -> str:
    return " ".join(str(error).split())

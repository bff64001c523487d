"""Shell completion; lists are read only when a shell requests them, which keeps commands fast."""

import typer

from fedshift_core.spelling import begun_with


def arguments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``[EXPERIMENT] [KEY=VALUE ...]``."""
    before = [str(word) for word in ctx.params.get("arguments") or ()]
    if before[-2:] == ["method", "="]:  # bash cuts a word there
        return methods(incomplete)
    if incomplete.startswith("method="):
        return [f"method={name}" for name in methods(incomplete.removeprefix("method="))]
    from fedshift.catalog import words

    return words.arguments(ctx, incomplete)


def evaluate(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``MODEL ... [KEY=VALUE ...]``: folders, and keys without those that train."""
    from pathlib import Path

    before = [str(word) for word in ctx.params.get("arguments") or ()]
    if "=" in incomplete or before[-1:] == ["="]:
        return arguments(ctx, incomplete)
    from fedshift.catalog import words
    from fedshift.evaluate import keys

    start = Path(incomplete).expanduser()
    parent = start if incomplete.endswith("/") or not incomplete else start.parent
    folders = sorted(parent.iterdir()) if parent.is_dir() else []
    given = incomplete.rpartition("/")
    named = [f"{given[0]}{given[1]}{path.name}" for path in folders if path.is_dir() and path.name[0] != "."]
    return [
        *(name for name in named if name.startswith(incomplete)),
        *(word for word in words.arguments(ctx, incomplete) if word.endswith("=") and keys.allowed(word[:-1])),
    ]


def costs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``METHOD... [EXPERIMENT] [KEY=VALUE ...]``."""
    return [*methods(incomplete), *arguments(ctx, incomplete)]


def methods(incomplete: str) -> list[str]:
    """Complete the name of a method, after a comma too; no method's file or package is read for it."""
    from fedshift_app.config import files
    from fedshift_core import extensions

    first, comma, last = incomplete.rpartition(",")
    names = dict.fromkeys([*files.names("methods"), *extensions.offered("fedshift.methods")])
    return [f"{first}{comma}{name}" for name in begun_with(names, last)]


def data_sets(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from fedshift_datasets import catalog

    return begun_with(catalog.DATASETS, incomplete)


def prepared(incomplete: str) -> list[str]:
    """Complete the name of a data set or experiment."""
    return list(dict.fromkeys([*data_sets(incomplete), *experiments(incomplete)]))


def experiments(incomplete: str) -> list[str]:
    """Complete the name of an experiment."""
    from fedshift_app.config import files

    return begun_with(files.names("experiments"), incomplete)


def networks(incomplete: str) -> list[str]:
    """Complete the name of a network."""
    from fedshift_clients.models.catalog import NETWORKS

    return begun_with(NETWORKS, incomplete)


def cached(incomplete: str) -> list[str]:
    """Complete the name of images or features that are kept."""
    from fedshift.data import inventory

    return begun_with(inventory.names(), incomplete)


def nodes(incomplete: str) -> list[str]:
    """Complete the name of a real node of this machine."""
    from fedshift.site import nodes as here

    return begun_with(here.names(), incomplete)

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
    from fedshift.run.catalog import words

    return words.arguments(ctx, incomplete)


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

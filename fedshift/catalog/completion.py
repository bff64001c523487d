"""What a shell completes; a list is read only when a shell asks for it, so that a command starts without them."""

from collections.abc import Iterable

import typer


def arguments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``[EXPERIMENT] [KEY=VALUE ...]``."""
    from fedshift.catalog import words

    return words.arguments(ctx, incomplete)


def costs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``METHOD... [EXPERIMENT] [KEY=VALUE ...]``."""
    return [*methods(incomplete), *arguments(ctx, incomplete)]


def methods(incomplete: str) -> list[str]:
    """Complete the name of a method."""
    from fedshift_app.config import registry

    return begin(registry.METHODS, incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Complete the name of a data set."""
    from datasets import catalog

    return begin(catalog.DATASETS, incomplete)


def experiments(incomplete: str) -> list[str]:
    """Complete the name of an experiment."""
    from fedshift_app.config import files

    return begin(files.names("experiments"), incomplete)


def networks(incomplete: str) -> list[str]:
    """Complete the name of a network."""
    from clients.models.catalog import NETWORKS

    return begin(NETWORKS, incomplete)


def begin(words: Iterable[str], begun: str) -> list[str]:
    """Return the words that go on from what was begun."""
    return [word for word in words if word.startswith(begun)]

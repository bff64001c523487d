"""Shell completion of names, keys and values; lists are read only when a shell requests them: commands stay fast.

bash cuts a word at ``=``: of ``method=fed`` it completes ``fed`` and gives ``method`` and ``=`` as words before it.
zsh and fish complete ``method=fed`` as one word.
"""

from collections.abc import Callable, Iterable

import typer

from fedshift_core.spelling import begun_with


def arguments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``[EXPERIMENT] [KEY=VALUE ...]``."""
    before = [str(word) for word in ctx.params.get("arguments") or ()]
    if before[-1:] == ["="] and len(before) > 1:  # bash
        return _listed(before[-2], incomplete)
    key, sep, begun = incomplete.partition("=")
    if sep:
        return [f"{key}={value}" for value in _listed(key, begun)]
    from fedshift_app.config import dotted_keys, files
    from fedshift_app.config.arguments import LAUNCH_KEYS, WITHOUT_DOT
    from fedshift_app.config.resolving import FLAT_KEYS

    names = [] if before else files.names("experiments")
    dotted = (key for key in dotted_keys.known() if "." in key or key in WITHOUT_DOT)
    keys = (*FLAT_KEYS, *LAUNCH_KEYS, *dotted)
    return [word for word in (*names, *(f"{key}=" for key in keys)) if word.startswith(incomplete)]


def costs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete ``METHOD... [EXPERIMENT] [KEY=VALUE ...]``."""
    return [*methods(incomplete), *arguments(ctx, incomplete)]


def _names_of(key: str) -> Callable[[str], list[str]]:
    """Return what completes a name, after a comma too; no file or package of a method is read for it."""

    def complete(incomplete: str) -> list[str]:
        return _listed(key, incomplete)

    return complete


methods, data_sets = _names_of("method"), _names_of("dataset")
experiments, networks = _names_of("experiment"), _names_of("model.name")


def prepared(incomplete: str) -> list[str]:
    """Complete the name of a data set or experiment."""
    return list(dict.fromkeys([*data_sets(incomplete), *experiments(incomplete)]))


def _listed(key: str, begun: str) -> list[str]:
    """Return the values of a key that complete ``begun``: with commas, its last value."""
    first, comma, last = begun.rpartition(",")
    return [f"{first}{comma}{value}" for value in begun_with(values(key), last)]


def values(key: str) -> tuple[str, ...]:
    """Return the names that a key takes; none for other keys."""
    from fedshift_app.config import files

    if key == "experiment":
        return tuple(files.names("experiments"))
    if key in ("method", "method.name"):
        from fedshift_core import extensions

        return tuple(dict.fromkeys([*files.names("methods"), *extensions.offered("fedshift.methods")]))
    if key in ("dataset", "dataset.name"):
        from fedshift_datasets import catalog

        return tuple(catalog.DATASETS)
    from fedshift_app.config import registry
    from fedshift_app.config.arguments import WORDS
    from fedshift_clients.models.catalog import NETWORKS
    from fedshift_clients.models.packages import PREFIX, WEIGHTS
    from fedshift_core.extensions import OURS

    named: dict[str, Iterable[str]] = {
        "model.name": NETWORKS,
        "modules": registry.MODULES,
        "adapt.name": registry.ADAPTATIONS,
        "model.weights": (f"{PREFIX}{name}" for name in WEIGHTS),
        **WORDS,
        "features": (name for name in registry.FEATURES if registry.FEATURES.origin(name) != OURS),
    }
    return tuple(named.get(key, ()))

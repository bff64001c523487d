"""``fedshift cache``: lists, verifies and deletes decoded images and computed features."""

import json
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

import typer

from fedshift.data import inventory
from fedshift.data.inventory import Entry
from fedshift.run import columns as tables
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_datasets.io import cache, kept

DAY = 86_400
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_AGES = ((DAY, "days"), (3600, "h"), (60, "min"), (1, "s"))


def listed(*, as_json: bool) -> str:
    """Return a table of all that the cache holds, or one JSON object."""
    held, folder = inventory.entries(), shown(cache.cache_dir(), WHOLE_PATH)
    total = sum(entry.bytes for entry in held)
    if as_json:
        rows = [_fields(entry) for entry in held]
        return json.dumps({"folder": str(cache.cache_dir()), "bytes": total, "entries": rows}, indent=2)
    builds, size = inventory.interrupted()
    words = plural(builds, "build", "builds")
    more = f"in addition {words} in progress or interrupted, {size_of(size)}" if builds else ""
    if not held:
        return "\n".join(filter(None, (f"{folder}: no images and no features are kept", more)))
    head = ("kind", "name", "number", "size", "last", "used by")
    lines = tables.columns([head, *(_cells(entry) for entry in held)], "", ruled=True)
    counts = ", ".join(
        f"{plural(sum(entry.kind == kind for entry in held), *words)} ({size_of(_bytes(held, kind))})"
        for kind, words in (("images", ("part of images", "parts of images")), ("features", ("store of features",
        "stores of features")))
    )  # fmt: skip
    return "\n".join(filter(None, (*lines, f"total: {counts}: {size_of(total)} in {folder}", more)))


def verify(names: Sequence[str]) -> int:
    """Check all checksums of what is named, or of everything; print what is damaged. Nothing is changed.

    Returns:
        The exit code: 1 if anything is damaged.

    Raises:
        ConfigError: If a name is unknown.
    """
    held = inventory.entries()
    chosen = _named(held, names) if names else held
    damaged = 0
    for entry in chosen:
        if (damage := entry.damage()) and entry.path.exists():  # another process may have deleted it
            damaged += 1
            typer.echo(f"damaged: {shown(entry.name)}: {damage}")
    looked_at = f"{len(chosen)} checked, {size_of(sum(entry.bytes for entry in chosen))}"
    if damaged:
        typer.echo(f"{looked_at}: {damaged} damaged; the next run that reads one makes what is damaged again")
        return 1
    typer.echo(f"{looked_at}: all checksums agree")
    return 0


def delete(
    names: Sequence[str], *, unused: float | None, features: bool, images: bool, everything: bool, yes: bool
) -> int:
    """Delete what is named or chosen, after a question; print what was freed.

    Args:
        names: Of entries; ``*`` stands for any letters.
        unused: Only what was last used so many days ago or earlier; None for any.
        features: All features.
        images: All images.
        everything: Both.
        yes: Do not ask.

    Returns:
        The exit code: 1 if something was left because a process writes it.

    Raises:
        ConfigError: If a name is unknown, the choice is none or contradictory, or nobody can be asked.
    """
    by_kind = features or images or everything
    if names and (by_kind or unused is not None):
        raise ConfigError("cache delete: give NAME, or --unused, --features, --images, --all, not both")
    if not names and not by_kind and unused is None:
        raise ConfigError("cache delete: give NAME, --unused DAYS, --features, --images or --all; found none")
    held = inventory.entries()
    chosen = _named(held, names) if names else held
    if (features or images) and not everything:
        chosen = [entry for entry in chosen if (features if entry.kind == "features" else images)]
    if unused is not None:
        chosen = [entry for entry in chosen if time.time() - entry.time >= unused * DAY]
    if chosen and not yes:
        _ask(chosen)
    code = _deleted(chosen) if chosen else 0
    lists = cache.remove_lists() if (images or everything) and unused is None else 0
    if lists:
        typer.echo(f"deleted {plural(lists, 'list')} of file names")
    elif not chosen:
        typer.echo("nothing to delete")
    return code


def _ask(chosen: Sequence[Entry]) -> None:
    """Ask whether to delete; no ends the command.

    Raises:
        ConfigError: If nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise ConfigError("cache delete: standard input is no terminal, so nobody can be asked; allowed with --yes")
    for entry in chosen:
        typer.echo("  ".join((entry.kind, shown(entry.name), size_of(entry.bytes))))
    typer.confirm(f"Delete these {len(chosen)} ({size_of(sum(entry.bytes for entry in chosen))})?", abort=True)


def _deleted(chosen: Sequence[Entry]) -> int:
    """Delete entries, and return the exit code."""
    freed, left = 0, 0
    for entry in chosen:
        if entry.delete():
            freed += entry.bytes
            typer.echo(f"deleted {shown(entry.name)} ({size_of(entry.bytes)})")
        else:
            left += 1
            typer.echo(f"left {shown(entry.name)}: a process is writing it", err=True)
    if any(entry.kind == "images" for entry in chosen):
        kept.remove_abandoned()
    typer.echo(f"freed {size_of(freed)}")
    return 1 if left else 0


def _named(held: Sequence[Entry], names: Sequence[str]) -> list[Entry]:
    """Return the entries of these names, each once.

    Raises:
        ConfigError: If a name is unknown.
    """
    chosen: dict[str, Entry] = {}
    for name in names:
        matches = [entry for entry in held if entry.name == name or ("*" in name and fnmatchcase(entry.name, name))]
        if not matches and inventory.is_link(name):
            raise ConfigError(f"cache: {as_found(name)} is a link; links are neither checked nor deleted")
        if not matches:
            raise ConfigError(
                f"cache: nothing is named {as_found(name)}; `fedshift cache` lists "
                f"{plural(len(held), 'name', 'names')}"
                f"{meant(name, [entry.name for entry in held])}"
            )
        chosen |= {entry.name: entry for entry in matches}
    return list(chosen.values())


def size_of(number: float) -> str:
    """Return bytes in a unit that is easy to read."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:,.1f} {name}"
    return f"{number:.0f} bytes"


def _age(seconds: float) -> str:
    """Return how long ago something was."""
    for unit, name in _AGES:
        if seconds >= 2 * unit:
            return f"{seconds // unit:,.0f} {name} ago"
    return "now"


def _bytes(held: Sequence[Entry], kind: str) -> int:
    return sum(entry.bytes for entry in held if entry.kind == kind)


def _cells(entry: Entry) -> tuple[str, ...]:
    """Return the row of an entry."""
    words = "images" if entry.kind == "images" else "rows"
    number = "damaged" if entry.number is None else f"{entry.number:,} {words}"
    last = f"used {_age(time.time() - entry.time)}"
    return entry.kind, shown(entry.name), number, size_of(entry.bytes), last, entry.users


def _fields(entry: Entry) -> dict[str, object]:
    """Return what JSON says of an entry."""
    return {
        "kind": entry.kind, "name": entry.name, "number": entry.number, "bytes": entry.bytes, "last": "used",
        "time": entry.time, "about": dict(entry.about),
    }  # fmt: skip

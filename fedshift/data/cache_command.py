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
_JSON = ("kind", "name", "number", "bytes", "time")


def listed(*, as_json: bool) -> str:
    """Return a table of all that the cache holds, or one JSON object."""
    held, folder = inventory.entries(), cache.cache_dir()
    if as_json:
        rows = [
            {key: getattr(entry, key) for key in _JSON} | {"last": "used", "about": dict(entry.about)} for entry in held
        ]
        return json.dumps({"folder": str(folder), "bytes": _bytes(held), "entries": rows}, indent=2)
    if not held:
        return f"{shown(folder, WHOLE_PATH)}: no images and no features are kept"
    head = ("kind", "name", "number", "size", "last", "used by")
    parts, stores = ([entry for entry in held if entry.kind == kind] for kind in ("images", "features"))
    total = (
        f"total: {plural(len(parts), 'part of images', 'parts of images')} ({size_of(_bytes(parts))}), "
        f"{plural(len(stores), 'store of features', 'stores of features')} ({size_of(_bytes(stores))}): "
        f"{size_of(_bytes(held))} in {shown(folder, WHOLE_PATH)}"
    )
    return "\n".join([*tables.columns([head, *map(_cells, held)], "", ruled=True), total])


def verify(names: Sequence[str] | None) -> int:
    """Check all checksums of what is named, or of everything; print what is damaged. Nothing is changed.

    Returns:
        The exit code: 1 if anything is damaged.

    Raises:
        ConfigError: If a name is unknown.
    """
    chosen, damaged = _named(names), 0
    for entry in chosen:
        if (damage := entry.damage()) and entry.path.exists():  # another process may have deleted it
            damaged += 1
            typer.echo(f"damaged: {shown(entry.name)}: {damage}")
    outcome = f"{damaged} damaged; the next run that reads one makes what is damaged again"
    typer.echo(f"{len(chosen)} checked, {size_of(_bytes(chosen))}: {outcome if damaged else 'all checksums agree'}")
    return int(damaged > 0)


def delete(
    names: Sequence[str] | None, *, unused: float | None, features: bool, images: bool, everything: bool, yes: bool
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
    kinds = {"features": features or everything, "images": images or everything}
    by_kind = any(kinds.values())
    if bool(names) == (by_kind or unused is not None):
        found = "found both" if names else "found none"
        raise ConfigError(
            f"cache delete: give NAME, or --unused DAYS, --features, --images or --all, not both; {found}"
        )
    age = 0 if unused is None else unused * DAY
    chosen = [
        entry for entry in _named(names)
        if (kinds[entry.kind] or not by_kind) and (unused is None or time.time() - entry.time >= age)
    ]  # fmt: skip
    if chosen and not yes:
        _ask(chosen)
    code = _deleted(chosen) if chosen else 0
    lists = cache.remove_lists() if kinds["images"] and unused is None else 0
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
        typer.echo(f"{entry.kind}  {shown(entry.name)}  {size_of(entry.bytes)}")
    typer.confirm(f"Delete these {len(chosen)} ({size_of(_bytes(chosen))})?", abort=True)


def _deleted(chosen: Sequence[Entry]) -> int:
    """Delete entries, and return the exit code."""
    freed = []
    for entry in chosen:
        if entry.delete():
            freed.append(entry)
            typer.echo(f"deleted {shown(entry.name)} ({size_of(entry.bytes)})")
        else:
            typer.echo(f"left {shown(entry.name)}: a process is writing it", err=True)
    if any(entry.kind == "images" for entry in chosen):
        kept.remove_abandoned()
    typer.echo(f"freed {size_of(_bytes(freed))}")
    return int(len(freed) < len(chosen))


def _named(names: Sequence[str] | None) -> list[Entry]:
    """Return the entries of these names, each once; without names all.

    Raises:
        ConfigError: If a name is unknown.
    """
    held = inventory.entries()
    chosen: dict[str, Entry] = {} if names else {entry.name: entry for entry in held}
    for name in names or ():
        matches = [entry for entry in held if entry.name == name or ("*" in name and fnmatchcase(entry.name, name))]
        if not matches and inventory.is_link(name):
            raise ConfigError(f"cache: {as_found(name)} is a link; links are neither checked nor deleted")
        if not matches:
            near = meant(name, [entry.name for entry in held])
            raise ConfigError(
                f"cache: nothing is named {as_found(name)}; `fedshift cache` lists {plural(len(held), 'name')}{near}"
            )
        chosen |= {entry.name: entry for entry in matches}
    return list(chosen.values())


def size_of(number: float) -> str:
    """Return bytes in a unit that is easy to read."""
    unit, name = next((each for each in _UNITS if number >= each[0]), (1, ""))
    return f"{number / unit:,.1f} {name}" if name else f"{number:.0f} bytes"


def _bytes(entries: Sequence[Entry]) -> int:
    return sum(entry.bytes for entry in entries)


def _cells(entry: Entry) -> tuple[str, ...]:
    """Return the row of an entry."""
    words = "images" if entry.kind == "images" else "rows"
    number = "damaged" if entry.number is None else f"{entry.number:,} {words}"
    past = time.time() - entry.time
    ago = next((f"{past // unit:,.0f} {name} ago" for unit, name in _AGES if past >= 2 * unit), "now")
    return entry.kind, shown(entry.name), number, size_of(entry.bytes), f"used {ago}", entry.users

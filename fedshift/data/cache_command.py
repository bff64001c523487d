"""``fedshift cache``: lists, verifies and deletes decoded images and computed features.

Only what has the name and place of a part or store is looked at, and no link is followed: nothing outside the cache
folder is touched. This module imports neither torch nor Flower.
"""

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import typer
from rich.filesize import decimal

from fedshift.run import columns as tables
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, as_found, plain, shown
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_datasets import catalog
from fedshift_datasets.io import cache, feature_store, kept
from fedshift_datasets.io.kept import Kept

DAY = 86_400
_AGES = ((DAY, "days"), (3600, "h"), (60, "min"), (1, "s"))
_JSON = ("kind", "name", "number", "bytes", "time")
_STORED = ("network", "depth", "weights", "size", "view", "arithmetic")  # what is shown of a store

Kind = Literal["images", "features"]

_PART = re.compile(
    r"(?P<head>.+)-(?P<split>train|validation|test)(?P<form>(?:-crop|-pad)?(?:-w.+?to.+?)?(?:-exif)?)"
    r"-(?P<size>\d+)px-[0-9a-f]{16}"
)  # of ``cache.Part.stem`` and the fingerprint


@dataclass(frozen=True)
class Entry:
    """A part of images, or a store of features.

    Attributes:
        kind: Which of both.
        path: Its file; the file's name is the entry's name.
        bytes: Its size.
        number: Of its images or rows; None if that cannot be read.
        time: When it was last used, in seconds since 1970.
        about: What it is of.
        users: What uses it, in words.
    """

    kind: Kind
    path: Path
    bytes: int
    number: int | None
    time: float
    about: Mapping[str, Any]
    users: str

    @property
    def name(self) -> str:
        """Its name in the cache."""
        return self.path.name

    def damage(self) -> str:
        """Return what is damaged, in words; empty if all digests agree. Nothing is changed."""
        file = kept.read(self.path, check=True)
        if not file.chunks:
            return "cannot be read, or was cut off"
        return f"damaged or cut off after {file.end:,} of {file.size:,} bytes" if file.end < file.size else ""

    def delete(self) -> bool:
        """Delete it, unless a process is writing it; return whether that was done.

        Processes that read it keep what they have mapped.

        Raises:
            OSError: If this user may not delete it.
        """
        return kept.removed(self.path)


def names() -> list[str]:
    """Return the names of all entries, without a look into them."""
    return [path.name for _, path in _paths()]


def entries() -> list[Entry]:
    """Return all that the cache holds: images, then features, by name."""
    held = (_entry(kind, kept.read(path, check=False)) for kind, path in _paths())
    return [entry for entry in held if entry.path.exists()]  # another process may have deleted it


def _paths() -> list[tuple[Kind, Path]]:
    """Return the parts of images, some of them folders of an earlier version, then the stores of features; no links."""
    parts = (path for path in cache.cache_dir().glob("[!.]*") if _PART.fullmatch(path.name) and not path.is_symlink())
    stores = [] if feature_store.root().is_symlink() else feature_store.stores()
    return [*(("images", path) for path in sorted(parts)), *(("features", path) for path in stores)]


def _entry(kind: Kind, file: Kept) -> Entry:
    about, users = _of_images(file) if kind == "images" else _of_store(file)
    number = file.number if file.chunks else None
    users = users or "unknown: the file cannot be read"
    return Entry(kind, file.path, kept.size_of(file.path), number, cache.last_used(file.path), about, users)


def _of_images(file: Kept) -> tuple[dict[str, Any], str]:
    """Return what a part of images is of, and what uses it; empty if that cannot be read."""
    match = _PART.fullmatch(file.path.name)
    assert match is not None
    head = match["head"]
    known = (f"{name}{own}" for name in catalog.DATASETS for own in ("", "-own"))  # either part may have a hyphen
    dataset = max((name for name in known if head.startswith(f"{name}-")), key=len, default=head.partition("-")[0])
    about = {
        "dataset": dataset,
        "domain": head[len(dataset) + 1 :],
        "split": match["split"],
        "size": int(match["size"]),
        "form": match["form"].removeprefix("-") or "squash",
    }
    if (origin := file.about.get("origin")) is None:
        return about, ""
    there = Path(origin).is_dir()
    users = shown(origin) + ("" if there else " (not there any more)")
    return about | {"origin": origin, "origin_exists": there}, users


def _of_store(file: Kept) -> tuple[dict[str, Any], str]:
    """Return what a store of features is of, and what uses it; empty if that cannot be read."""
    if not file.chunks:
        return {}, ""
    first = file.chunks[0].about
    about = {"view": 0} | first["of"] | {"shape": first["row"], "dtype": first["dtype"]}
    of = {key: plain(str(about.get(key, "?")), MOST_NAME) for key in _STORED}
    view = f"view {of['view']}, augmented" if about["view"] else "images as they are"
    users = f"{of['network']} {of['depth']}, weights {of['weights']:.12}, {of['size']} px, {view}, {of['arithmetic']}"
    return about, users


def listed(*, as_json: bool) -> str:
    """Return a table of all that the cache holds, or one JSON object."""
    held, folder = entries(), cache.cache_dir()
    if as_json:
        rows = [
            {key: getattr(entry, key) for key in _JSON} | {"last": "used", "about": dict(entry.about)} for entry in held
        ]
        return json.dumps({"folder": str(folder), "bytes": sum(e.bytes for e in held), "entries": rows}, indent=2)
    if not held:
        return f"{shown(folder, WHOLE_PATH)}: no images and no features are kept"
    head = ("kind", "name", "number", "size", "last", "used by")
    parts, stores = ([entry for entry in held if entry.kind == kind] for kind in ("images", "features"))
    total = (
        f"total: {plural(len(parts), 'part of images', 'parts of images')} ({_size(parts)}), "
        f"{plural(len(stores), 'store of features', 'stores of features')} ({_size(stores)}): "
        f"{_size(held)} in {shown(folder, WHOLE_PATH)}"
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
    typer.echo(f"{len(chosen)} checked, {_size(chosen)}: {outcome if damaged else 'all checksums agree'}")
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
        entry
        for entry in _named(names)
        if (kinds[entry.kind] or not by_kind) and (unused is None or time.time() - entry.time >= age)
    ]
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
        typer.echo(f"{entry.kind}  {shown(entry.name)}  {decimal(entry.bytes)}")
    typer.confirm(f"Delete these {len(chosen)} ({_size(chosen)})?", abort=True)


def _deleted(chosen: Sequence[Entry]) -> int:
    """Delete entries, and return the exit code."""
    freed = []
    for entry in chosen:
        if entry.delete():
            freed.append(entry)
            typer.echo(f"deleted {shown(entry.name)} ({decimal(entry.bytes)})")
        else:
            typer.echo(f"left {shown(entry.name)}: a process is writing it", err=True)
    if any(entry.kind == "images" for entry in chosen):
        kept.remove_abandoned()
    typer.echo(f"freed {_size(freed)}")
    return int(len(freed) < len(chosen))


def _named(names: Sequence[str] | None) -> list[Entry]:
    """Return the entries of these names, each once; without names all.

    Raises:
        ConfigError: If a name is unknown.
    """
    held = entries()
    chosen: dict[str, Entry] = {} if names else {entry.name: entry for entry in held}
    for name in names or ():
        matches = [entry for entry in held if entry.name == name or ("*" in name and fnmatchcase(entry.name, name))]
        folders = (cache.cache_dir(), feature_store.root())
        if not matches and Path(name).name == name and any((folder / name).is_symlink() for folder in folders):
            raise ConfigError(f"cache: {as_found(name)} is a link; links are neither checked nor deleted")
        if not matches:
            near = meant(name, [entry.name for entry in held])
            raise ConfigError(
                f"cache: nothing is named {as_found(name)}; `fedshift cache` lists {plural(len(held), 'name')}{near}"
            )
        chosen |= {entry.name: entry for entry in matches}
    return list(chosen.values())


def _size(entries: Sequence[Entry]) -> str:
    return decimal(sum(entry.bytes for entry in entries))


def _cells(entry: Entry) -> tuple[str, ...]:
    """Return the row of an entry."""
    words = "images" if entry.kind == "images" else "rows"
    number = "damaged" if entry.number is None else f"{entry.number:,} {words}"
    past = time.time() - entry.time
    ago = next((f"{past // unit:,.0f} {name} ago" for unit, name in _AGES if past >= 2 * unit), "now")
    return entry.kind, shown(entry.name), number, decimal(entry.bytes), f"used {ago}", entry.users

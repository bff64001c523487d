"""``fedshift get``: an image set of the Hugging Face hub as a folder of images (extra ``hub``).

Of each parquet or zip file the images are written as they are, ``<domain>/[<split>/]<class>/``; then the file is
deleted. A record says from which revision they came and which files are done: the same command goes on after an
interruption.
"""

import contextlib
import hashlib
import itertools
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer
from rich.filesize import decimal

from fedshift_core import disk_use
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.limits import as_found, plain, shown
from fedshift_core.plural import plural
from fedshift_datasets.io import fetched, layout, pictures
from fedshift_datasets.io.fetched import Part, Record
from fedshift_datasets.sets import camelyon, domainnet, folders, isic, pacs

EXTRA = 'pip install "fedshift[hub]"'
#: Names of columns of other sets than ours.
COLUMNS = {"image": "image", "label": "label", "domain": "domain"}
CONVERTED = "refs/convert/parquet"  # the hub's own conversion, of repositories without parquet files
SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}
_SPLIT = re.compile(rf"(?:^|[/_.-])({'|'.join(SPLITS)})(?=[/_.-])")
_BATCH = 64  # rows that are read at a time
MOST_IMAGE = 1 << 28  # bytes of an image of a zip file
DOWNLOAD = ".download"  # the file that is being fetched


@dataclass(frozen=True)
class Known:
    """A data set as the hub has it.

    Attributes:
        repository: Its repository.
        columns: Its columns of images, labels and domains.
        domains: The names of domains that are numbers there.
        classes: The names of classes, in the order of their numbers there; empty for those that the file states.
        own: Whether one of our data sets of this name reads the folder; otherwise ``folders`` does.
    """

    repository: str
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    domains: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    own: bool = False


_CENTER = COLUMNS | {"domain": "center"}
#: Columns and names are those that the sets' cards state.
KNOWN = {
    pacs.NAME: Known("flwrlabs/pacs", own=True),
    "office-home": Known("flwrlabs/office-home"),
    domainnet.NAME: Known("wltjr1007/DomainNet", own=True),
    isic.NAME: Known("flwrlabs/fed-isic2019", _CENTER, isic.DOMAINS, isic.CLASSES, own=True),
    camelyon.NAME: Known("wltjr1007/Camelyon17-WILDS", _CENTER, camelyon.DOMAINS, camelyon.CLASSES),
}


def get(
    name: str, *, to: Path | None, accept: bool, revision: str, files: str, image: str, label: str, domain: str
) -> str:
    """Fetch a set, or what of it is missing, and return what there is now and the next command.

    Args:
        name: One of ``KNOWN``, or ``OWNER/NAME``.
        to: The folder; None for that of ``fetched.folder``.
        accept: Whether the licence is accepted; otherwise a person is asked.
        revision: A branch, tag or commit; empty for the newest.
        files: Only files whose paths begin so: one configuration of several.
        image: The column of images; empty for that of the set.
        label: Likewise of classes.
        domain: Likewise of domains.

    Raises:
        ConfigError: If there is no such set or column, or the licence is not accepted.
        DataError: If the hub cannot be reached, a file is not what the hub says, or a row holds no image.
    """
    known = KNOWN.get(name) or Known(fetched.check_repository(name, "get"))
    typed = {"image": image, "label": label, "domain": domain}
    known = replace(known, columns={key: typed[key] or column for key, column in known.columns.items()})
    folder = fetched.folder(name) if to is None else to
    record = fetched.read(folder)
    if record is None or not record.whole:
        with _network(name):
            record = _accepted(known, revision, files, record, folder, accept)
            record = _fetched(name, known, record, folder)
        _finish(name, record, folder)
    of = name if known.own else folders.NAME
    images = plural(record.images, "image", form=",")
    return (
        f"{record.repository} at {record.revision[:12]}: {images} in {shown(folder)}\n"
        f"next: fedshift prepare {of} data-dir={shown(folder)}"
    )


@contextlib.contextmanager
def _network(name: str) -> Iterator[None]:
    """Turn what the hub's library raises into one line.

    Raises:
        ConfigError: If the library is not here, or the hub has no such set.
        DataError: If the hub cannot be reached.
    """
    try:
        import httpx
        import pyarrow.parquet  # noqa: F401
        from huggingface_hub import errors
    except ImportError:
        raise ConfigError(f"fedshift get needs huggingface_hub and pyarrow: {EXTRA}") from None
    try:
        yield
    except FedShiftError:
        raise
    except errors.GatedRepoError:
        raise ConfigError(
            f"get {name}: its owner gives it to accepted users alone; `hf auth login` says who you are"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise ConfigError(f"get {name}: the hub has no such data set or revision, or it is private") from None
    except (errors.HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:
        why = plain(str(error).partition("\n")[0]) or type(error).__name__
        raise DataError(f"get {name}: stopped ({why}); what is fetched stays, the same command goes on") from None


def _accepted(known: Known, revision: str, files: str, before: Record | None, folder: Path, accept: bool) -> Record:
    """Return what is to be fetched, after the licence was accepted.

    Raises:
        ConfigError: If it is not, the folder holds something else, or there are no parquet or zip files.
    """
    from huggingface_hub import HfApi

    if before is not None:
        if (before.repository, before.columns) == (known.repository, known.columns) and revision in (
            "",
            before.revision,
        ):
            return before
        if before.images:
            raise ConfigError(
                f"{shown(folder)} holds a part of {before.repository} at {before.revision}, columns {before.columns}; "
                "give the same, or another folder with --to"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{shown(folder)} is not empty and no folder of `fedshift get`; give another with --to")
    api = HfApi()
    info = api.dataset_info(known.repository, revision=revision or None, files_metadata=True)
    licence = str(getattr(info.card_data, "license", None) or "not stated")
    if not (parts := _parts(info, known, files)) and not revision:
        info = api.dataset_info(known.repository, revision=CONVERTED, files_metadata=True)
        parts = _parts(info, known, files)
    if not parts:
        raise ConfigError(f"get {known.repository}: no {files}*.parquet or {files}*.zip")
    total = sum(each.size or 0 for each in info.siblings or () if each.rfilename in parts)
    typer.echo(
        f"{known.repository} at {info.sha}: {plural(len(parts), 'file')}, {decimal(total)}; licence: {plain(licence)} "
        f"(https://huggingface.co/datasets/{known.repository})"
    )
    if not accept and not (sys.stdin.isatty() and typer.confirm("Do you accept the licence?")):
        raise ConfigError(
            f"get {known.repository}: its licence ({plain(licence)}) is not accepted; --accept accepts it"
        )
    record = Record(
        repository=known.repository, revision=str(info.sha), licence=licence, columns=dict(known.columns), parts=parts
    )
    folder.mkdir(parents=True, exist_ok=True)
    _keep(record, folder)
    return record


def _parts(info: Any, known: Known, files: str) -> dict[str, Part]:
    """Return the parquet files of a repository, with the SHA-256 that the hub states; empty where it states none.

    Without parquet files they are its zip files, unless columns are named, which these lack.
    """
    there = [each for each in info.siblings or () if each.rfilename.startswith(files)]
    for kind in (".parquet", ".zip") if known.columns == COLUMNS else (".parquet",):
        if chosen := [each for each in there if each.rfilename.endswith(kind)]:
            return {each.rfilename: Part(sha256=each.lfs.sha256 if each.lfs else "") for each in chosen}
    return {}


def _keep(record: Record, folder: Path) -> None:
    write_atomically(folder / fetched.RECORD, record.model_dump_json(indent=1))


def _fetched(name: str, known: Known, record: Record, folder: Path) -> Record:
    """Fetch each part that is missing and write its images; return the record with their numbers.

    Raises:
        DataError: If a file has another SHA-256 than the hub states.
    """
    splits = {name: _split_of(name) for name in record.parts}
    if len({*splits.values()}) == 1 or name == domainnet.NAME:
        splits = dict.fromkeys(splits, "")
    for number, (file_name, part) in enumerate(record.parts.items()):
        if part.images is not None:
            continue
        file = folder / DOWNLOAD
        _download(record, file_name, file)
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if part.sha256 and digest != part.sha256:
            file.unlink()
            raise DataError(f"{file_name}: SHA-256 {digest[:12]} is not the hub's {part.sha256[:12]}; get it again")
        rows = _unpacked if file_name.endswith(".zip") else _of_table
        images = 0
        for picture, place, where in rows(file, splits[file_name], known, folder):
            fetched.write(picture, place, f"{number:03d}_{images:06d}", where)
            images += 1
        record = record.with_part(file_name, Part(sha256=digest, images=images))
        _keep(record, folder)
        file.unlink()
    return record


def _download(record: Record, name: str, file: Path) -> None:
    """Fetch what is missing of a file, with a progress bar."""
    from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(record.repository, name, repo_type="dataset", revision=record.revision)
    there = get_hf_file_metadata(url)
    # No key of the user's goes to another server.
    token = get_token() if there.location.startswith(constants.ENDPOINT) else None
    with file.open("ab") as opened:
        http_get(
            there.location,
            opened,
            resume_size=opened.tell(),
            expected_size=there.size,
            headers={"authorization": f"Bearer {token}"} if token else None,
            displayed_filename=name,
        )


def _split_of(file: str) -> str:
    """Return the split of a file by its name; empty for a zip file that says none.

    Raises:
        ConfigError: If the name of a parquet file says none.
    """
    found = _SPLIT.search(file)
    if found is None and file.endswith(".zip"):
        return ""
    if found is None:
        raise ConfigError(f"{shown(file)}: its name says no split; allowed are {', '.join(SPLITS)}; see --files")
    return SPLITS[found[1]]


def _of_table(file: Path, split: str, known: Known, folder: Path) -> Iterator[tuple[Any, Path, str]]:
    """Yield the images of a parquet file, the folder of each, and its row for messages.

    Raises:
        ConfigError: If it lacks a column, or a name cannot be that of a domain or class.
    """
    from pyarrow import parquet

    of = parquet.ParquetFile(file)
    columns = [known.columns[key] for key in COLUMNS]
    names = of.schema_arrow.names
    if missing := [column for column in columns if column not in names]:
        raise ConfigError(
            f"{known.repository}: no column {missing[0]}; there are {', '.join(names)}: --image, --label and --domain"
        )
    stated = _stated(of.schema_arrow.metadata or {})
    named = {
        "label": known.classes or stated.get(known.columns["label"], ()),
        "domain": known.domains or stated.get(known.columns["domain"], ()),
    }
    rows = (given for batch in of.iter_batches(_BATCH, columns=columns) for given in batch.to_pylist())
    for row, given in enumerate(rows):
        picture, label, domain = (given[column] for column in columns)
        place = folder / fetched.name_of(domain, named["domain"], known.columns["domain"], folders.check_domain)
        place = place / split / fetched.name_of(label, named["label"], known.columns["label"], folders.check_class)
        yield picture, place, f"{file.name}, row {row}"


def _unpacked(file: Path, split: str, known: Known, folder: Path) -> Iterator[tuple[Any, Path, str]]:
    """Yield the images of a zip file, ``[.../]<domain>/[<split>/]<class>/*``, the folder of each, and its name.

    Raises:
        ConfigError: If a name cannot be that of a domain or class.
        DataError: If the file or one of its images cannot be read.
        OSError: If they would not fit on the disk.
    """
    try:
        with zipfile.ZipFile(file) as opened:
            members = [each for each in opened.infolist() if pictures.is_image_name(each.filename.rpartition("/")[2])]
            disk_use.check_room(folder, sum(each.file_size for each in members))
            for member, (site, *below) in zip(members, _places(members), strict=True):
                where = as_found(member.filename)
                place = folder / fetched.folder_name(site, where, folders.check_domain) / split
                for name in below:
                    place /= fetched.folder_name(name, where, folders.check_class)
                with opened.open(member) as image:
                    yield {"bytes": image.read(member.file_size), "path": member.filename}, place, where
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DataError(f"{known.repository}: a zip file that cannot be read ({plain(str(error))})") from None


def _places(members: Sequence[zipfile.ZipInfo]) -> list[tuple[str, ...]]:
    """Return the folders of images from the domain down, without those around all domains.

    Raises:
        DataError: If an image lies in fewer than two folders, or is larger than any image.
    """
    paths = [tuple(each.filename.split("/")[:-1]) for each in members]
    for member, path in zip(members, paths, strict=True):
        if len(path) < 2 or member.file_size > MOST_IMAGE:
            raise DataError(
                f"{as_found(member.filename)} has {decimal(member.file_size)}; expected <domain>/<class>/<image> "
                f"of at most {decimal(MOST_IMAGE)}"
            )
    levels = zip(*(path[:-2] for path in paths), strict=False)
    around = sum(1 for _ in itertools.takewhile(lambda level: len({*level}) == 1, levels))
    around -= around > 0 and any(layout.split_of(path[around]) for path in paths)
    return [path[around:] for path in paths]


def _stated(metadata: Mapping[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the names of classes that a parquet file of the library ``datasets`` states, by column."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {column: tuple(of["names"]) for column, of in features.items() if isinstance(of, dict) and "names" in of}


def _finish(name: str, record: Record, folder: Path) -> None:
    """Write what our data set of this name reads besides the images: lists of files by split.

    Raises:
        DataError: If an image is of no class of the set.
    """
    if name == domainnet.NAME:
        splits = [_split_of(file) for file in record.parts]
        for domain in domainnet.DOMAINS:
            lines: dict[str, list[str]] = {"train": [], "test": []}
            for path in sorted((folder / domain).glob("*/*")):
                split, label = splits[int(path.stem.split("_")[-2])], path.parent.name
                if label not in domainnet.CLASSES:
                    raise DataError(f"{as_found(label)} is no class of {name}")
                lines[split].append(f"{domain}/{label}/{path.name} {domainnet.CLASSES.index(label)}\n")
            for split, each in lines.items():
                write_atomically(folder / f"{domain}_{split}.txt", "".join(each))
    elif name == isic.NAME:
        rows = ["image,target,center,fold\n"]
        for path in sorted(folder.glob("*/*/*/*.jpg")):
            domain, split, label = path.relative_to(folder).parts[:3]
            image = path.relative_to(folder).with_suffix("").as_posix()
            rows.append(f"{image},{isic.CLASSES.index(label)},{isic.DOMAINS.index(domain)},{split}\n")
        write_atomically(folder / "train_test_split.csv", "".join(rows))

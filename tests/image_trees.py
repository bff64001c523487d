"""What tests share: small trees of files, listed alone or, with `noise_sites`, decoded too."""

import tarfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from support import refusal_of

from fedshift_core.errors import DataError
from fedshift_datasets.base import OWN_SPLITS, Source, Split
from fedshift_datasets.io.site import Site
from fedshift_datasets.listing import Listing

SPLITS: tuple[Split, Split] = ("train", "test")

Find = Callable[[str, Split, Source], Any]


def fill(folder: Path, counts: Mapping[str, int], *, first: int = 0) -> None:
    """Write ``counts[class]`` files into each class folder."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            (folder / name / f"{number:04}.jpg").write_bytes(b"x")


def write_tar(path: Path, names: Iterable[str], *, mode: str = "w") -> None:
    """Write a tar whose members hold their own names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name in names:
            header = tarfile.TarInfo(name)
            header.size = len(name)
            archive.addfile(header, BytesIO(name.encode()))


def refusal(find: Find, root: Path | None, domain: str, split: Split = "train") -> str:
    """Return the message with which a domain is refused: two lines at most."""
    return refusal_of(DataError, find, domain, split, Source(root))


def check_split(find: Find, root: Path, domain: str, *, train: int, test: int) -> dict[Split, Listing]:
    """Check that the splits of a domain have these sizes, share nothing and are the same each time."""
    by_name, again = ({split: find(domain, split, Source(root)) for split in SPLITS} for _ in range(2))
    names = {split: {item.name for item in of.items} for split, of in by_name.items()}
    assert not names["train"] & names["test"]
    for split, number in (("train", train), ("test", test)):
        assert len(by_name[split]) == len(names[split]) == number
        assert again[split].items == by_name[split].items and (again[split].labels == by_name[split].labels).all()
    return by_name


def check_usual_refusals(find: Find, root: Path, domains: tuple[str, ...]) -> None:
    """Check what every data set refuses; ``root`` is an empty folder."""
    assert "needs the key data-dir" in refusal(find, None, domains[0])
    assert f"allowed are {', '.join(domains)}" in refusal(find, root, "elsewhere")
    assert f"{root}/no does not exist" in refusal(find, root / "no", domains[0])
    (root / "file").write_bytes(b"")
    assert "is a file" in refusal(find, root / "file", domains[0])
    message = refusal(find, root, domains[0], "test")
    assert message.startswith(f"{domains[0]} not found in {root}; looked for ") and message.endswith("there: none")


def noise_sites(folder: Path, each: int) -> None:
    """Write the sites ``a`` and ``b`` with the classes cat and dog, so many images of seeded noise of each."""
    rng = np.random.default_rng(0)
    for place in ("a/cat", "a/dog", "b/cat", "b/dog"):
        (folder / place).mkdir(parents=True)
        for i in range(each):
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(folder / place / f"{i}.png")


class Picture(NamedTuple):
    """One image of a site."""

    path: Path
    label: int
    split: Split
    group: str


def pictures(site: Site) -> list[Picture]:
    """Return the images of a site, one by one."""
    of = site.pictures
    groups = [""] * len(of) if of.groups is None else of.groups.tolist()
    columns = zip(of.names, of.labels.tolist(), of.splits.tolist(), groups, strict=True)
    return [Picture(Path(name), label, OWN_SPLITS[split], group) for name, label, split, group in columns]

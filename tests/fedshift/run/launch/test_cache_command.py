"""`fedshift cache`: images and features that are kept are listed, verified and deleted, and nothing else is."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import time
from pathlib import Path

import click
import numpy as np
import pytest
from own_sites import make
from rich.filesize import decimal
from typer.testing import CliRunner

from fedshift import cli
from fedshift.data import cache_command
from fedshift.data.cache_command import Entry
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Form, Source
from fedshift_datasets.io import cache, feature_store, kept
from fedshift_datasets.io.feature_store import FeatureStore, Kind
from fedshift_datasets.listing import ImageSet

ABOUT = {
    "network": "timm:net", "depth": "stages:2", "weights": "0123456789abcdef" * 4, "size": 4,
    "arithmetic": "float32", "mean": [0.5] * 3,
}  # fmt: skip
KIND = Kind("timm-net-stages2", ABOUT, (3,), "float32")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache of the test's own."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sites") / "images", number=6)


@pytest.fixture
def filled(sites: Path, tmp_path: Path) -> list[Entry]:
    """Return two parts of images and two stores of features, which the cache holds."""
    images = shutil.copytree(sites, tmp_path / "images")
    source = Source(data_dir=images, classes=("bar", "cross", "disc"), skip_broken=True)
    for form in (Form(), Form(resize="crop")):
        catalog.load.__wrapped__("folders", "south", "train", source, 16, form)
    _store(KIND, 5)
    _store(Kind(KIND.name, ABOUT | {"view": 2}, (3,), "float32"), 7)
    return cache_command.entries()


def _store(kind: Kind, number: int) -> FeatureStore:
    x = np.random.default_rng(number).integers(0, 256, (number, 4, 4, 3), np.uint8)
    images = ImageSet(x, np.zeros(number, np.int64))
    store = FeatureStore(kind)
    store.places(images.marks, lambda index: images.x[index].mean(axis=(1, 2)).astype(np.float32))
    return store


def _run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["cache", *arguments])
    if isinstance(result.exception, ConfigError):
        return 1, "", str(result.exception)
    return result.exit_code, result.stdout, result.stderr


def _damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)


def test_it_lists_what_is_there_and_what_uses_it(filled: list[Entry], tmp_path: Path, folder: Path) -> None:
    code, out, _ = _run()
    assert (code, out) == (0, _run("list")[1])
    assert [row.split()[:2] for row in out.splitlines()[2:6]] == [[entry.kind, entry.name] for entry in filled]
    total = sum(entry.path.stat().st_size for entry in filled)
    assert out.endswith(f"{decimal(total)} in {folder}\n")
    page = json.loads(_run("list", "--json")[1])
    assert page == json.loads(_run("--json")[1]) and page["bytes"] == total
    assert all(abs(entry["time"] - time.time()) < 60 for entry in page["entries"])
    (first, second), stores = page["entries"][:2], page["entries"][2:]
    origin = tmp_path / "images" / "south"
    for part, form in zip(sorted((first["about"], second["about"]), key=repr), ("crop", "squash"), strict=True):
        assert part == {"dataset": "folders", "domain": "south", "split": "train", "size": 16, "form": form,
                        "origin": str(origin), "origin_exists": True}  # fmt: skip
    assert sorted((store["number"], store["about"]["view"]) for store in stores) == [(5, 0), (7, 2)]
    shutil.rmtree(tmp_path / "images")
    assert f"{origin} (not there any more)" in _run()[1]


def test_verify_finds_each_damage_and_changes_nothing(filled: list[Entry]) -> None:
    assert _run("verify")[0] == 0
    images, other, first, second = filled
    for entry, place in ((images, kept.read(images.path).chunks[0].start), (first, -1), (second, 0)):
        _damage(entry.path, place)
    held = [entry.path.read_bytes() for entry in filled]
    code, out, _ = _run("verify")
    *damaged, last = out.splitlines()
    assert code == 1 and "4 checked" in last and "3 damaged" in last
    for line, entry, how in zip(damaged, (images, first, second), ("cannot", "damaged", "cannot"), strict=True):
        assert line.startswith(f"damaged: {entry.name}: {how} ")
    assert held == [entry.path.read_bytes() for entry in filled]
    assert [_run("verify", other.name, *more)[0] for more in ([], [first.name])] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (("--features",), {"images"}), (("--all",), set()), (("timm-*",), {"images"}), (("--unused", "0"), set()),
        (("--unused", "2", "--features"), {"images", "features"}),
    ],
)  # fmt: skip
def test_delete_by_kind_pattern_and_age(filled: list[Entry], arguments: tuple[str, ...], left: set[str]) -> None:
    """And by name, which says how much was freed."""
    old = time.time() - 3 * 86_400
    os.utime(kept.lock_of(filled[3].path), (old, old))
    code, out, _ = _run("delete", filled[0].name, "--yes")
    assert (code, out.splitlines()[-1]) == (0, f"freed {decimal(filled[0].bytes)}")
    assert [entry.name for entry in cache_command.entries()] == [entry.name for entry in filled[1:]]
    assert _run("delete", *arguments, "--yes")[0] == 0
    entries = cache_command.entries()
    assert {entry.kind for entry in entries} == left and filled[3].name not in {entry.name for entry in entries}


def test_what_a_process_writes_stays(filled: list[Entry]) -> None:
    images, _, store, _ = filled
    with kept.lock_of(images.path).open("a") as first, kept.lock_of(store.path).open("a") as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        fcntl.flock(second, fcntl.LOCK_EX)
        code, _, err = _run("delete", "--all", "--yes")
    assert code == 1
    assert err.splitlines() == [f"left {entry.name}: a process is writing it" for entry in (images, store)]
    assert [entry.name for entry in cache_command.entries()] == [images.name, store.name]


def test_links_are_not_followed(filled: list[Entry], tmp_path: Path, folder: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for moved in (filled[0].path, filled[2].path):
        shutil.move(moved, outside)
        moved.symlink_to(outside / moved.name)
    held = sorted(outside.rglob("*"))
    assert {entry.name for entry in cache_command.entries()} == {filled[1].name, filled[3].name}
    assert f"{filled[0].name!r} is a link" in _run("delete", filled[0].name, "--yes")[2]
    assert _run("delete", "--all", "--yes")[0] == 0
    assert sorted(outside.rglob("*")) == held
    shutil.move(feature_store.root(), tmp_path / "moved")
    (folder / "features").symlink_to(tmp_path / "moved")
    _store(KIND, 5)
    assert cache_command.entries() == []
    assert _run("delete", "--all", "--yes")[1] == "nothing to delete\n"


def test_what_is_no_part_stays(filled: list[Entry], folder: Path) -> None:
    names = {"notes", "arithmetic", "pacs-art-train-64px-ab"}
    for name in names:
        (folder / name).mkdir()
    assert _run("delete", "--all", "--yes")[0] == 0
    assert {path.name for path in folder.iterdir() if path.is_dir()} == names | {"features"}
    assert "no images and no features are kept" in _run()[1]


def test_unknown_names_and_contradictions_are_one_line(filled: list[Entry]) -> None:
    name = filled[0].name
    for arguments, named in (
        (("delete", name[:-1], "--yes"), f"did you mean {name}"), (("verify", "../images"), "'../images'"),
        (("delete", "--yes"), "found none"), (("delete", name, "--all", "--yes"), "found both"),
        (("delete", name), "standard input is no terminal"),
    ):  # fmt: skip
        error = _run(*arguments)[2]
        assert named in error and "\n" not in error
    assert len(cache_command.entries()) == 4


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 4), (b"y\n", 3)])
def test_it_asks_first(
    filled: list[Entry], monkeypatch: pytest.MonkeyPatch, answer: bytes, left: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    unasked = dict.fromkeys(("features", "images", "everything", "yes"), False)
    with os.fdopen(theirs) as terminal, contextlib.suppress(click.Abort):
        monkeypatch.setattr("sys.stdin", terminal)
        cache_command.delete([filled[0].name], unused=None, **unasked)
    os.close(ours)
    assert f"Delete these 1 ({decimal(filled[0].bytes)})?" in capsys.readouterr().out
    assert len(cache_command.entries()) == left

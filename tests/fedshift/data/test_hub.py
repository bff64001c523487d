"""``fedshift get`` from a local endpoint that serves the hub's interface."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import SHA, Hub, serving
from PIL import Image
from support import APP_PATH

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve, resolve_dataset
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source, Split
from fedshift_datasets.io import fetched
from fedshift_datasets.sets import domainnet, isic, pacs

pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra hub is not installed")

Row = Mapping[str, Any]
Fedshift = Callable[..., subprocess.CompletedProcess[str]]
ONE, TEST, TRAIN = (
    "data/train-00000-of-00001.parquet",
    "data/test-00000-of-00001.parquet",
    "data/train-00000-of-1.parquet",
)


def picture(number: int, kind: str = "PNG") -> bytes:
    """Return an image file whose pixels follow from a number."""
    pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def parquet(rows: Sequence[Row], names: Mapping[str, Sequence[str]] | None = None) -> bytes:
    """Return a parquet file as the library ``datasets`` writes it; ``names`` are those of classes by column."""
    from pyarrow import parquet as files

    features = {column: {"names": list(each), "_type": "ClassLabel"} for column, each in (names or {}).items()}
    table = pa.Table.from_pylist(list(rows))
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    sink = io.BytesIO()
    files.write_table(table, sink)
    return sink.getvalue()


def row(number: int, label: int | str, domain: int | str, kind: str = "PNG", **other: Any) -> Row:
    return {
        "image": {"bytes": picture(number, kind), "path": f"pic_{number}.png"},
        "label": label,
        "domain": domain,
    } | other


def of_pacs(each: int = 5) -> bytes:
    places = [(d, c) for d in pacs.DOMAINS for c in range(len(pacs.CLASSES)) for _ in range(each)]
    return parquet([row(i, c, d) for i, (d, c) in enumerate(places)], {"label": pacs.CLASSES})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(fetched.HUB_DIR, str(tmp_path / "sets"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "sets"


@pytest.fixture
def fedshift(home: Path) -> Fedshift:
    """Run a command against an endpoint, without a terminal."""

    def run(endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"HF_ENDPOINT": endpoint, "PYTHONPATH": APP_PATH, "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "fedshift", *words]
        return subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture
def hub() -> Hub:
    return Hub("flwrlabs/pacs", {ONE: of_pacs()})


@pytest.fixture
def endpoint(hub: Hub) -> Iterator[str]:
    with serving(hub) as address:
        yield address


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_known_set_is_fetched_and_found_without_a_folder(
    fedshift: Fedshift, endpoint: str, hub: Hub, home: Path
) -> None:
    done = fedshift(endpoint, "get", "pacs", "--accept")
    assert done.returncode == 0, done.stderr
    assert "cc-by-4.0" in done.stdout and SHA in done.stdout
    record = fetched.read(home / "pacs")
    assert record is not None and record.images == 140 and record.revision == SHA
    assert record.parts[ONE].sha256 == hub.digest(ONE) and record.licence == "cc-by-4.0"
    assert not (home / "pacs" / ".download").exists()
    assert (home / "pacs/photo/dog/pic_0_000_000000.png").read_bytes() == picture(0)
    config = resolve(parse_arguments(["f2dc-pacs"])[0]).dataset
    assert config.data_dir == str(home / "pacs")
    numbers = [len(catalog.load("pacs", "sketch", split, config.source()).y) for split in ("train", "test")]
    assert numbers == [29, 6]  # of 35, places 8 and 9 of ten are for the test
    asked = len(hub.asked)
    assert fedshift(endpoint, "get", "pacs").returncode == 0 and len(hub.asked) == asked  # it is there


def test_a_download_that_breaks_off_goes_on(fedshift: Fedshift, endpoint: str, hub: Hub, home: Path) -> None:
    noise = [{"noise": np.random.default_rng(i).bytes(100_000)} for i in range(140)]  # more than a piece of a download
    places = [row(i, i % 7, pacs.DOMAINS[i % 4]) for i in range(140)]
    hub.files[ONE] = parquet([{**a, **b} for a, b in zip(places, noise, strict=True)], {"label": pacs.CLASSES})
    hub.cut[ONE] = 12_000_000
    done = fedshift(endpoint, "get", "pacs", "--accept")
    if done.returncode:  # the hub's library did not try again by itself
        assert "the same command goes on" in error_of(done)
        assert fedshift(endpoint, "get", "pacs").returncode == 0  # the licence was accepted
    assert [wanted for _, wanted in hub.asked][-1] == f"bytes={10 << 20}-"
    record = fetched.read(home / "pacs")
    assert record is not None and record.whole


def test_files_of_which_some_are_written_are_not_fetched_again(home: Path, fedshift: Fedshift) -> None:
    parts = {
        f"data/{split}-00000-of-1.parquet": parquet([row(i, i % 2, "a") for i in range(6)])
        for split in ("test", "train")
    }
    hub = Hub("me/mine", parts)
    hub.lie.add("data/train-00000-of-1.parquet")
    with serving(hub) as endpoint:
        assert "SHA-256" in error_of(fedshift(endpoint, "get", "me/mine", "--accept"))
        record = fetched.read(home / "me--mine")
        assert record is not None and not record.whole and record.images == 6
        with pytest.raises(ConfigError, match=r"dataset\.hub: me/mine is not on this machine"):
            resolve_dataset("folders", "", ["dataset.hub=me/mine"])
        hub.lie.clear()
        (home / "me--mine" / fetched.RECORD).write_text(
            record.with_part(TRAIN, fetched.Part(sha256=hub.digest(TRAIN))).model_dump_json()
        )
        assert fedshift(endpoint, "get", "me/mine").returncode == 0
    assert [name for name, _ in hub.asked].count("data/test-00000-of-1.parquet") == 1


def test_any_set_with_a_column_of_domains(home: Path, fedshift: Fedshift) -> None:
    """Numbers without names, other columns, splits; no path of a file."""
    rows = [{"pixels": picture(i, "JPEG"), "kind": ("cat", "dog")[i % 2], "site": i % 3} for i in range(24)]
    hub = Hub("me/mine", {TRAIN: parquet(rows[:18]), "data/test-00000-of-1.parquet": parquet(rows[18:])})
    with serving(hub) as endpoint:
        columns = ["--image", "pixels", "--label", "kind", "--domain", "site"]
        assert "no column image" in error_of(fedshift(endpoint, "get", "me/mine", "--accept"))
        done = fedshift(endpoint, "get", "me/mine", "--accept", *columns)
        assert done.returncode == 0, done.stderr
    config = resolve_dataset("folders", "", ["dataset.hub=me/mine"])
    assert config.domains == ("site0", "site1", "site2") and config.classes == ("cat", "dog")
    sizes = [[len(catalog.load("folders", d, s, config.source()).y) for s in ("train", "test")] for d in config.domains]
    assert sizes == [[6, 2]] * 3


@pytest.mark.parametrize(
    ("name", "repository", "columns", "domains", "classes"),
    [
        ("domainnet", "wltjr1007/DomainNet", "domain", domainnet.DOMAINS, domainnet.CLASSES),
        ("fed-isic2019", "flwrlabs/fed-isic2019", "center", isic.DOMAINS, isic.CLASSES),
    ],
)
def test_our_readers_take_what_is_written(
    home: Path,
    fedshift: Fedshift,
    name: str,
    repository: str,
    columns: str,
    domains: Sequence[str],
    classes: Sequence[str],
) -> None:
    """Lists and tables that say which image is of which split."""
    places = [(d, c) for d in range(len(domains)) for c in range(len(classes))]
    names = {"label": classes, **({"domain": domains} if columns == "domain" else {})}

    def part(start: int) -> bytes:
        rows = [row(start + i, c, d, "JPEG") | {columns: d} for i, (d, c) in enumerate(places)]
        return parquet(rows, names)

    with serving(Hub(repository, {TRAIN: part(0), "data/test-00000-of-1.parquet": part(len(places))})) as endpoint:
        done = fedshift(endpoint, "get", name, "--accept")
        assert done.returncode == 0, done.stderr
    splits: tuple[Split, ...] = ("train", "test")
    for start, split in zip((0, len(places)), splits, strict=True):
        images = catalog.load(name, domains[1], split, Source(home / name), 16)
        assert sorted(images.y.tolist()) == list(range(len(classes)))
        first = np.asarray(Image.open(io.BytesIO(picture(start + len(classes), "JPEG"))))
        assert np.abs(images.x[images.y.tolist().index(0)].astype(int) - first).max() <= 2  # another JPEG decoder


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["pacs"], "its licence (cc-by-4.0) is not accepted; --accept"),
        (["nobody/nothing", "--accept"], "the hub has no such data set"),
        (["../etc"], "allowed is OWNER/NAME"),
        (["pacs", "--accept", "--files", "other/"], "no parquet file that begins with other/"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_a_line(
    fedshift: Fedshift, endpoint: str, home: Path, words: list[str], problem: str
) -> None:
    assert problem in error_of(fedshift(endpoint, "get", *words))
    assert not home.exists() or not list(home.iterdir())


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row(0, 0, "a") | {"image": {"bytes": None, "path": "http://x/1.png"}}], "row 0: no image"),
        ([row(0, 0, "a") | {"image": {"bytes": b"GIF89a", "path": ""}}], "row 0: begins with b'GIF8'"),
        ([row(0, 7, "a")], "column label: 7; allowed are 0 to 1"),
        ([row(0, 0, "AVG")], "column domain: 'AVG' is a column of every table"),
        ([row(0, 0, "../up")], "without a dot at the beginning"),
    ],
)
def test_rows_that_are_no_images_are_refused_by_name(
    fedshift: Fedshift, home: Path, rows: list[Row], problem: str
) -> None:
    with serving(Hub("me/mine", {TRAIN: parquet(rows, {"label": ["cat", "dog"]})})) as endpoint:
        assert problem in error_of(fedshift(endpoint, "get", "me/mine", "--accept"))
    assert not (home.parent / "up").exists()


def test_a_hub_that_cannot_be_reached_is_said_in_a_line(fedshift: Fedshift, endpoint: str) -> None:
    closed = endpoint.rpartition(":")[0] + ":9"
    assert "the same command goes on" in error_of(fedshift(closed, "get", "pacs", "--accept"))

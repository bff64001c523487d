"""``fedshift get`` from a local endpoint that serves the hub's interface."""

import contextlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import SHA, Hub, serving
from PIL import Image
from support import Command

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve, resolve_dataset
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.io import fetched
from fedshift_datasets.sets import domainnet, isic, pacs

constants = pytest.importorskip("huggingface_hub.constants", reason="the extra hub is not installed")
pa = pytest.importorskip("pyarrow", reason="the extra hub is not installed")

Row = dict[str, Any]
Get = Callable[..., str]
URLS = {name: getattr(constants, name) for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE")}
TEST, TRAIN = (f"data/{split}-00000-of-1.parquet" for split in ("test", "train"))


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


def zipped(members: Mapping[str, bytes]) -> bytes:
    """Return a zip file."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return sink.getvalue()


def row(number: int, label: int | str, domain: int | str, kind: str = "PNG", **other: Any) -> Row:
    image = {"bytes": picture(number, kind), "path": f"pic_{number}.png"}
    return {"image": image, "label": label, "domain": domain} | other


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(fetched.HUB_DIR, str(tmp_path / "sets"))
    return tmp_path / "sets"


@pytest.fixture
def get(home: Path, fedshift: Command, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Return a function that runs ``fedshift get`` against a hub, or none, without a terminal."""

    def run(hub: Hub | None, *words: str, problem: str = "") -> str:
        with serving(hub) if hub else contextlib.nullcontext("http://127.0.0.1:9") as endpoint:
            for name, url in URLS.items():
                monkeypatch.setattr(constants, name, url.replace(constants._HF_DEFAULT_ENDPOINT, endpoint))
            done = fedshift("get", *words)
        assert bool(done.code) is bool(problem) and problem in done.err, done.err
        return done.out

    return run


def mend(hub: Hub, part: str, folder: Path) -> None:
    """Let the hub state what a file has, and the record what it states."""
    hub.lie.clear()
    record = fetched.read(folder)
    assert record is not None
    whole = record.with_part(part, fetched.Part(sha256=hub.digest(part)))
    (folder / fetched.RECORD).write_text(whole.model_dump_json())


@pytest.fixture
def hub() -> Hub:
    places = [*product(pacs.DOMAINS, range(len(pacs.CLASSES)), range(5))]
    noise = np.random.default_rng(0).bytes(100_000)  # more than a piece of a download
    rows = [row(i, c, d, noise=noise[i:] + noise[:i]) for i, (d, c, _) in enumerate(places)]
    return Hub("flwrlabs/pacs", {TRAIN: parquet(rows, {"label": pacs.CLASSES})})


def test_a_known_set_is_fetched_and_found_without_a_folder(get: Get, hub: Hub, home: Path) -> None:
    said = get(hub, "pacs", "--accept")
    assert "cc-by-4.0" in said and SHA in said
    record = fetched.read(home / "pacs")
    assert record and (record.images, record.revision, record.licence) == (140, SHA, "cc-by-4.0")
    assert record.parts[TRAIN].sha256 == hub.digest(TRAIN) and not (home / "pacs" / ".download").exists()
    assert (home / "pacs/photo/dog/pic_0_000_000000.png").read_bytes() == picture(0)
    config = resolve(parse_arguments(["f2dc-pacs"])[0]).dataset
    assert config.data_dir == str(home / "pacs")
    numbers = [len(catalog.load("pacs", "sketch", split, config.source()).y) for split in ("train", "test")]
    assert numbers == [29, 6]  # of 35, places 8 and 9 of ten are for the test
    asked = len(hub.asked)
    get(hub, "pacs")
    assert len(hub.asked) == asked  # it is there


def test_a_download_that_breaks_off_goes_on(get: Get, hub: Hub, home: Path) -> None:
    hub.cut[TRAIN] = 12_000_000
    with contextlib.suppress(AssertionError):  # where the hub's library does not try again by itself
        get(hub, "pacs", "--accept")
    get(hub, "pacs")  # the licence was accepted
    assert [wanted for _, wanted in hub.asked][-1] == f"bytes={10 << 20}-"
    record = fetched.read(home / "pacs")
    assert record and record.whole


def test_files_of_which_some_are_written_are_not_fetched_again(home: Path, get: Get) -> None:
    hub = Hub("me/mine", {part: parquet([row(i, i % 2, "a") for i in range(6)]) for part in (TEST, TRAIN)})
    hub.lie.add(TRAIN)
    get(hub, "me/mine", "--accept", problem="SHA-256")
    record = fetched.read(home / "me--mine")
    assert record and not record.whole and record.images == 6
    with pytest.raises(ConfigError, match=r"dataset\.hub: me/mine"):
        resolve_dataset("folders", "", ["dataset.hub=me/mine"])
    mend(hub, TRAIN, home / "me--mine")
    get(hub, "me/mine")
    assert [name for name, _ in hub.asked].count(TEST) == 1


def test_any_set_with_a_column_of_domains(home: Path, get: Get) -> None:
    """Numbers without names, other columns, splits; no path of a file."""
    rows = [{"pixels": picture(i, "JPEG"), "kind": ("cat", "dog")[i % 2], "site": i % 3} for i in range(24)]
    hub = Hub("me/mine", {TRAIN: parquet(rows[:18]), TEST: parquet(rows[18:])})
    get(hub, "me/mine", "--accept", problem="no column image")
    get(hub, "me/mine", "--accept", "--image", "pixels", "--label", "kind", "--domain", "site")
    config = resolve_dataset("folders", "", ["dataset.hub=me/mine"])
    assert config.domains == ("site0", "site1", "site2") and config.classes == ("cat", "dog")
    for split, number in (("train", 6), ("test", 2)):
        assert {len(catalog.load("folders", d, split, config.source()).y) for d in config.domains} == {number}


@pytest.mark.parametrize(
    ("name", "repository", "column", "known"),
    [
        ("domainnet", "wltjr1007/DomainNet", "domain", domainnet),
        ("fed-isic2019", "flwrlabs/fed-isic2019", "center", isic),
    ],
)
def test_our_readers_take_what_is_written(
    home: Path, get: Get, name: str, repository: str, column: str, known: Any
) -> None:
    """Lists and tables that say which image is of which split."""
    classes = len(known.CLASSES)
    places = [*product(range(len(known.DOMAINS)), range(classes))]
    names = {"label": known.CLASSES} | ({column: known.DOMAINS} if column == "domain" else {})
    starts: Any = (("train", TRAIN, 0), ("test", TEST, len(places)))
    rows = [[row(at + i, c, d, "JPEG") | {column: d} for i, (d, c) in enumerate(places)] for _, _, at in starts]
    parts = {part: parquet(own, names) for (_, part, _), own in zip(starts, rows, strict=True)}
    get(Hub(repository, parts), name, "--accept")
    for split, _, start in starts:
        images = catalog.load(name, known.DOMAINS[1], split, Source(home / name), 16)
        assert sorted(images.y.tolist()) == list(range(classes))
        first = np.asarray(Image.open(io.BytesIO(picture(start + classes, "JPEG"))))
        assert np.abs(images.x[images.y.tolist().index(0)].astype(int) - first).max() <= 2  # another JPEG decoder


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("pacs", "(cc-by-4.0)"),
        ("nobody/nothing --accept", "no such data set"),
        ("../etc", "OWNER/NAME"),
        ("pacs --accept --files other/", "other/"),
        ("CLOSED pacs --accept", "the same command goes on"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_a_line(get: Get, hub: Hub, home: Path, words: str, problem: str) -> None:
    get(None if "CLOSED" in words else hub, *words.removeprefix("CLOSED ").split(), problem=problem)
    assert not home.exists() or not list(home.iterdir())


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([row(0, 0, "a") | {"image": {"bytes": None, "path": "http://x/1.png"}}], "row 0"),
        ([row(0, 0, "a") | {"image": {"bytes": b"GIF89a", "path": ""}}], "row 0: begins with b'GIF8'"),
        ([row(0, 7, "a")], "column label: 7"),
        ([row(0, 0, "AVG")], "column domain: 'AVG'"),
        ([row(0, 0, "../up")], "dot at the beginning"),
    ],
)
def test_rows_that_are_no_images_are_refused_by_name(get: Get, home: Path, rows: Any, problem: str) -> None:
    hub = Hub("me/mine", {TRAIN: parquet(rows, {"label": ["cat", "dog"]})})
    get(hub, "me/mine", "--accept", problem=problem)
    assert not (home.parent / "up").exists()


@pytest.mark.parametrize("together", [True, False], ids=["one zip", "a zip a site"])
def test_folders_in_zip_files(home: Path, get: Get, *, together: bool) -> None:
    """Folders around the domains go, splits and the images' bytes stay, by-products do not come in."""
    places = [*product(("Caltech101", "SUN09"), ("train", "test"), ("bird", "dog"), range(3))]
    images = {"/".join(map(str, place)) + ".png": picture(i) for i, place in enumerate(places)}
    more = {"README.txt": b"text", "__MACOSX/SUN09/dog/._1.png": b"other"}
    files = {"VLCS.zip": {f"VLCS/{name}": content for name, content in images.items()} | more}
    if not together:
        by_site = {site: {name: c for name, c in images.items() if name.startswith(site)} for site, *_ in places}
        files = {f"data/{site}.zip": members for site, members in by_site.items()}
    hub = Hub("me/vlcs", {name: zipped(members) for name, members in files.items()})
    hub.lie.add(last := [*files][-1])
    get(hub, "me/vlcs", "--accept", problem="SHA-256")
    mend(hub, last, folder := home / "me--vlcs")
    assert "24 images" in get(hub, "me/vlcs")
    written = {path.parent.relative_to(folder).as_posix(): set[bytes]() for path in folder.glob("*/*/*/*")}
    for path in folder.glob("*/*/*/*"):
        written[path.parent.relative_to(folder).as_posix()].add(path.read_bytes())
    assert sorted(written) == sorted({"/".join(place[:3]) for place in places})
    assert all(content in written[name.rpartition("/")[0]] for name, content in images.items())
    config = resolve_dataset("folders", "", ["dataset.hub=me/vlcs"])
    assert config.domains == ("Caltech101", "SUN09") and config.classes == ("bird", "dog")
    assert len(catalog.load("folders", "SUN09", "test", config.source()).y) == 6


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("../up/dog/1.png", picture(0), "'../up/dog/1.png': '..'; allowed are names without a dot"),
        ("AVG/dog/1.png", picture(0), "'AVG/dog/1.png': 'AVG' is a column"),
        ("dog/1.png", picture(0), "expected <domain>/<class>/<image>"),
        ("a/dog/1.png", b"GIF89a", "begins with b'GIF8'"),
        ("a/dog/1.png", bytes((1 << 28) + 1), "of at most"),
        ("", b"", "a zip file that cannot be read"),
    ],
)
def test_zip_files_that_are_no_domains_of_classes_are_refused_by_name(
    get: Get, home: Path, name: str, content: bytes, problem: str
) -> None:
    members = {"b/cat/2.png": picture(1), name: content}
    get(Hub("me/mine", {"a.zip": zipped(members) if name else b"PK"}), "me/mine", "--accept", problem=problem)
    assert not (home.parent / "up").exists() and not (home / "up").exists()

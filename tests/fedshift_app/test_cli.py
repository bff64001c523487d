"""The ``fedshift`` command in this process: what it lists, writes and refuses."""

import os
import shlex
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from image_trees import noise_sites
from PIL import Image
from refusals import worded
from support import ROOT, Command, Run, image_set

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import names
from fedshift_app.node import own_code
from fedshift_datasets import catalog

DOMAINS = ("scan", "texture", "street", "sketch")
#: A run of a second or two.
QUICK = ("engine=inline", "rounds=1", "train.epochs=1", "allocation.share=0.05", "report=false")


pytestmark = pytest.mark.usefixtures("here")
Refuses = Callable[..., None]


@pytest.fixture
def refuses(fedshift: Command, tmp_path: Path) -> Refuses:
    """Run a command that must end with exit code 1 and a few lines that name things, and leave nothing behind."""

    def call(command: str, *named: object) -> None:
        before = sorted(tmp_path.rglob("*"))
        ended = fedshift(*shlex.split(command))
        assert (ended.code, ended.out) == (1, ""), ended
        assert ended.err.startswith("error: ") and len(ended.err.strip().splitlines()) <= 2
        assert sorted(tmp_path.rglob("*")) == before, "something was written"
        worded(ended.err, *named)

    return call


def write_digits(folder: Path, *domains: str, labels: int = 10) -> Path:
    """Write small npz files of the digits: 40 training and 20 test images for each domain."""
    folder.mkdir(exist_ok=True)
    for domain, (split, number) in product(domains, (("train", 40), ("test", 20))):
        images = image_set(number, classes=labels)
        np.savez(folder / f"{domain}_{split}.npz", x=images.x, y=images.y)
    return folder


# --- lists ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected", "named"),
    [
        ("datasets", [*catalog.DATASETS], "digits mnist, usps, mnistm, svhn, syn"),
        ("experiments", names("experiments"), "digits-small 6 nodes"),
    ],
)
def test_lists_have_one_line_each(command: str, expected: list[str], named: str, fedshift: Command) -> None:
    ended = fedshift(command)
    assert (ended.code, ended.err) == (0, "")
    lines = {line.split()[0]: line for line in ended.out.splitlines()}
    name, _, said = named.partition(" ")
    assert [*lines] == expected and said in lines[name]
    assert all(len(line.split()) > 2 for line in lines.values())


def test_versions_and_the_apps_folder(fedshift: Command) -> None:
    assert fedshift("--version").out == fedshift("version").out != ""
    assert fedshift("version", "--bundle").out == f"{own_code.installed()}\n"
    assert fedshift("app-dir").out == f"{ROOT}\n"


# --- mistakes ---------------------------------------------------------------------------------------------


#: Commands that are refused, each with parts of the message. Values of keys: config/test_refused.py.
REFUSED = {
    "run =1": "'' method",
    "run train.lr": "train.lr",
    "run handwritten --dry-run --json": "--dry-run --json",
    "run resume=runs/1": "resume runs/1 config.yaml",
    "run nodes=0": "nodes 0 1",
    "run engine=inline nodes=1": "2 nodes 1",
    "run gpus-per-client=nan": "gpus-per-client 'nan'",
    "run 'allocation.counts={scan: 2, sketch: 1}' nodes=5": "3 5 nodes=3 allocation.counts",
    "run digits-small": "data-dir",
    "run digits-small nodes=4 data-dir=/": "6 4 nodes=",
    "run digits-small data-dir=nowhere": "data-dir nowhere",
    # 12 nodes in turn are 3 a domain, each asks for half of it.
    "run engine=inline rounds=1 nodes=12 allocation.share=0.5": "3 'scan' 180 540 360",
    "run engine=inline rounds=1 allocation.share=0.0001": "node 0",
    "preview nope": "'nope' handwritten",
    "preview handwritten --domains scan,moon": "'moon' sketch",
    "preview handwritten -o nowhere/x.png": "nowhere/x.png",
    "preview digits": "data-dir",
    "preview digits --data-dir nowhere": "nowhere",
    "export handwritten nodes=1 -o out": "2",
    "export digits-small nodes=3 -o out": "6 3",
    "export handwritten nodes=12 allocation.share=0.5 -o out": "3 'scan' 540",
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_command_refuses(command: str, refuses: Refuses) -> None:
    refuses(command, *REFUSED[command].split())


@pytest.mark.parametrize("command", ["run {} engine=inline", "export {} -o out"])
def test_broken_files_of_images(command: str, refuses: Refuses, tmp_path: Path) -> None:
    """Nothing is left half done: the first nodes' images are fine."""
    data = write_digits(tmp_path / "data", "mnist", "usps")
    command = command.format("digits-small data-dir=data allocation.share=equal")
    refuses(command, data, "mnistm", "mnist (train, test), usps (train, test)")
    write_digits(data, "mnistm", labels=12)
    refuses(command, data / "mnistm_train.npz", "0 to 11", "0 to 9")
    write_digits(data, "mnistm")
    usps = data / "usps_test.npz"
    whole = usps.read_bytes()
    usps.write_bytes(whole[:-2000])
    refuses(command, usps)
    usps.write_bytes(whole)
    for split in ("train", "test"):
        (data / f"mnistm_{split}.npz").unlink()
        broken = data / "mnistm" / split / "3" / "a.png"
        broken.parent.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(broken)
    broken.write_bytes(broken.read_bytes()[:40])
    refuses(command, broken)


def test_places_that_are_taken(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "mine.yaml").write_text("train: {lr: ")
    refuses("run mine.yaml", tmp_path / "mine.yaml", "YAML")
    refuses(f"run {' '.join(QUICK)} output-dir=file", "output-dir", tmp_path / "file")
    refuses("export handwritten nodes=4 -o out", tmp_path / "out")
    refuses("export handwritten nodes=4 -o file/out", tmp_path / "file")


@pytest.mark.parametrize("command", ["nope", "preview", "export", "preview handwritten --per-class 0", "run --nope"])
def test_usage_errors(command: str, fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift(*command.split())
    assert ended.code == 2 and ended.err.startswith("Usage: ")
    assert not list(tmp_path.iterdir())


# --- arguments --------------------------------------------------------------------------------------------


def test_arguments_are_divided() -> None:
    typed = "handwritten method=i2pfl rounds=3 seed=0 nodes=4 engine=inline gpus-per-client=0.5 set=train.lr=1"
    flat, launch = parse_arguments([*typed.split(), "method.tau=0.1", "allocation.counts={scan: 2, sketch: 1}"])
    assert launch == {"nodes": 4, "engine": "inline", "gpus-per-client": 0.5}
    assert [flat[key] for key in ("experiment", "method", "rounds", "seed")] == ["handwritten", "i2pfl", 3, 0]
    # What was written last counts: dotted arguments come after set=.
    assert flat["set"] == "train.lr=1 method.tau=0.1 'allocation.counts={scan: 2, sketch: 1}'"
    flat, _ = parse_arguments(["handwritten", "method=fedseproto", "model.per_node=[cnn3,cnn2]"])
    assert flat["set"] == "'model.per_node=[cnn3,cnn2]'"


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    flat, _ = parse_arguments(["a/b.yaml", "data-dir=~/images", "output-dir=../out"])
    wanted = [tmp_path / "a/b.yaml", tmp_path / "home/images", tmp_path.parent / "out"]
    assert [flat[key] for key in ("experiment", "data-dir", "output-dir")] == [*map(str, wanted)]
    assert parse_arguments([])[0]["output-dir"] == str(tmp_path / "runs")


# --- preview ----------------------------------------------------------------------------------------------


def test_preview_writes_a_picture(fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift("preview", "handwritten", "-o", "x.png")
    assert (ended.code, ended.out.strip()) == (0, f"wrote {tmp_path / 'x.png'}")
    with Image.open(tmp_path / "x.png") as picture:
        picture.load()
        # Ten classes in a row, two samples of each in four domains, each 32x32 or larger.
        assert picture.format == "PNG" and picture.width > 10 * 32 and picture.height > 4 * 2 * 32


def test_preview_takes_keys_of_prepare_and_a_data_dir(fedshift: Command, tmp_path: Path) -> None:
    write_digits(tmp_path / "data", "usps")
    (tmp_path / "mine.yaml").write_text(
        "dataset: {name: handwritten, domains: [scan]}\nmodel: {name: cnn}\nmethod: {name: fedavg}\n"
        "train: {epochs: 1, batch_size: 8, lr: 0.01}\nrounds: 1\n"
    )
    same = ("mine.yaml", "handwritten --domains scan", "handwritten dataset.domains=[scan]")
    for i, words in enumerate((*same, "digits --data-dir data --domains usps", "digits data-dir=data --domains usps")):
        assert fedshift("preview", *words.split(), "-o", f"{i}.png").code == 0
    pictures = [(tmp_path / f"{i}.png").read_bytes() for i in range(5)]
    assert pictures[0] == pictures[1] == pictures[2] != pictures[3] == pictures[4]


@pytest.mark.parametrize("public", [(), ("--public", "0.5")])
def test_preview_names_an_image_that_cannot_be_read_and_goes_on(
    public: tuple[str, ...], fedshift: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noise_sites(tmp_path / "images", 6)
    assert fedshift("init", "mine", "data-dir=images").code == 0
    broken = tmp_path / "images" / "a" / "cat" / "0.png"
    broken.write_bytes(broken.read_bytes()[:100])
    assert fedshift("preview", "mine/mine.yaml", *public, "-o", "x.png").code == 0
    assert (tmp_path / "x.png").is_file()
    assert str(broken) in caplog.text


# --- export -----------------------------------------------------------------------------------------------


def test_export_gives_each_node_its_own_domain_and_nobody_else_reads_it(fedshift: Command, tmp_path: Path) -> None:
    out, before = tmp_path / "out", os.umask(0)
    try:
        ended = fedshift("export", "handwritten", "nodes=4", "-o", "out")
    finally:
        os.umask(before)
    assert ended.code == 0
    folders = [out / f"node-{i}-{domain}" for i, domain in enumerate(DOMAINS)]
    files = [folder / f"{folder.name[7:]}_{split}.npz" for folder in folders for split in ("test", "train")]
    assert sorted(out.rglob("*")) == sorted([*folders, *files])
    for i, (folder, domain) in enumerate(zip(folders, DOMAINS, strict=True)):
        command = ended.out.splitlines()[i]
        for part in ("fedshift supernode", f'domain="{domain}"', f'data-dir="{folder}"', f"partition-id={i}"):
            assert part in command
    assert {path.stat().st_mode & 0o777 for path in (out, *folders)} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


# --- a whole run ------------------------------------------------------------------------------------------


def test_inline_run(fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift("run", "handwritten", *QUICK, "nodes=4", "output-dir=out", "seed=5")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert next(line for line in lines if line.startswith("round")).startswith("round 1/1")
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("domain")) :]
    assert [line.split()[0] for line in table[2:6]] == [*DOMAINS]
    run = Run(Path(lines[-1].removeprefix("run folder: ")))
    assert [run.folder] == [*(tmp_path / "out").iterdir()]
    config = run.config
    assert (config["engine"], config["resolved"]["seed"], config["resolved"]["rounds"]) == ("inline", 5, 1)
    (line,), results = run.rounds, run.results
    assert results["domains"] == results["final"] == line["accuracy"] and [*results["domains"]] == [*DOMAINS]
    nodes = [(node["domain"], node["num_examples"]) for node in results["nodes"]]
    assert nodes == [(domain, 18) for domain in DOMAINS]  # 5 % of 359 or 360


# --- for scripts ------------------------------------------------------------------------------------------

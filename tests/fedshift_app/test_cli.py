"""The ``fedshift`` command in this process: what it lists, writes and refuses."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from image_trees import noise_sites
from PIL import Image
from support import Command

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import names
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

DOMAINS = ("scan", "texture", "street", "sketch")
#: A run of a second or two.
QUICK = ("engine=inline", "rounds=1", "train.epochs=1", "allocation.share=0.05", "report=false")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def refused(fedshift: Command, tmp_path: Path) -> Callable[..., str]:
    """Run a command that must end with exit code 1 and one or two lines, and leave nothing behind."""

    def call(*arguments: object) -> str:
        before = sorted(tmp_path.rglob("*"))
        ended = fedshift(*arguments)
        assert ended.code == 1, ended
        assert ended.err.startswith("error: ")
        assert 1 <= len(ended.err.strip().splitlines()) <= 2
        assert "Traceback" not in ended.out + ended.err
        assert sorted(tmp_path.rglob("*")) == before, "something was written"
        return ended.err

    return call


def write_digits(folder: Path, *domains: str, labels: int = 10) -> Path:
    """Write small npz files of the digits: 40 training and 20 test images for each domain."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for domain in domains:
        for split, number in (("train", 40), ("test", 20)):
            x = rng.integers(0, 256, (number, 32, 32, 3), np.uint8)
            np.savez(folder / f"{domain}_{split}.npz", x=x, y=np.arange(number) % labels)
    return folder


# --- lists ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [("datasets", list(catalog.DATASETS)), ("experiments", names("experiments"))],
)
def test_lists_have_one_line_each(command: str, expected: list[str], fedshift: Command) -> None:
    ended = fedshift(command)
    assert ended.code == 0
    assert [line.split()[0] for line in ended.out.splitlines()] == expected
    assert all(len(line.split()) > 2 for line in ended.out.splitlines())
    assert ended.err == ""


def test_experiments_say_how_many_nodes(fedshift: Command) -> None:
    lines = {line.split()[0]: line for line in fedshift("experiments").out.splitlines()}
    assert "any nodes" in lines["handwritten"]
    assert "6 nodes" in lines["digits-small"]


def test_datasets_name_their_domains(fedshift: Command) -> None:
    assert "mnist, usps, mnistm, svhn, syn" in fedshift("datasets").out


def test_help_of_a_command_says_what_its_arguments_are(fedshift: Command) -> None:
    """Not with a click that Typer does not know yet, see pyproject.toml."""
    assert "Run folders, or folders that hold some." in fedshift("compare", "--help").out


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nope"], ["experiment", "'nope'", "handwritten"]),
        (["nope.yaml"], ["experiment", "nope.yaml"]),
        (["method=nope"], ["method", "'nope'", "i2pfl"]),
        (["dataset=nope"], ["dataset", "'nope'", "digits"]),
        (["dataset.domains=[scan,moon]"], ["dataset.domains", "'moon'", "sketch"]),
        (["lr=1"], ["'lr'", "method", "engine", "nodes"]),
        (["=1"], ["''", "method"]),
        (["handwritten", "extra"], ["'extra'", "key=value"]),
        (["method=i2pfl", "handwritten"], ["'handwritten'", "key=value"]),
        (["resume=runs/1"], ["resume", "runs/1", "config.yaml"]),
        (["engine=ray"], ["engine", "'ray'", "simulation", "inline"]),
        (["rounds=many"], ["rounds", "'many'", "whole number"]),
        (["rounds=-1"], ["rounds", "-1"]),
        (["seed=1.5"], ["seed", "'1.5'", "whole number"]),
        (["seed=-1"], ["seed", "-1", "from 0"]),
        (["nodes=0"], ["nodes", "0", "from 1"]),
        (["nodes=few"], ["nodes", "'few'"]),
        (["nodes=1"], ["at least 2 nodes", "1"]),
        (["cpus-per-client=0"], ["cpus-per-client", "0", "from 1"]),
        (["gpus-per-client=2"], ["gpus-per-client", "'2'", "0 to 1"]),
        (["gpus-per-client=x"], ["gpus-per-client", "'x'"]),
        (["gpus-per-client=nan"], ["gpus-per-client", "'nan'"]),
        (["set=lr"], ["set", "'lr'", "section.key=value"]),
        (["set='open"], ["set", "open"]),
        (["train.lr"], ["train.lr", "unknown experiment"]),
        (["train.lr=fast"], ["train.lr", "'fast'", "number"]),
        (["train.lr=-1"], ["train.lr", "-1", "greater than 0"]),
        (["train.nope=1"], ["train.nope", "batch_size"]),
        (["nope.lr=1"], ["nope.lr", "train"]),
        (["method.tau=0.1"], ["method.tau", "'fedavg'"]),
        (["method=i2pfl", "method.nope=1"], ["method.nope", "tau"]),
        (["method=i2pfl", "method.inter_proto=finch"], ["inter_proto=finch", "use_ema=false"]),
        (["set=method={}"], ["method"]),
        (["allocation.counts={moon: 2}"], ["allocation.counts", "'moon'", "scan"]),
        (["allocation.counts={scan: 3}", "allocation.share=0.5"], ["'scan'", "150 %", "100 %"]),
        (
            ["allocation.counts={scan: 2, sketch: 1}", "nodes=5"],
            ["needs 3 nodes", "has 5", "nodes=3", "allocation.counts"],
        ),
        (["digits-small"], ["data-dir"]),
        (["digits-small", "nodes=4", "data-dir=/"], ["needs 6 nodes", "has 4", "leave nodes= out"]),
        (["digits-small", "data-dir=nowhere"], ["data-dir", "nowhere", "does not exist"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_run_refuses(arguments: list[str], reason: list[str], refused: Callable[..., str]) -> None:
    message = refused("run", "engine=inline", *arguments) if "=" in arguments[0] else refused("run", *arguments)
    for part in reason:
        assert part in message


def test_broken_yaml(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train: {lr: ")
    message = refused("run", "mine.yaml")
    assert str(tmp_path / "mine.yaml") in message
    assert "YAML" in message


def test_missing_domain(refused: Callable[..., str], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", "mnist", "usps")
    message = refused("run", "digits-small", f"data-dir={data}", "engine=inline")
    assert "mnistm" in message
    assert str(data) in message
    assert "mnist (train, test), usps (train, test)" in message


def test_truncated_npz(refused: Callable[..., str], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", "mnist", "usps", "mnistm")
    broken = data / "usps_test.npz"
    broken.write_bytes(broken.read_bytes()[:-2000])
    assert str(broken) in refused("run", "digits-small", f"data-dir={data}", "engine=inline")


def test_labels_outside_the_classes(refused: Callable[..., str], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", "mnist", "usps")
    write_digits(data, "mnistm", labels=12)
    message = refused("run", "digits-small", f"data-dir={data}", "engine=inline")
    assert str(data / "mnistm_train.npz") in message
    assert "0 to 11" in message
    assert "0 to 9" in message


def test_broken_image(refused: Callable[..., str], tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", "mnist", "usps")
    for split in ("train", "test"):
        folder = data / "mnistm" / split / "3"
        folder.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(folder / "a.png")
    broken = data / "mnistm" / "test" / "3" / "a.png"
    broken.write_bytes(broken.read_bytes()[:40])
    assert str(broken) in refused("run", "digits-small", f"data-dir={data}", "engine=inline")


def test_more_images_than_a_domain_has(refused: Callable[..., str]) -> None:
    """12 nodes in turn are 3 a domain, each asks for half of it."""
    message = refused("run", "engine=inline", "rounds=1", "nodes=12", "allocation.share=0.5")
    for part in ("3 nodes of 'scan'", "180", "540", "360"):
        assert part in message


def test_a_share_without_an_image(refused: Callable[..., str]) -> None:
    message = refused("run", "engine=inline", "rounds=1", "allocation.share=0.0001")
    assert "node 0 gets no image" in message
    assert len(message) < 600, "a wall of text"


def test_output_dir_is_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    message = refused("run", *QUICK, "output-dir=file")
    assert "output-dir" in message
    assert str(tmp_path / "file") in message


@pytest.mark.parametrize(
    "arguments", [["nope"], ["preview"], ["export"], ["preview", "handwritten", "--per-class", "0"], ["run", "--nope"]]
)
def test_usage_errors(arguments: list[str], fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("Usage: ")
    assert "Traceback" not in ended.err
    assert not list(tmp_path.iterdir())


# --- arguments --------------------------------------------------------------------------------------------


def test_arguments_are_divided() -> None:
    flat, launch = parse_arguments([
        "handwritten", "method=i2pfl", "rounds=3", "seed=0", "nodes=4", "engine=inline", "gpus-per-client=0.5",
        "set=train.lr=1", "method.tau=0.1", "allocation.counts={scan: 2, sketch: 1}",
    ])  # fmt: skip
    assert launch == {"nodes": 4, "engine": "inline", "gpus-per-client": 0.5}
    assert (flat["experiment"], flat["method"], flat["rounds"], flat["seed"]) == ("handwritten", "i2pfl", 3, 0)
    # What was written last counts: dotted arguments come after set=.
    assert flat["set"] == "train.lr=1 method.tau=0.1 'allocation.counts={scan: 2, sketch: 1}'"


def test_networks_per_node_need_no_dot() -> None:
    flat, _ = parse_arguments(["handwritten", "method=fedseproto", "model-per-node=[cnn3,cnn2]"])
    assert flat["set"] == "'model-per-node=[cnn3,cnn2]'"


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    flat, _ = parse_arguments(["a/b.yaml", "data-dir=~/images", "output-dir=../out"])
    assert flat["experiment"] == str(tmp_path / "a/b.yaml")
    assert flat["data-dir"] == str(tmp_path / "home/images")
    assert flat["output-dir"] == str(tmp_path.parent / "out")
    assert parse_arguments([])[0]["output-dir"] == str(tmp_path / "runs")


# --- preview ----------------------------------------------------------------------------------------------


def test_preview_writes_a_picture(fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift("preview", "handwritten", "-o", "x.png")
    assert ended.code == 0
    assert ended.out.strip() == f"wrote {tmp_path / 'x.png'}"
    with Image.open(tmp_path / "x.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        # Ten classes in a row, two samples of each in four domains, each 32x32 or larger.
        assert picture.width > 10 * 32
        assert picture.height > 4 * 2 * 32


def test_preview_of_an_experiment_draws_its_domains(fedshift: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "dataset: {name: handwritten, domains: [scan]}\nmodel: {name: cnn}\nmethod: {name: fedavg}\n"
        "train: {epochs: 1, batch_size: 8, lr: 0.01}\nrounds: 1\n"
    )
    assert fedshift("preview", "mine.yaml", "-o", "mine.png").code == 0
    assert fedshift("preview", "handwritten", "-o", "scan.png", "--domains", "scan").code == 0
    assert (tmp_path / "mine.png").read_bytes() == (tmp_path / "scan.png").read_bytes()


def test_preview_reads_a_data_dir(fedshift: Command, tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data", "usps")
    for keys in (["--data-dir", data], [f"data-dir={data}"]):
        ended = fedshift("preview", "digits", *keys, "--domains", "usps", "-o", "x.png")
        assert ended.code == 0
        assert (tmp_path / "x.png").is_file()


def test_preview_takes_the_keys_of_prepare(fedshift: Command, tmp_path: Path) -> None:
    assert fedshift("preview", "handwritten", "dataset.domains=[scan]", "-o", "key.png").code == 0
    assert fedshift("preview", "handwritten", "-o", "scan.png", "--domains", "scan").code == 0
    assert (tmp_path / "key.png").read_bytes() == (tmp_path / "scan.png").read_bytes()


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
    assert f"1 of 10 images cannot be read and is left out: {broken}" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nope"], ["'nope'", "handwritten"]),
        (["handwritten", "--domains", "scan,moon"], ["'moon'", "sketch"]),
        (["handwritten", "--split", "val"], ["'val'", "train", "test"]),
        (["handwritten", "-o", "nowhere/x.png"], ["nowhere/x.png"]),
        (["handwritten", "-o", "x"], ["cannot write x"]),
        (["digits"], ["data-dir"]),
        (["digits", "--data-dir", "nowhere"], ["nowhere", "does not exist"]),
        (["digits", "data-dir=nowhere"], ["nowhere", "does not exist"]),
        (["handwritten", "dataset.nope=1"], ["dataset.nope"]),
    ],
)
def test_preview_refuses(arguments: list[str], reason: list[str], refused: Callable[..., str]) -> None:
    message = refused("preview", *arguments)
    for part in reason:
        assert part in message


# --- export -----------------------------------------------------------------------------------------------


def test_export_gives_each_node_its_own_domain(fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift("export", "handwritten", "nodes=4", "-o", "out")
    assert ended.code == 0
    folders = [tmp_path / "out" / f"node-{i}-{domain}" for i, domain in enumerate(DOMAINS)]
    assert sorted((tmp_path / "out").iterdir()) == folders
    for i, (folder, domain) in enumerate(zip(folders, DOMAINS, strict=True)):
        assert sorted(path.name for path in folder.iterdir()) == [f"{domain}_test.npz", f"{domain}_train.npz"]
        command = ended.out.splitlines()[i]
        for part in ("fedshift supernode", f'domain="{domain}"', f'data-dir="{folder}"', f"partition-id={i}"):
            assert part in command


def test_nobody_else_reads_what_export_wrote(fedshift: Command, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert fedshift("export", "handwritten", "nodes=4", "-o", "out").code == 0
    finally:
        os.umask(before)
    collected = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert [path.stat().st_mode & 0o777 for path in collected if path.is_dir()] == [0o700] * 5
    assert [path.stat().st_mode & 0o777 for path in collected if path.is_file()] == [0o600] * 8


def test_export_divides_a_domain(fedshift: Command, tmp_path: Path) -> None:
    """Two nodes of one domain: together exactly its images, each image once."""
    assert fedshift("export", "handwritten", "allocation.counts={scan: 2}", "-o", "out").code == 0
    for split in ("train", "test"):
        parts = [np.load(tmp_path / "out" / f"node-{i}-scan" / f"scan_{split}.npz") for i in range(2)]
        whole = catalog.load("handwritten", "scan", "train" if split == "train" else "test", Source())
        pairs = [(y, x.tobytes()) for part in parts for x, y in zip(part["x"], part["y"], strict=True)]
        assert sorted(pairs) == sorted((y, x.tobytes()) for x, y in zip(whole.x, whole.y, strict=True))
        assert abs(len(parts[0]["y"]) - len(parts[1]["y"])) <= 1


def test_export_refuses_an_existing_folder(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    message = refused("export", "handwritten", "nodes=4", "-o", "out")
    assert str(tmp_path / "out") in message
    assert "exists" in message


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nope"], ["'nope'", "handwritten"]),
        (["handwritten", "nodes=1"], ["at least 2 nodes"]),
        (["handwritten", "bogus"], ["'bogus'", "key=value"]),
        (["digits-small"], ["data-dir"]),
        (["digits-small", "nodes=3"], ["needs 6 nodes", "has 3"]),
        (["handwritten", "nodes=12", "allocation.share=0.5"], ["3 nodes of 'scan'", "540"]),
    ],
)
def test_export_refuses(arguments: list[str], reason: list[str], refused: Callable[..., str]) -> None:
    message = refused("export", *arguments, "-o", "out")
    for part in reason:
        assert part in message


def test_export_takes_nothing_of_a_killed_one(fedshift: Command, tmp_path: Path) -> None:
    left = tmp_path / ".out.part" / "node-0-scan" / "sketch_train.npz"
    left.parent.mkdir(parents=True)
    left.touch()
    assert fedshift("export", "handwritten", "nodes=4", "-o", "out").code == 0
    node = tmp_path / "out" / "node-0-scan"
    assert sorted(path.name for path in node.iterdir()) == ["scan_test.npz", "scan_train.npz"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".part") == [".out.part"]


def test_export_below_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert str(tmp_path / "file") in refused("export", "handwritten", "nodes=4", "-o", "file/out")


def test_export_that_fails_leaves_nothing_half_done(refused: Callable[..., str], tmp_path: Path) -> None:
    """The first nodes' images are fine; those of mnistm are not there."""
    data = write_digits(tmp_path / "data", "mnist", "usps")
    message = refused("export", "digits-small", f"data-dir={data}", "allocation.share=equal", "-o", "out")
    assert "mnistm" in message


# --- a whole run ------------------------------------------------------------------------------------------


def test_inline_run(fedshift: Command, tmp_path: Path) -> None:
    ended = fedshift("run", "handwritten", *QUICK, "nodes=4", "output-dir=out", "seed=5")
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert len([line for line in lines if line.startswith("round 1/1")]) == 1
    assert not [line for line in lines if line.startswith("round") and not line.startswith("round 1/1")]
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("domain")) :]
    assert [line.split()[0] for line in table[2:6]] == list(DOMAINS)
    assert any(line.startswith("AVG") for line in table)

    said, _, path = lines[-1].partition(": ")
    folder = Path(path)
    assert said == "run folder"
    assert folder.is_absolute()
    assert [folder] == list((tmp_path / "out").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert (config["engine"], config["resolved"]["seed"], config["resolved"]["rounds"]) == ("inline", 5, 1)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in metrics] == [1]
    results = json.loads((folder / "results.json").read_text())
    assert {
        "method", "dataset", "seed", "rounds", "domains", "avg", "std", "final", "best_test", "worst", "seconds",
        "bytes_up", "bytes_down", "nodes",
    } <= set(results)  # fmt: skip
    assert list(results["domains"]) == list(DOMAINS)
    assert results["domains"] == results["final"] == metrics[0]["accuracy"]
    assert [node["domain"] for node in results["nodes"]] == list(DOMAINS)
    assert [node["num_examples"] for node in results["nodes"]] == [18, 18, 18, 18]  # 5 % of 359 or 360


def test_inline_run_that_fails_in_training(fedshift: Command, tmp_path: Path) -> None:
    """With such a learning rate every node's weights overflow in the first round."""
    ended = fedshift("run", *QUICK, "nodes=2", "train.lr=1e30", "train.batch_size=4", "output-dir=out")
    assert ended.code == 1
    assert ended.err.startswith("error: ")
    assert "not finite" in ended.err
    assert "scan" in ended.err
    assert "Traceback" not in ended.out + ended.err
    # What was there up to the last full round stays on disk: here the configuration, from which the run can go on.
    (folder,) = (tmp_path / "out").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint",
        "config.yaml",
        "lock",
        "log.jsonl",
        "status.json",
    ]
    assert not list((folder / "checkpoint").glob("round-*"))


def test_inline_run_with_a_domain_held_out(fedshift: Command) -> None:
    ended = fedshift("run", *QUICK, "nodes=2", "allocation.held_out=[street,sketch]", "output-dir=out")
    assert ended.code == 0, ended.err
    assert "street: held by no node" in ended.out
    results = json.loads((Path(ended.out.splitlines()[-1].partition(": ")[2]) / "results.json").read_text())
    assert [node["domain"] for node in results["nodes"]] == ["scan", "texture"]
    assert all(value is not None for value in results["domains"].values())


# --- for scripts ------------------------------------------------------------------------------------------


def test_json_is_the_last_line_of_a_run_and_of_a_refusal(fedshift: Command) -> None:
    ended = fedshift("run", "handwritten", *QUICK, "workers=1", "--json")
    (line,) = ended.out.splitlines()
    content = json.loads(line)
    results = json.loads((Path(content["folder"]) / "results.json").read_text())
    assert ended.code == content["exit_code"] == 0 and content["state"] == "completed" and content["rounds"] == 1
    assert content["scores"]["domains"] == results["domains"] and "round 1/1" in ended.err
    refusal = fedshift("run", "handwritten", "method=nothing", "--json")
    content = json.loads(refusal.out)
    assert refusal.code == content["exit_code"] == 1 and content["folder"] is None
    assert refusal.err.startswith("error: ") and content["error"] in refusal.err
    assert "not both" in fedshift("run", "--dry-run", "--json").err

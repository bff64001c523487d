"""Which images a node trains, validates and is tested on; corrupted, held-out and own test sets in whole runs."""

from inspect import signature
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from numpy.typing import NDArray
from PIL import Image
from support import InlineRun, ListeningGrid

from fedshift import cli
from fedshift.run.checking import check_data
from fedshift.site.deploy.exporting import export
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node import holdings
from fedshift_app.node.data import Own, Place, own_images
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.io import files
from fedshift_datasets.io.resize import fit

FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"


def config(text: str, **flat: Any) -> RunConfig:
    return resolve({"set": text} | flat)


def place(cfg: RunConfig, index: int, nodes: int = 8) -> Place:
    dealt = cfg.allocation.deal(cfg.dataset.domains, nodes, cfg.seed)
    return Place(dealt[index], index, nodes, cfg.dataset.source(), shared=True, threads=1)


def whole(domain: str) -> list[bytes]:
    return [x.tobytes() for split in ("train", "test") for x in catalog.load("handwritten", domain, split, Source()).x]


def names(images: ImageSet | None) -> list[bytes]:
    return [] if images is None else [x.tobytes() for x in images.x]


def test_own_test_sets_are_cut_from_all_images_of_the_domain() -> None:
    cfg = config("allocation.test_fraction=0.2")
    first, second = (own_images(cfg, place(cfg, index)) for index in (0, 4))  # the two nodes of scan
    held = [set(names(part)) for own in (first, second) for part in (own.train, own.test)]
    assert sum(len(part) for part in held) == len(set.union(*held)) == 450
    assert set.union(*held) == set(whole("scan"))
    assert len(first.test or ()) == pytest.approx(0.2 * 225, abs=6)


def patients(folder: Path) -> str:
    """Write two sites, each of ten patients with four images; return the words of a run with them."""
    rows, pixels = ["file,label,domain,patient"], np.random.default_rng(0).integers(0, 255, (80, 16, 16, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{('east', 'west')[number // 40]},P{number // 2 % 10}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return f"dataset.data_dir={folder} dataset.size=32 allocation.validation_fraction=0 allocation.test_fraction=0.3"


def sides_of(own: list[Own], *tests: ImageSet) -> list[set[str]]:
    """Return the patients that nodes train on, validate on and are tested on."""
    parts = ([each.train for each in own], [each.validation for each in own], [*(each.test for each in own), *tests])
    return [
        {group for images in part if images is not None and images.groups is not None for group in images.groups}
        for part in parts
    ]


@pytest.mark.parametrize(
    "words", ["allocation.validation_fraction=0.2", "allocation.validation_fraction=0.2 dataset.public=0.2"]
)
def test_no_part_divides_a_patient_in_a_simulation_or_on_exported_nodes(tmp_path: Path, words: str) -> None:
    text = f"{patients(tmp_path)} {words}"
    cfg = config(text, dataset="folders", method="fedmd" if "public" in words else "fedavg")
    check_data(cfg, 4)
    own = [own_images(cfg, place(cfg, index, 4)) for index in (0, 2)]  # the two nodes of east
    trained, validated, tested = sides_of(own)
    public = (
        set(node_data.public_images(cfg.dataset, cfg.allocation, cfg.dataset.source(), ("east",), 0).groups)
        if ("public" in words)
        else set()
    )
    assert trained and validated and len(tested) == (2 if public else 3) and bool(public) == ("public" in words)
    assert len(trained) + len(validated) + len(tested) + len(public) == 10

    cfg = config(text.replace("allocation.test_fraction=0.3", ""), dataset="folders", method=cfg.method["name"])
    simulated = [own_images(cfg, place(cfg, index, 4)) for index in (0, 2)]
    nodes = [folder for folder in export(cfg, 4, tmp_path / "nodes") if folder.domain == "east"]
    for folder, there in zip(nodes, simulated, strict=True):
        where = Place("east", 0, -1, cfg.dataset.source(folder.path), shared=False, threads=1)
        here = own_images(cfg, where)
        assert names(here.train) == names(there.train) and names(here.validation) == names(there.validation)
    trained, validated, tested = sides_of(simulated, node_data.test_images(cfg, place(cfg, 0, 4), "east"))
    assert trained and validated and len(trained | validated | tested) == len(trained) + len(validated) + len(tested)


def test_a_real_node_divides_no_patient(tmp_path: Path) -> None:
    cfg = config(
        f"{patients(tmp_path)} allocation.validation_fraction=0.2 allocation.test_fraction=0", dataset="folders"
    )
    where = Place("east", 0, -1, cfg.dataset.source(tmp_path), shared=False, threads=1)
    sides = sides_of([own_images(cfg, where)], node_data.test_images(cfg, where, "east"))
    assert all(sides) and sum(map(len, sides)) == len(set.union(*sides)) == 10
    listed = config(
        f"{patients(tmp_path)} allocation.validation_fraction=0.2 allocation.test_fraction=0 dataset.patients=listed",
        dataset="folders",
    )
    trained, validated, _ = sides_of([own_images(listed, where)])
    assert trained & validated  # as runs from before the key


def patients_of(folder: Path, cfg: RunConfig) -> list[set[str]]:
    """Return whose images each node of east is tested on, by the pixels of the sites' own files."""
    known = {}
    for split in ("train", "test"):
        images = catalog.load("folders", "east", split, cfg.dataset.source(), 32)
        assert images.groups is not None
        known |= {x.tobytes(): group for x, group in zip(images.x, images.groups.tolist(), strict=True)}
    found = []
    for path in sorted((folder / "nodes").glob("*east*")):
        with np.load(path / "east_test.npz") as file:
            found.append({known[x.tobytes()] for x in file["x"]})
    return found


def test_exported_nodes_know_the_patients_of_their_images(tmp_path: Path) -> None:
    """Intervals of a site are drawn by patient; no patient is tested on two nodes."""
    cfg = config(patients(tmp_path).replace(" allocation.test_fraction=0.3", ""), dataset="folders")
    tested: list[set[str]] = []
    for folder in export(cfg, 4, tmp_path / "nodes"):
        where = Place(folder.domain, 0, -1, cfg.dataset.source(folder.path), shared=False, threads=1)
        test, train = node_data.test_images(cfg, where, folder.domain), own_images(cfg, where).train
        here, trained = (set((images.groups if images.groups is not None else np.array([])).tolist())
                         for images in (test, train))  # fmt: skip
        assert here and trained and not here & trained
        assert all(name.isdecimal() for name in here | trained)  # no names
        tested += [here] if folder.domain == "east" else []
    assert len(tested) == 2
    names_of = patients_of(tmp_path, cfg)
    assert not names_of[0] & names_of[1]
    with_public = config(
        f"{patients(tmp_path)} dataset.public=0.2".replace(" allocation.test_fraction=0.3", ""),
        dataset="folders", method="fedmd",
    )  # fmt: skip
    for folder in export(with_public, 4, tmp_path / "public"):
        with np.load(folder.path / "public_train.npz") as file:
            assert "patient" not in file.files
        with np.load(folder.path / f"{folder.domain}_train.npz") as file:
            assert "patient" in file.files


def test_a_domain_is_then_tested_on_its_nodes_test_sets() -> None:
    cfg = config("allocation.test_fraction=0.2")
    own = [names(own_images(cfg, place(cfg, index)).test) for index in (0, 4)]
    for index in (0, 1):  # the same for a node of the domain and for another
        assert sorted(names(node_data.test_images(cfg, place(cfg, index), "scan"))) == sorted(own[0] + own[1])
    assert node_data.num_test(cfg, place(cfg, 0)) == len(own[0]) + len(own[1])


def test_validation_images_are_not_trained_on() -> None:
    cfg = config("allocation.validation_fraction=0.1")
    own: Own = own_images(cfg, place(cfg, 0))
    assert own.test is None
    assert not set(names(own.train)) & set(names(own.validation))
    assert set(names(own.train)) | set(names(own.validation)) == set(names(own_images(config(""), place(cfg, 0)).train))


def test_corruption_touches_test_images_only_and_is_the_same_for_every_node() -> None:
    clean, bad = config(""), config("shift.name=corruption shift.severity=5")
    assert names(own_images(clean, place(clean, 0)).train) == names(own_images(bad, place(bad, 0)).train)
    here, there = (node_data.test_images(bad, place(bad, index), "scan") for index in (0, 1))
    assert np.array_equal(here.x, there.x)
    assert not np.array_equal(here.x, node_data.test_images(clean, place(clean, 0), "scan").x)
    fog = config("shift.name=corruption shift.corruption=fog")
    assert not np.array_equal(node_data.test_images(fog, place(fog, 0), "scan").x, here.x)
    none = config("shift.name=corruption shift.severity=0")
    assert np.array_equal(
        node_data.test_images(none, place(none, 0), "scan").x, node_data.test_images(clean, place(clean, 0), "scan").x
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shift.corruption=rain", "'rain' is unknown; there are random, gaussian_noise"),
        ("shift.severity=6", "shift.severity: .*found 6"),
        ("shift.name=domain", "needs allocation.held_out"),
        ("shift.name=attribute allocation.held_out=[scan]", "needs dataset cifar10, found handwritten"),
        ("shift.name=corruption allocation.test_fraction=0.2", "needs allocation.test_fraction=0"),
        (
            "shift.name=corruption dataset.size=384 model.name=resnet10",
            "shift.name=corruption needs images of 28 to 224 pixels, found 384",
        ),
        ("shift.label_mix=own allocation.test_fraction=0.2", "needs allocation.test_fraction=0, found 0.2"),
        ("shift.name=corruption allocation.test_on=domain", "shift.name=corruption needs allocation.test_on=split"),
        ("shift.label_mix=own allocation.test_on=domain", "shift.label_mix=own needs allocation.test_on=split"),
        ("shift.label_mix=other", "shift.label_mix: .*'none' or 'own', found 'other'"),
        ("dataset.size=64", "model.name=cnn needs dataset.size=32, found 64"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(text)


def test_a_test_set_cannot_be_trained_on() -> None:
    with pytest.raises(ConfigError, match=r"'cifar10.1' is only a test set"):
        config("dataset.domains=[cifar10,cifar10.1]", dataset="cifar10")


def test_runs_with_shift_and_own_tests_go_through(run_inline: InlineRun) -> None:
    clean = run_inline(rounds=2, set=FEW).results
    corrupted = run_inline(rounds=2, set=f"{FEW} shift.name=corruption").results
    assert corrupted["weights_sha256"] == clean["weights_sha256"]  # training does not see the shift
    assert corrupted["final"] != clean["final"]
    own = run_inline(rounds=1, set="train.epochs=1 allocation.share=0.3 allocation.test_fraction=0.2").results
    assert None not in own["final"].values()


def test_whole_domains_are_the_test_where_that_is_asked_for() -> None:
    """The test lists of PACS in the code of I2PFL's first author hold all images of a domain."""
    cfg = config("allocation.test_on=domain")
    for index in (0, 1):  # the same for a node of the domain and for another
        assert names(node_data.test_images(cfg, place(cfg, index), "scan")) == whole("scan")
    assert node_data.num_test(cfg, place(cfg, 0)) == 450
    plain = config("")
    assert names(own_images(cfg, place(cfg, 0)).train) == names(own_images(plain, place(plain, 0)).train)
    held_out = config("allocation.test_on=domain allocation.held_out=[street]")
    assert node_data.unheld_tests(held_out, place(held_out, 0)) == {"street": len(whole("street"))}


def test_an_export_divides_whole_domains_among_their_nodes(tmp_path: Path) -> None:
    cfg = config("allocation.test_on=domain")
    folders = export(cfg, 8, tmp_path / "nodes")
    parts, classes = [], []
    for folder in folders:
        if folder.domain == "scan":
            with np.load(folder.path / "scan_test.npz") as file:
                parts += [x.tobytes() for x in file["x"]]
                classes.append(np.bincount(file["y"], minlength=10))
    assert sorted(parts) == sorted(whole("scan"))
    assert len(classes) == 2
    assert np.abs(classes[0] - classes[1]).max() <= 1  # files are listed class by class: no stretch of that list


def test_a_run_that_is_tested_on_whole_domains_trains_as_any_other(run_inline: InlineRun) -> None:
    split, domain = (
        run_inline(rounds=1, set=f"{FEW} allocation.test_on={name}").results for name in ("split", "domain")
    )
    assert domain["weights_sha256"] == split["weights_sha256"]
    assert domain["final"] != split["final"]


def test_whole_domains_of_a_held_out_domain_are_read_and_reported(pacs: Path) -> None:
    text = "allocation.counts=any allocation.held_out=[sketch] dataset.size=32"
    for test_on, splits in (("split", {"test"}), ("domain", {"train", "test"})):
        cfg = config(f"{text} allocation.test_on={test_on}", experiment="f2dc-pacs", **{"data-dir": str(pacs)})
        check_data(cfg, 3)
        assert set(node_data.fingerprints(cfg)["sketch"]) == splits


def test_a_test_set_has_no_other_images() -> None:
    with pytest.raises(
        ConfigError, match=r"allocation.test_on=domain: 'cifar10.1' is only a test set; allowed is split"
    ):
        config("allocation.test_on=domain shift.label_mix=none", experiment="fedicon-cifar10-attribute")


SKEWED = "shift.label_mix=own allocation.label_skew=0.3"


def class_shares(images: ImageSet) -> NDArray[np.float64]:
    return np.bincount(images.y, minlength=10) / len(images)


def test_with_its_own_label_mix_a_node_is_tested_on_labels_like_those_it_trains_on() -> None:
    cfg, plain = config(SKEWED), config("")
    for domain in cfg.dataset.domains:
        all_of_it = set(names(node_data.test_images(plain, place(plain, 0), domain)))
        for index in range(8):
            where = place(cfg, index)
            test = node_data.test_images(cfg, where, domain)
            assert len(test) == len(all_of_it) // 2  # two nodes of eight hold it, and answer for it
            assert set(names(test)) <= all_of_it
            assert np.abs(class_shares(test) - class_shares(own_images(cfg, where).train)).max() <= 1 / len(test)
            assert names(test) == names(node_data.test_images(cfg, where, domain))
        assert node_data.num_test(cfg, place(cfg, 0)) == 45
    first, second = (node_data.test_images(cfg, place(cfg, index), "scan") for index in (0, 4))
    assert names(first) != names(second)


def test_a_validation_part_and_a_corruption_leave_the_label_mix_alone() -> None:
    cfg = config(SKEWED)
    test = node_data.test_images(cfg, place(cfg, 0), "scan")
    kept = config(f"{SKEWED} allocation.validation_fraction=0.3")
    assert names(node_data.test_images(kept, place(kept, 0), "scan")) == names(test)
    bad = config(f"{SKEWED} shift.name=corruption")
    corrupted = node_data.test_images(bad, place(bad, 0), "scan")
    assert np.array_equal(corrupted.y, test.y)
    assert names(corrupted) != names(test)
    assert names(node_data.test_images(node_data.uncorrupted(bad), place(bad, 0), "scan")) == names(test)


def test_an_exported_node_is_tested_on_what_was_drawn_for_it(tmp_path: Path) -> None:
    cfg = config(SKEWED)
    for folder in export(cfg, 8, tmp_path / "out"):
        real = Place(folder.domain, folder.index, -1, Source(folder.path), shared=False, threads=1)
        drawn = node_data.test_images(cfg, place(cfg, folder.index), folder.domain)
        assert names(node_data.test_images(cfg, real, folder.domain)) == names(drawn)
        assert node_data.num_test(cfg, real) == len(drawn)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """A small CIFAR-10, 200 images to train on and 80 to test, and 40 of CIFAR-10.1; colour tells the class."""
    rng = np.random.default_rng(0)

    def made(count: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        y = np.arange(count) % 10
        x = rng.integers(0, 60, (count, 32, 32, 3)) + np.array([[20 * c, 180 - 18 * c, 60] for c in y])[:, None, None]
        return x.astype(np.uint8), y.astype(np.uint8)

    for name, count in {**{f"data_batch_{i}": 40 for i in range(1, 6)}, "test_batch": 80}.items():
        x, y = made(count)
        records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(count, -1)], axis=1)
        (tmp_path / f"{name}.bin").write_bytes(records.tobytes())
    x, y = made(40)
    np.save(tmp_path / "cifar10.1_v6_data.npy", x)
    np.save(tmp_path / "cifar10.1_v6_labels.npy", y.astype(np.int32))
    return tmp_path


def test_every_node_is_scored_on_its_own_draw_of_both_test_sets(cifar: Path, run_inline: InlineRun) -> None:
    replies: dict[int, dict[str, float]] = {}

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            if message.metadata.message_type == MessageType.EVALUATE:
                index = int(str(message.content.config_records["config"]["node-index"]))
                replies[index] = {k: float(str(v)) for k, v in reply.content.metric_records["metrics"].items()}
            return reply

    small = "'allocation.counts={cifar10: 4}' train.epochs=1 evaluate.client_models=last"
    run = run_inline("fedicon-cifar10-attribute", rounds=1, data_dir=str(cifar), grid=Grid, set=small)
    assert list(replies) == [0, 1, 2, 3]
    for domain, number in (("cifar10", 20), ("cifar10.1", 10)):
        assert [result[f"count/{domain}"] for result in replies.values()] == [number] * 4
        # Parts are equally large, so the sum over nodes is FedICON's mean over clients.
        means = [100 * result[f"correct/{domain}"] / number for result in replies.values()]
        assert run.results["final"][domain] == pytest.approx(np.mean(means))
    outcome = run.results["client_models"]
    assert outcome["lta"] == pytest.approx(np.mean([row["cifar10"] for row in outcome["matrix"].values()]))
    assert all(set(row) == {"cifar10", "cifar10.1"} for row in outcome["matrix"].values())
    assert outcome["gasa"] is None  # nobody was scored on another node's draw
    assert outcome["why_missing"].startswith("nodes have test images of their own only")


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    """A small PACS: twelve images of each class and domain, whose colour tells the class."""
    rng = np.random.default_rng(0)
    known = catalog.get("pacs")
    for domain in known.domains:
        for label, name in enumerate(known.classes):
            folder = tmp_path / "PACS" / domain / name
            folder.mkdir(parents=True)
            for number in range(12):
                image = rng.integers(0, 60, (40, 40, 3)) + np.array([30 * label, 180 - 25 * label, 90])
                Image.fromarray(image.astype(np.uint8)).save(folder / f"{number:02}.jpg")
    return tmp_path


def test_a_run_on_pacs_decodes_once_and_covers_all_classes(pacs: Path, run_inline: InlineRun) -> None:
    small = "train.epochs=1 train.batch_size=8 dataset.size=32 model.name=cnn"
    run = run_inline("f2dc-pacs", nodes=10, rounds=1, data_dir=str(pacs), set=small)
    assert set(run.results["final"]) == {"photo", "art_painting", "cartoon", "sketch"}
    assert all(min(node["class_counts"]) >= 1 for node in run.results["nodes"])
    assert [node["num_examples"] for node in run.results["nodes"]] == [20] * 10  # 30 % of 68 of 84


def test_prepare_reports_counts_and_what_is_missing(pacs: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["fedshift", "prepare", "pacs", f"data-dir={pacs}", "dataset.size=32"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "photo: train 68, test 16, 40x40, 84 RGB; published: photo: 84 of 1670 images, 1586 missing" in output


def test_what_all_nodes_of_a_domain_hold_is_worked_out_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = holdings.domain_parts

    def counted(allocation: Any, dealt: Any, domain: str, *more: Any, **keys: Any) -> Any:
        calls.append(domain)
        return real(allocation, dealt, domain, *more, **keys)

    monkeypatch.setattr(holdings, "domain_parts", counted)
    cfg = config("allocation.test_fraction=0.2")
    for index in range(40):
        where = place(cfg, index, nodes=40)
        own_images(cfg, where)
        node_data.test_images(cfg, where, "scan")
        node_data.num_test(cfg, where)
    assert sorted(calls) == ["scan", "sketch", "street", "texture"]


def test_a_held_out_domain_is_reported_with_its_number_of_test_images() -> None:
    cfg = config("allocation.held_out=[street]")
    assert node_data.unheld_tests(cfg, place(cfg, 0)) == {"street": 90}
    assert node_data.unheld_tests(config(""), place(config(""), 0)) == {}
    real = Place("scan", 0, -1, Source(Path("/nowhere")), shared=False, threads=1)
    assert node_data.unheld_tests(cfg, real) == {}


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("layout", ["npz", "folder"])
def test_how_images_become_squares_is_a_key_in_simulation_and_on_a_real_node(
    tmp_path: Path, shared: bool, layout: str
) -> None:
    wide = np.random.default_rng(0).integers(50, 256, (10, 20, 40, 3), np.uint8)
    for split in ("train", "test"):
        if layout == "npz":
            files.write_npz(tmp_path / f"scan_{split}.npz", ImageSet(wide, np.arange(10)))
        for label, image in enumerate(wide if layout == "folder" else ()):
            folder = tmp_path / "scan" / split / str(label)
            folder.mkdir(parents=True)
            Image.fromarray(image).save(folder / "a.png")
    content = {}
    for resize in ("squash", "crop", "pad"):
        keys = f"dataset.resize={resize} dataset.domains=[scan] allocation.counts=any"
        cfg = config(keys, **{"data-dir": str(tmp_path)})
        nodes = [Place("scan", i, 2 if shared else -1, Source(tmp_path), shared, 1) for i in range(2 if shared else 1)]
        parts = [own_images(cfg, where).train.x for where in nodes]
        content[resize] = np.concatenate([*parts, node_data.test_images(cfg, nodes[0], "scan").x])
        wanted = [fit(Image.fromarray(image), 32, resize) for image in wide]  # type: ignore[arg-type]
        same = {np.asarray(image).tobytes() for image in wanted} == {image.tobytes() for image in content[resize]}
        assert same or (layout, resize) == ("npz", "squash")  # which torch resizes, to one grey level
    black = (content["pad"] == 0).all(axis=(2, 3))
    assert black[:, [*range(8), *range(24, 32)]].all() and not black[:, 8:24].any()
    assert not np.array_equal(content["squash"], content["crop"])


def test_a_second_run_of_a_process_takes_what_is_on_the_disk_then(tmp_path: Path, run_inline: InlineRun) -> None:
    def draw(names: range) -> None:
        rng = np.random.default_rng(names.start)
        for site, label in product(("east", "west"), "ab"):
            (tmp_path / "sites" / site / label).mkdir(parents=True, exist_ok=True)
            for name in names:
                pixels = rng.integers(0, 255, (32, 32, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "sites" / site / label / f"{name}.png")

    chosen: dict[str, Any] = {
        "dataset": "folders", "rounds": 1,
        "set": f"dataset.data_dir={tmp_path / 'sites'} dataset.size=32 allocation.validation_fraction=0.2 "
        "shift.name=corruption shift.severity=1 train.epochs=1 train.precision=float32",
    }  # fmt: skip
    draw(range(5))
    cfg = config(chosen["set"], dataset="folders")
    assert check_data(cfg, 2) == 6  # of ten, two to test on, and two to validate on
    first = run_inline(nodes=2, **chosen)
    draw(range(5, 20))
    second = run_inline(nodes=2, **chosen)
    assert check_data(cfg, 2) == 26
    for site, label, name in product(("east", "west"), "ab", range(4, 20)):
        (tmp_path / "sites" / site / label / f"{name}.png").unlink()
    third = run_inline(nodes=2, **chosen)
    trained = [[node["num_examples"] for node in run.results["nodes"]] for run in (first, second, third)]
    assert trained == [[6, 6], [26, 26], [5, 5]]


def test_all_that_is_remembered_of_images_is_forgotten_at_the_start_of_a_run() -> None:
    forgotten = {*catalog._REMEMBERED, *holdings._REMEMBERED, *node_data._REMEMBERED}
    for module in (catalog, holdings, node_data):
        for function in vars(module).values():
            if hasattr(function, "cache_clear") and {"source", "config"} & signature(function).parameters.keys():
                assert function in {*forgotten, holdings.dealt, holdings.unheld}

"""Which images a node trains, validates and is tested on; corrupted, held-out and own test sets in whole runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from placed_nodes import config, names, place, real
from refusals import refused

from fedshift.run.checking import check_data
from fedshift.site.deploy.exporting import export
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node.data import Own, Place, own_images
from fedshift_core.errors import ConfigError
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source


def whole(domain: str) -> list[bytes]:
    return [x.tobytes() for split in ("train", "test") for x in catalog.load("handwritten", domain, split, Source()).x]


def test_own_test_sets_are_cut_from_all_images_of_the_domain() -> None:
    cfg = config("allocation.test_fraction=0.2")
    first, second = (own_images(cfg, place(cfg, index)) for index in (0, 4))  # the two nodes of scan
    held = [set(names(part)) for own in (first, second) for part in (own.train, own.test)]
    assert sum(len(part) for part in held) == len(set.union(*held)) == 450
    assert set.union(*held) == set(whole("scan"))
    assert len(first.test or ()) == pytest.approx(0.2 * 225, abs=6)


def patients(folder: Path, *words: str, **flat: Any) -> RunConfig:
    """Write two sites, each of ten patients with four images; return the configuration of a run with them."""
    rows, pixels = ["file,label,domain,patient"], np.random.default_rng(0).integers(0, 255, (80, 16, 16, 3), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{'ab'[number % 2]},{('east', 'west')[number // 40]},P{number // 2 % 10}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return config(" ".join((f"dataset.data_dir={folder} dataset.size=32", *words)), dataset="folders", **flat)


def sides_of(own: list[Own], *tests: ImageSet) -> list[set[str]]:
    """Return the patients that nodes train on, validate on and are tested on."""
    parts = ([each.train for each in own], [each.validation for each in own], [*(each.test for each in own), *tests])
    return [
        {group for images in part if images is not None and images.groups is not None for group in images.groups}
        for part in parts
    ]


VALIDATED = "allocation.validation_fraction=0.2"
PUBLIC = {"method": "fedmd"}  # which needs a public set


@pytest.mark.parametrize("flat", [{}, PUBLIC])
def test_no_part_divides_a_patient_in_a_simulation_or_on_exported_nodes(tmp_path: Path, flat: dict[str, Any]) -> None:
    public = ["dataset.public=0.2"] if flat else []
    cfg = patients(tmp_path, VALIDATED, "allocation.test_fraction=0.3", *public, **flat)
    check_data(cfg, 4)
    sides = sides_of([own_images(cfg, place(cfg, index, 4)) for index in (0, 2)])  # the two nodes of east
    if flat:
        images = node_data.public_images(cfg.dataset, cfg.allocation, cfg.dataset.source(), ("east",), 0)
        sides.append(set(images.groups.tolist()))
    assert all(sides) and sum(map(len, sides)) == len(set.union(*sides)) == 10

    cfg = patients(tmp_path, VALIDATED, *public, **flat)
    simulated = [own_images(cfg, place(cfg, index, 4)) for index in (0, 2)]
    nodes = [folder for folder in export(cfg, 4, tmp_path / "nodes") if folder.domain == "east"]
    for folder, there in zip(nodes, simulated, strict=True):
        here = own_images(cfg, real(cfg, "east", folder.path))
        assert names(here.train) == names(there.train) and names(here.validation) == names(there.validation)
    sides = sides_of(simulated, node_data.test_images(cfg, place(cfg, 0, 4), "east"))
    assert all(sides) and len(set.union(*sides)) == sum(map(len, sides))


def test_a_real_node_divides_no_patient_but_in_runs_from_before_the_key(tmp_path: Path) -> None:
    cfg = patients(tmp_path, VALIDATED)
    where = real(cfg, "east", tmp_path)
    sides = sides_of([own_images(cfg, where)], node_data.test_images(cfg, where, "east"))
    assert all(sides) and sum(map(len, sides)) == len(set.union(*sides)) == 10
    trained, validated, _ = sides_of([own_images(patients(tmp_path, VALIDATED, "dataset.patients=listed"), where)])
    assert trained & validated


def test_validation_images_are_not_trained_on() -> None:
    cfg = config("allocation.validation_fraction=0.1")
    own: Own = own_images(cfg, place(cfg, 0))
    assert own.test is None
    assert not set(names(own.train)) & set(names(own.validation))
    assert set(names(own.train)) | set(names(own.validation)) == set(names(own_images(config(""), place(cfg, 0)).train))


def test_corruption_touches_test_images_only_and_is_the_same_for_every_node() -> None:
    bad = "shift.name=corruption shift.severity=5"
    clean, blurred, fog = map(config, ("", bad, f"{bad} shift.corruption=fog"))
    assert names(own_images(clean, place(clean, 0)).train) == names(own_images(blurred, place(blurred, 0)).train)

    def tests(cfg: RunConfig, index: int = 0) -> bytes:
        return node_data.test_images(cfg, place(cfg, index), "scan").x.tobytes()

    assert (seen := tests(blurred)) == tests(blurred, 1)
    assert len({tests(clean), seen, tests(fog)}) == 3


@pytest.mark.parametrize(
    ("text", "named", "flat"),
    [
        ("shift.corruption=rain", "'rain'", {}),
        ("shift.severity=6", 6, {}),
        ("shift.name=domain", "allocation.held_out", {}),
        ("shift.name=attribute allocation.held_out=[scan]", "cifar10", {}),
        ("shift.name=corruption allocation.test_fraction=0.2", "allocation.test_fraction=0", {}),
        ("shift.name=corruption dataset.size=384 model.name=resnet10", 384, {}),
        ("shift.label_mix=own allocation.test_fraction=0.2", "allocation.test_fraction=0", {}),
        ("shift.name=corruption allocation.test_on=domain", "allocation.test_on=split", {}),
        ("shift.label_mix=own allocation.test_on=domain", "allocation.test_on=split", {}),
        ("dataset.size=64", 64, {}),
        ("dataset.domains=[cifar10,cifar10.1]", "'cifar10.1'", {"dataset": "cifar10"}),
        ("allocation.test_on=domain shift.label_mix=none", "'cifar10.1'", {"experiment": "fedicon-cifar10-attribute"}),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, named: object, flat: dict[str, Any]) -> None:
    with refused(ConfigError, named):
        config(text, **flat)


def test_whole_domains_are_the_test_where_that_is_asked_for() -> None:
    """The test lists of PACS in the code of I2PFL's first author hold all images of a domain."""
    cfg, plain = config("allocation.test_on=domain"), config("")
    for index in (0, 1):  # the same for a node of the domain and for another
        assert names(node_data.test_images(cfg, place(cfg, index), "scan")) == whole("scan")
    assert node_data.num_test(cfg, place(cfg, 0)) == 450
    assert names(own_images(cfg, place(cfg, 0)).train) == names(own_images(plain, place(plain, 0)).train)


@pytest.mark.parametrize(("test_on", "splits"), [("split", {"test"}), ("domain", {"train", "test"})])
def test_a_held_out_domain_is_read_and_reported(test_on: str, splits: set[str]) -> None:
    cfg = config(f"allocation.held_out=[street] allocation.test_on={test_on}")
    assert {split for domain, split in node_data.read_parts(cfg) if domain == "street"} == splits
    number = 90 if test_on == "split" else len(whole("street"))
    assert node_data.unheld_tests(cfg, place(cfg, 0)) == {"street": number}
    for where in (place(config(""), 0), Place("scan", 0, -1, Source(Path("/nowhere")), shared=False, threads=1)):
        assert node_data.unheld_tests(config(""), where) == {}


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


# --- images of several domains ------------------------------------------------------------------------------


FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"


def test_a_node_trains_on_both_domains_and_knows_of_which_an_image_is() -> None:
    alone, mixed = (config(f"{FEW} allocation.mixing={part}") for part in (0, 0.5))
    for index in range(4):
        before, after = own_images(alone, place(alone, index, 4)), own_images(mixed, place(mixed, index, 4))
        assert before.train.domains is None
        assert after.train.domains is not None
        home = mixed.dataset.domains.index(place(mixed, index, 4).domain)
        of_home = int((after.train.domains == home).sum())
        assert len(after.train) == len(before.train)
        assert 0.7 * len(after.train) <= of_home <= 0.8 * len(after.train)  # half, and half of the other half
        kept = {mark.tobytes() for mark in before.train.marks}
        assert sum(mark.tobytes() in kept for mark in after.train.marks) >= len(before.train) // 2
        assert np.array_equal(after.train.select(np.arange(3)).domains, after.train.domains[:3])


def test_the_domain_of_an_image_can_be_unknown() -> None:
    cfg = config(f"{FEW} allocation.mixing=0.5 allocation.domain_labels=unknown")
    assert own_images(cfg, place(cfg, 0, 4)).train.domains is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("allocation.mixing=1.5", 1.5),
        ("allocation.mixing=0.5 allocation.test_fraction=0.2", "test_fraction"),
        ("allocation.mixing=0.5 shift.label_mix=own", "shift.label_mix=own"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, named: object) -> None:
    with refused(ConfigError, "mixing", named):
        config(f"{FEW} {text}")

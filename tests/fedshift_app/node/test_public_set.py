"""The public set (``dataset.public``): nobody's images, the same on all nodes, refused where it cannot be."""

import functools
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from placed_nodes import config, names, place, real
from refusals import refused
from support import public_set_feature

from fedshift.run.checking import check_data
from fedshift.site.deploy.exporting import export
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import identify_process
from fedshift_app.node import data as node_data
from fedshift_app.node.data import own_images, public_set
from fedshift_app.run import resuming
from fedshift_core.errors import ConfigError, DataError, FederationError
from fedshift_core.wire.messages import NodeIntroduction
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.io import npz
from fedshift_strategies.federation.roster import Node, Roster


def pixels(images: ImageSet | None) -> set[bytes]:
    return set(names(images))


def held(cfg: RunConfig, index: int) -> set[bytes]:
    """Return all images that a node trains, validates or is tested on."""
    where = place(cfg, index)
    own = own_images(cfg, where)
    tests = (pixels(node_data.test_images(cfg, where, domain)) for domain in cfg.dataset.domains)
    return pixels(own.train) | pixels(own.validation) | pixels(own.test) | set.union(*tests)


@pytest.mark.parametrize(
    "allocation",
    [
        "",
        "allocation.share=0.3 allocation.validation_fraction=0.2",
        "allocation.share=0.9 allocation.with_replacement=true",
        "allocation.share=0.6 allocation.last_takes_rest=true allocation.class_coverage=true",
        "allocation.share=0.5 allocation.share_per=domain",
        "allocation.label_skew=0.5",
        "allocation.test_fraction=0.2 allocation.validation_fraction=0.1",
        "allocation.held_out=[street] allocation.test_fraction=0.2",
    ],
)
def test_no_image_of_a_node_is_public(allocation: str) -> None:
    cfg = config(f"dataset.public=0.1 {allocation}")
    public = public_set(cfg, place(cfg, 0))
    assert pixels(public.images) == pixels(public_set(cfg, place(cfg, 5)).images)
    of_domain = 45 if cfg.allocation.test_fraction else 36
    domains = 3 if cfg.allocation.held_out else 4
    assert len(public.images) == len(pixels(public.images)) == domains * of_domain
    for index in range(8):
        assert not pixels(public.images) & held(cfg, index)


def test_a_domain_is_public_as_a_whole_and_nobody_is_tested_on_it() -> None:
    cfg = config("dataset.public=sketch dataset.domains=[scan,texture]")
    public = public_set(cfg, place(cfg, 0)).images
    whole = catalog.load("handwritten", "sketch", "train", Source())
    assert pixels(public) == pixels(whole) and len(public) == len(whole)
    assert not any(pixels(public) & held(cfg, index) for index in range(8))
    read = {*itertools.product(("scan", "texture"), ("train", "test")), ("sketch", "train")}
    assert set(node_data.read_parts(cfg)) == read
    of_tests = config("dataset.public=cifar10.1 dataset.domains=[cifar10]", dataset="cifar10")
    assert node_data.read_parts(of_tests)[-1] == ("cifar10.1", "test")


def test_it_depends_on_the_seed_and_its_order_mixes_the_domains() -> None:
    first, second = (config("dataset.public=0.1", seed=seed) for seed in (0, 1))
    one, other = (public_set(cfg, place(cfg, 0)) for cfg in (first, second))
    assert pixels(one.images) != pixels(other.images)
    assert one.sha256 != other.sha256
    front = pixels(one.images.select(np.arange(36)))
    assert all(front & pixels(catalog.load("handwritten", d, "train", Source())) for d in first.dataset.domains)


def test_a_real_nodes_copy_is_what_simulated_nodes_have(tmp_path: Path) -> None:
    cfg = config("dataset.public=0.1 allocation.share=0.2 dataset.domains=[scan,street]")
    folders = export(cfg, 4, tmp_path / "nodes")
    wanted = public_set(cfg, place(cfg, 0, 4))
    for folder in folders:
        result = public_set(cfg, real(cfg, folder.domain, folder.path))
        assert np.array_equal(result.images.x, wanted.images.x) and np.array_equal(result.images.y, wanted.images.y)
        assert result.sha256 == wanted.sha256
    file = folders[0].path / "public_train.npz"
    npz.write(file, npz.read(file, classes=cfg.dataset.known().classes).select(np.arange(1, 9)))
    node_data.forget()
    assert public_set(cfg, real(cfg, "scan", folders[0].path)).sha256 != wanted.sha256
    with refused(DataError, "public_train.npz", "public/train/<class>/"):
        public_set(cfg, real(cfg, "scan", tmp_path))


# --- refused in a line ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named", "method"),
    [
        ("dataset.public=sketch", "dataset.domains", "fedavg"),
        ("dataset.public=moon", "'moon'", "fedavg"),
        ("dataset.public=1", "'1'", "fedavg"),
        ("dataset.public=0", "'0'", "fedavg"),
        ("dataset.public=true", "'true'", "fedavg"),
        ("dataset.public=[scan]", "a domain, or a share", "fedavg"),
        ("dataset.public=.nan", "'.nan'", "fedavg"),
        ("dataset.public=null", "'fedmd'", "fedmd"),
        ("dataset.public=0.1 allocation.test_on=domain", "allocation.test_on=split", "fedavg"),
        ("dataset.public=0.5 dataset.domains=[public,north]", "public", "fedavg"),
    ],
)
def test_what_cannot_be_public(text: str, named: str, method: str) -> None:
    with refused(ConfigError, named):
        if "north" in text:
            config(f"{text} dataset.classes=[a,b]", dataset="folders")
        config(text, method=method)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dataset.public=0.001", "360 images of 'scan'"),
        ("dataset.public=0.3 allocation.share=0.4", "2 times 40 %"),
        ("dataset.public=0.3 allocation.share=0.8 allocation.with_replacement=true", "1 times 80 %"),
    ],
)
def test_more_than_there_is_cannot_be_dealt(text: str, named: str) -> None:
    with refused(DataError, named):
        check_data(config(text), 8)


def test_a_method_asks_for_its_public_set_by_itself_and_of_the_data_set_for_that_alone(tmp_path: Path) -> None:
    assert config("", method="fedmd").dataset.public == 0.1
    assert config("dataset.public=0.2", method="fedmd").dataset.public == 0.2
    path = tmp_path / "mine.yaml"
    text = (
        "dataset: {name: handwritten}\nmodel: {name: cnn}\ntrain: {epochs: 1, batch_size: 8, lr: 0.1}\nrounds: 1\n"
        "method: {name: fedmd}\nmethods: {fedmd: {dataset: {public: 0.3}}%s}\n"
    )
    path.write_text(text % "")
    assert resolve({"experiment": str(path)}).dataset.public == 0.3
    path.write_text(text % ", fedavg: {dataset: {name: digits}}")
    with refused(ConfigError, "dataset.'name'", "dataset.public"):
        resolve({"experiment": str(path), "method": "fedavg"})


def test_a_users_own_public_site_is_no_domain_of_the_run(tmp_path: Path) -> None:
    for site in ("north", "south", "shared"):
        images = ImageSet(np.full((6, 32, 32, 3), len(site), np.uint8), np.arange(6) % 2)
        for split in ("train", "test"):
            npz.write(tmp_path / f"{site}_{split}.npz", images)
    keys = "dataset.public=shared dataset.classes=[a,b] dataset.size=32"
    cfg = config(keys, dataset="folders", **{"data-dir": str(tmp_path)})
    assert cfg.dataset.domains == ("north", "south")
    assert pixels(public_set(cfg, place(cfg, 0, 2)).images) == {bytes([6]) * 32 * 32 * 3}


# --- printed ----------------------------------------------------------------------------------------------


# --- the same on all nodes --------------------------------------------------------------------------------


def node(index: int, public: str, images: int = 5) -> Node:
    return Node(100 + index, index, "scan", (3, 4), 5, False, index, num_public=images, public=public)


class Copies:
    """A grid of nodes, each with its copy of the public set, that answer in this order."""

    def __init__(self, *copies: str) -> None:
        identify_process()
        self.copies = dict(enumerate(copies, 5))

    def get_node_ids(self) -> list[int]:
        return list(self.copies)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        said = functools.partial(NodeIntroduction, "scan", [3, 4], 5, False, -1, -1, numbers={"num-public": 9})
        copies = ((message, self.copies[message.metadata.dst_node_id] * 64) for message in messages)
        return [Message(said(words={"public": copy}).to_record(), reply_to=message) for message, copy in copies]


def gathered(grid: Copies, at_least: int = 2) -> Roster:
    roster = Roster(("scan", "street"), "deployment", "{}", 2, public_set_feature())
    roster.gather(grid, at_least, timeout=0.05)  # type: ignore[arg-type]
    return roster


@pytest.mark.parametrize("copies", ["eaaa", "aeaa", "aaae", "eabaa"])
def test_the_run_has_the_public_set_of_most_nodes(copies: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not that of the first: one node with another copy would keep all others out."""
    roster = gathered(Copies(*copies))
    assert [one.public[0] for one in roster.nodes] == ["a"] * copies.count("a")
    assert "sha256 eeeeeeeeeeee" in caplog.text and "expected 9 images, sha256 aaaaaaaaaaaa" in caplog.text


def test_a_newcomer_has_the_runs_copy_whatever_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    grid = Copies("a", "a")
    roster = gathered(grid)
    del grid.copies[5]  # a newcomer that announces the same waits while it is connected
    grid.copies |= {20: "b", 21: "b", 22: "b", 23: "a"}
    assert [one.node_id for one in roster.online(grid, timeout=1)] == [23, 6]  # type: ignore[arg-type]
    assert caplog.text.count("another public set than most nodes") == 1


def test_a_tie_waits_for_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Copies("b", "a")
    monkeypatch.setattr(
        "fedshift_strategies.federation.roster.time.sleep", lambda seconds: grid.copies.update({30: "a"})
    )
    assert [one.public[0] for one in gathered(grid).nodes] == ["a", "a"]


def test_a_run_does_not_go_on_with_another_public_set() -> None:
    past: Any = SimpleNamespace(engine="deployment", checkpoint=SimpleNamespace(nodes=[node(0, "a" * 64)]))
    resuming.check_nodes(past, [node(0, "a" * 64)])
    with refused(FederationError, "node 0 (scan)", "9 images"):
        resuming.check_nodes(past, [node(0, "c" * 64, 9)])

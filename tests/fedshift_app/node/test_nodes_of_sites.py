"""Real nodes whose data-dir holds several sites: their app called directly, and whole runs in this process."""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from own_sites import write
from PIL import Image
from real_node import AppOfNode
from refusals import refused
from support import InlineRun
from support import node as node_of

from fedshift.site import stop
from fedshift.site.deploy.exporting import NodeFolder
from fedshift.site.nodes import SiteNode
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import introducing, setup
from fedshift_app.node.place import Place
from fedshift_app.run import checkpoints
from fedshift_core.errors import ConfigError, DataError, FederationError
from fedshift_core.wire import names
from fedshift_core.wire.messages import NodeIntroduction
from fedshift_strategies.federation.evaluation import Evaluation
from fedshift_strategies.federation.introduction import Introduction

SITES = ("north", "south", "west")
SHORT = "dataset.size=32 train.epochs=1 train.batch_size=16 model.name=cnn"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three sites of 45 images each."""
    root = tmp_path_factory.mktemp("sites-of-nodes") / "images"
    write(root, SITES, 45)
    return root


def config(images: Path, given: str = "", method: str = "fedavg") -> RunConfig:
    keys = {"dataset": "folders", "data-dir": str(images), "method": method, "set": f"{SHORT} {given}"}
    return resolve({**keys, "rounds": 2})


def place(cfg: RunConfig, images: Path, domain: str, **given: Any) -> Place:
    context = make_context(7, {"domain": domain, "data-dir": str(images), **given}, {})
    return setup.place(cfg, context, setup.DEPLOYMENT)


# --- its images ---------------------------------------------------------------------------------------


def test_it_holds_what_nodes_of_each_site_alone_hold_one_after_the_other(images: Path) -> None:
    validated = "allocation.validation_fraction=0.2"
    cfg = config(images, validated)
    both = place(cfg, images, "South, north")
    assert (both.domain, both.domains) == ("south", ("south", "north"))
    own = node_data.own_images(cfg, both)
    each = [node_data.own_images(cfg, place(cfg, images, site)) for site in both.domains]
    for part in ("train", "validation"):
        mine, parts = getattr(own, part), [getattr(one, part) for one in each]
        for name in ("x", "y"):
            assert np.array_equal(getattr(mine, name), np.concatenate([getattr(one, name) for one in parts]))
    of_each = np.repeat([SITES.index(site) for site in both.domains], [len(one.train) for one in each])
    assert own.train.domains is not None and own.train.domains.tolist() == of_each.tolist()
    unknown = config(images, f"{validated} allocation.domain_labels=unknown")
    assert node_data.own_images(unknown, both).train.domains is each[0].train.domains is None
    for site in both.domains:
        test = node_data.test_images(cfg, place(cfg, images, site), site)
        assert np.array_equal(node_data.test_images(cfg, both, site).x, test.x)
        assert node_data.num_test(cfg, both, site) == len(test) > 0
    with refused(ConfigError, "'south', 'north'", "'west'"):
        node_data.test_images(cfg, both, "west")
    assert len(introducing.site_of(cfg, both).files) == len(own.train)


@pytest.mark.parametrize(
    ("domain", "named"),
    [
        ("north,east", "'east'"),
        ("north,North", "'north' twice"),
        ("north,,south", "''"),
        ("north,", "''"),
        ("", "''"),
    ],
)
def test_what_is_no_list_of_domains_is_refused(images: Path, domain: str, named: str) -> None:
    with refused(ConfigError, "node-config", named):
        place(config(images), images, domain)


def test_a_held_out_domain_is_refused(images: Path) -> None:
    """Else its images would be trained on, and its score filed as that of an unseen domain."""
    cfg = config(images, "allocation.held_out=[south]")
    for named in ("south", "north,south"):
        with refused(ConfigError, "node-config", "'south'", "allocation.held_out"):
            place(cfg, images, named)
    assert place(cfg, images, "north").domains == ("north",)
    nothing_trained = cfg.model_copy(update={"rounds": 0})  # fedshift evaluate: such a node is the test
    assert place(nothing_trained, images, "south").domains == ("south",)


def test_an_image_of_two_sites_is_refused(images: Path, tmp_path: Path) -> None:
    cfg = config(images)
    where = place(cfg, images / "north", "north,south")  # class folders of one site
    with refused(DataError, "'north' and 'south'"):
        node_data.own_images(cfg, where)
    shutil.copytree(images, tmp_path / "linked")
    shutil.rmtree(tmp_path / "linked" / "south")
    (tmp_path / "linked" / "south").symlink_to("north", target_is_directory=True)
    with pytest.raises(DataError, match="are one file"):
        node_data.own_images(cfg, place(cfg, tmp_path / "linked", "north,south"))


def test_what_is_forgotten_is_of_all_its_sites(images: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = [{"domain": domain, "origin": str(images / domain)} for domain in SITES]
    entries = [SimpleNamespace(kind="images", about=each) for each in about]
    monkeypatch.setattr(stop.cache_command, "entries", lambda: entries)
    node = SiteNode(tmp_path, {"domain": "north, West", "data-dir": str(images)})
    assert stop._cached(node) == [entries[0], entries[2]]


# --- its app -------------------------------------------------------------------------------------------


def app_of(images: Path, cfg: RunConfig, domain: str, **given: Any) -> AppOfNode:
    node = AppOfNode(NodeFolder(images, domain, 0), **given)
    node.config = cfg
    return node


def answered(reply: Message) -> RecordDict:
    assert not reply.has_error(), reply.error.reason
    content: RecordDict = reply.content
    return content


def test_it_names_its_domains_and_scores_each(images: Path) -> None:
    cfg = config(images)
    node = app_of(images, cfg, "north,south", policy="open")
    numbers = answered(node.ask("query")).metric_records["metrics"]
    where = place(cfg, images, "north,south")
    north, south = (node_data.num_test(cfg, where, site) for site in where.domains)
    held = {key: number for key, number in numbers.items() if key.startswith(names.HELD_TEST)}
    assert (numbers[names.NUM_TEST], held) == (north, {f"{names.HELD_TEST}south": south})
    train = node_data.own_images(cfg, where).train
    assert numbers[names.CLASS_COUNTS] == np.bincount(train.y, minlength=3).tolist()
    drawn = {"domains": ["north", "south"], "drawn": [north, south]}
    scored = answered(node.ask("evaluate", 2, **drawn)).metric_records["metrics"]
    assert (scored["count/north"], scored["count/south"]) == (north, south)
    reply = node.ask("evaluate", 2, domains=["west"], drawn=[9])
    assert "this node holds north, south, each to be named once" in reply.error.reason


@pytest.fixture
def thinned(images: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that copies the folder with so many images of each class of the second site."""

    def copy(number: int) -> Path:
        shutil.copytree(images, tmp_path / "thin")
        for kind in (tmp_path / "thin" / "south").iterdir():
            for file in sorted(kind.iterdir())[number:]:
                file.unlink()
        return tmp_path / "thin"

    return copy


def test_the_owners_least_images_hold_of_each_domain(thinned: Callable[[int], Path]) -> None:
    folder = thinned(2)  # one of each class to train on, one to test: fewer than 5
    cfg = config(folder, "allocation.validation_fraction=0")
    strict = app_of(folder, cfg, "north,south").ask("query")
    assert strict.error.code == names.DECLINED
    assert "node of north,south: fewer than least_images=5 training images of 'south'" in strict.error.reason
    assert answered(app_of(folder, cfg, "north,south", policy="open").ask("query"))


def test_few_test_images_of_a_further_domain_are_not_told(thinned: Callable[[int], Path]) -> None:
    folder = thinned(7)  # six of each class to train on, one to test
    node = app_of(folder, config(folder, "allocation.validation_fraction=0"), "north,south")
    content = answered(node.ask("query"))
    said, _ = Introduction(SITES, 3, simulated=False).read(Message(content, 7, "query"))
    assert (said.domains, said.held_tests) == (("north", "south"), (("south", 0),))
    assert node.ask("evaluate", 2, domains=["south"], drawn=[3]).error.code == names.DECLINED


# --- the server ----------------------------------------------------------------------------------------


def test_the_server_asks_for_each_domain_and_refuses_what_makes_no_sense() -> None:
    both = node_of(0, domain="north", num_test=9, shared_test=False, held_tests=(("south", 6), ("west", 0)))
    alone = node_of(1, domain="south", num_test=7, shared_test=False)
    evaluation = Evaluation(SITES, [both, alone], personal=False)
    asked = {node.index: {part.domain: len(part) for part in parts} for node, parts in evaluation.first().items()}
    assert asked == {0: {"north": 9, "south": 6}, 1: {"south": 7}}
    fields = json.loads(json.dumps(asdict(both)))
    assert checkpoints.NODES.validate_python([fields]) == [both]
    del fields["held_tests"]  # as runs of before have it
    assert checkpoints.NODES.validate_python([fields]) == [replace(both, held_tests=())]

    def read(held: str, shared: bool = False, simulated: bool = False) -> Any:
        content = NodeIntroduction("north", [3, 3, 3], 9, shared, 0, 1, held_tests={held: 4}).to_record()
        return Introduction(SITES, 3, simulated=simulated).read(Message(content, 7, "query"))[0]

    assert read("south").held_tests == (("south", 4),)
    with refused(FederationError, "north, north"):
        read("north")
    with refused(FederationError, "north, south"):
        read("south", shared=True, simulated=True)


# --- a folder of one's own ----------------------------------------------------------------------------------


KINDS = ("benign", "malignant", "normal")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a data-dir of two sites with images of different sizes; one is broken."""
    rng = np.random.default_rng(0)
    for site, sub in (("Aachen", ""), ("Bonn", "train")):
        for label, kind in enumerate(KINDS):
            for number in range(10):
                folder = "test" if sub and number < 3 else sub
                path = tmp_path / "data" / site / folder / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = rng.integers(0, 100, (20 + number, 24, 3))
                pixels[6 * label : 6 * label + 6] += 150
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    (tmp_path / "data" / "Aachen" / "benign" / "4.png").write_bytes(b"no image")
    return tmp_path / "data"


def configured(data: Path, **more: object) -> RunConfig:
    text = "dataset.size=32 dataset.skip_broken=true allocation.validation_fraction=0 " + " ".join(
        f"{key}={value}" for key, value in more.items()
    )
    return resolve({"dataset": "folders", "data-dir": str(data), "set": text})


def test_a_run_on_a_users_own_images(run_inline: InlineRun, data: Path) -> None:
    text = "dataset.size=32 dataset.skip_broken=true train.epochs=1"
    run = run_inline(dataset="folders", data_dir=str(data), nodes=2, rounds=1, set=text)
    assert set(run.rounds[0]["accuracy"]) == {"Aachen", "Bonn"}
    assert run.rounds[0]["validation"]
    content = run.config["resolved"]["dataset"]
    assert (content["domains"], content["classes"]) == (["Aachen", "Bonn"], list(KINDS))
    (skipped,) = json.loads((run.folder / "skipped.json").read_text())
    assert (skipped["domain"], Path(skipped["file"]).name) == ("Aachen", "4.png")
    assert "no image" not in skipped["reason"] and "by its content" in skipped["reason"]


@pytest.mark.parametrize("level", ["data", "site"])
def test_a_node_holds_what_it_holds_in_simulation(data: Path, level: str) -> None:
    """The server has no data-dir; the classes travel, in an order that is not the alphabet's."""
    config = configured(data, **{"dataset.classes": "[normal,malignant,benign]"})
    sent = config.model_copy(update={"dataset": config.dataset.model_copy(update={"data_dir": ""})})
    for index, site in enumerate(("Aachen", "Bonn")):
        folder = data if level == "data" else data / site
        given = {"domain": site, "data-dir": str(folder), "partition-id": index, "num-partitions": 2}
        there = setup.place(sent, make_context(1, given, {}), setup.DEPLOYMENT)
        here = node_data.Place(site, index, 2, config.dataset.source(), True, 1)
        for one, other in (
            (node_data.own_images(sent, there).train, node_data.own_images(config, here).train),
            (node_data.test_images(sent, there, site), node_data.test_images(config, here, site)),
        ):
            assert np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)
        assert node_data.num_test(sent, there) == len(node_data.test_images(config, here, site))
    labels = node_data.test_images(config, here, "Bonn").y
    assert np.bincount(labels).tolist() == [3, 3, 3]


def test_a_node_with_a_class_that_the_run_does_not_know(data: Path) -> None:
    config = configured(data, **{"dataset.classes": "[benign,normal]"})
    given = {"domain": "Bonn", "data-dir": str(data), "partition-id": 0, "num-partitions": 1}
    where = setup.place(config, make_context(1, given, {}), setup.DEPLOYMENT)
    with pytest.raises(DataError, match="malignant: no class of that name; allowed are benign, normal"):
        node_data.own_images(config, where)

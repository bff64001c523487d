"""`fedshift init`, `prepare`, a run and a node take, or refuse, the same folders."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import refusal_of

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift.run import checking
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import data as node_data
from fedshift_app.node.data import Place
from fedshift_core.errors import FedShiftError
from fedshift_datasets.base import OWN_SPLITS

CLASSES = ("x", "y")


def draw(folder: Path, counts: Mapping[str, int], first: int = 0) -> None:
    """Write images that all differ into class folders."""
    for kind, count in counts.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            seed = sum(map(ord, f"{folder.parent.name}{folder.name}{kind}")) * 1000 + number
            pixels = np.random.default_rng(seed).integers(0, 256, (16, 16, 3), np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number:03d}.png")


def sites(root: Path, *names: str, n: int = 6) -> None:
    for name in names:
        draw(root / name, dict.fromkeys(CLASSES, n))


def experiment(path: Path, root: Path, domains: list[str], more: str = "validation_fraction: 0.1") -> Path:
    path.write_text(
        f"dataset: {{name: own, of: folders, data_dir: {root}, domains: [{', '.join(domains)}], classes: [x, y, z], "
        f"size: 16}}\nallocation: {{counts: {{{', '.join(f'{name}: 1' for name in domains)}}}, {more}}}\n"
        "model: {name: resnet10}\ntrain: {epochs: 1, batch_size: 8, lr: 0.01, momentum: 0.9, weight_decay: 0}\n"
        "method: {name: fedavg}\nrounds: 1\n"
    )
    return path


def as_run(path: Path) -> RunConfig:
    return resolve({"experiment": str(path)})


def nested(folder: Path) -> None:
    for number in range(6):
        draw(folder / "x", {f"p{number}": 1}, number)


def train_val_test(root: Path, *names: str) -> None:
    for site in ("h1", "h2"):
        for name, count, first in zip(names, (8, 4, 3), (0, 20, 40), strict=True):
            draw(root / site / name, dict.fromkeys(CLASSES, count), first)


def put(*below: str, **counts: int) -> Callable[[Path], None]:
    """Return what writes class folders below a data-dir."""
    return lambda root: draw(root.joinpath(*below), counts, first=len(below[-1]) * 20)


def both(*steps: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda root: [step(root) for step in steps] and None


AB, H = ["a", "b"], ["h1", "h2"]
REFUSED: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "nested": (lambda r: nested(r / "b"), AB, "/b: images in no known layout"),
    "one class nested": (both(put("b", x=6), lambda r: nested(r / "b" / "y")), AB, "expected <site>/<class>/*"),
    "half nested in a split": (
        lambda r: train_val_test(r, "train", "val", "test") or draw(r / "h1" / "test" / "x" / "more", {"deep": 2}),
        H, "/h1/test/x: 3 images right in this class folder and 2 in folders below, such as ",
    ),
    "splits as sites": (lambda r: sites(r, "Training", "Testing"), ["Training", "Testing"], "is no site, but the name"),
    "one image": (put("b", x=1), AB, "b has no test images: its only image is train"),
    "no test": (put("b", "train", x=4, y=4), AB, "b has no test images, only train ones"),
    "val alone": (put("b", "val", x=4, y=4), AB, "b has no train images, only validation ones"),
    "no validation": (both(put("b", "train", x=1, y=1), put("b", "test", x=4, y=4)), AB, "none can be set aside for"),
}  # fmt: skip


@pytest.mark.parametrize(("mess", "domains", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_one_refuses_all_refuse(
    tmp_path: Path, mess: Callable[[Path], None], domains: list[str], reason: str
) -> None:
    root = tmp_path / "images"
    sites(root, "a")
    mess(root)
    path = experiment(tmp_path / "own.yaml", root, domains)
    said = [refusal_of(FedShiftError, init_files.init, str(tmp_path / "new"), [f"data-dir={root}"])]
    assert not (tmp_path / "new" / "new.yaml").exists()
    said += [refusal_of(FedShiftError, prepare.prepare, str(path), [], as_json=False)]
    said += [refusal_of(FedShiftError, lambda: checking.check_data(as_run(path), 2))]
    for line in said:
        assert reason in line and "\n" not in line, line


TAKEN: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "Training dev Testing": (lambda r: train_val_test(r, "Training", "dev", "Testing"), H),
    "one class at a site": (both(lambda r: sites(r, "a", "b"), put("c", x=6)), ["a", "b", "c"]),
    "a class in one test only": (
        both(lambda r: sites(r, "b"), put("a", "train", x=6, y=6), put("a", "test", x=2, z=2)), AB,
    ),
    "two images of a class": (both(lambda r: sites(r, "a"), put("b", x=3)), AB),
}  # fmt: skip


def as_node(config: RunConfig, domain: str, index: int, nodes: int) -> Place:
    """Return where a node of a simulation finds its images."""
    return Place(domain, index, nodes, config.dataset.source(), shared=True, threads=1)


@pytest.mark.parametrize(("mess", "domains"), TAKEN.values(), ids=TAKEN)
def test_what_one_takes_all_take(tmp_path: Path, mess: Callable[[Path], None], domains: list[str]) -> None:
    root = tmp_path / "images"
    mess(root)
    made = init_files.init(str(tmp_path / "new"), [f"data-dir={root}"])
    assert list(as_run(made).dataset.domains) == domains
    for path in (made, experiment(tmp_path / "own.yaml", root, domains)):
        assert prepare.prepare(str(path), [], as_json=False) == 0
        config = as_run(path)
        assert checking.check_data(config, len(domains)) > 0
        for index, domain in enumerate(domains):
            alone = Place(domain, index, -1, config.dataset.source(root), shared=False, threads=1)
            for where in (as_node(config, domain, index, len(domains)), alone):
                assert len(node_data.own_images(config, where).train) and node_data.num_test(config, where)


# --- images to validate on -----------------------------------------------------------------------------


@pytest.fixture
def split_sites(tmp_path: Path) -> Callable[..., tuple[Path, RunConfig]]:
    """Return a function that writes an experiment on two sites with a folder for validation, and a plain one."""
    root = tmp_path / "images"
    train_val_test(root, "Train", "valid", "test")
    sites(root, "plain", n=20)

    def make(nodes: int = 1, fraction: float = 0.1) -> tuple[Path, RunConfig]:
        path = experiment(tmp_path / "own.yaml", root, [*H, "plain"], f"validation_fraction: {fraction}")
        path.write_text(path.read_text().replace("h1: 1", f"h1: {nodes}"))
        return path, as_run(path)

    return make


def pixels(images: object) -> set[bytes]:
    return set() if images is None else {x.tobytes() for x in images.x}


def on_disk(folder: Path) -> set[bytes]:
    return {np.asarray(Image.open(path)).tobytes() for path in folder.rglob("*.png")}


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_val_folder_is_validation_and_nothing_else(tmp_path: Path, split_sites: Any, nodes: int) -> None:
    _, config = split_sites(nodes)
    total = nodes + 2
    checking.check_data(config, total)
    own = [node_data.own_images(config, as_node(config, "h1", index, total)) for index in range(nodes)]
    given = on_disk(tmp_path / "images" / "h1" / "valid")
    parts = [pixels(one.validation) for one in own]
    assert set().union(*parts) == given and sum(map(len, parts)) == len(given) == 8
    assert all({*one.validation.y.tolist()} == {0, 1} for one in own)
    assert set().union(*(pixels(one.train) for one in own)) == on_disk(tmp_path / "images" / "h1" / "Train")
    plain = node_data.own_images(config, as_node(config, "plain", total - 1, total))
    assert len(plain.validation) == 3  # of 32 training images, as ever
    marks = node_data.fingerprints(config)
    assert set(marks["h1"]) == set(OWN_SPLITS) and set(marks["plain"]) == {"train", "test"}


def test_without_validation_they_stay_unused_and_prepare_says_so(
    tmp_path: Path, split_sites: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = split_sites(fraction=0.0)
    where = as_node(config, "h1", 0, 3)
    own = node_data.own_images(config, where)
    assert own.validation is None
    used = pixels(own.train) | pixels(node_data.test_images(config, where, "h1"))
    assert not used & on_disk(tmp_path / "images" / "h1" / "valid")
    assert set(node_data.fingerprints(config)["h1"]) == {"train", "test"}
    assert prepare.prepare(str(path), [], as_json=False) == 0
    said = capsys.readouterr().out
    assert "h1: train 16, validation 8, test 6" in said
    assert "validation images of h1, h2: they are neither trained nor tested on" in said


def test_fewer_validation_images_than_nodes_are_refused(split_sites: Any) -> None:
    path, config = split_sites(9)
    result = refusal_of(FedShiftError, checking.check_data, config, 11)
    assert "domain 'h1' has 8 validation images for 9 nodes" in result
    assert result == refusal_of(FedShiftError, prepare.prepare, str(path), [], as_json=False)

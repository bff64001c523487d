"""Advice before a run, names of nodes, and files that are broken."""

from pathlib import Path

import pytest
from flwr.common.config import parse_config_args
from image_trees import noise_sites
from support import refusal_of

from fedshift.data import init as init_files
from fedshift.run import checking
from fedshift.run.launch import advice, credentials, runner
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving
from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.limits import MOST_NAME
from fedshift_datasets.sets import folders

# --- One line where engine=inline would be much faster, by a rule; and none elsewhere ---


MANY = "federation.participation=0.05 train.epochs=1 model.name=cnn"


def advice_for(nodes: int, images: float, more: str = "") -> str:
    return advice.faster_inline(resolve({"experiment": "handwritten", "set": f"{MANY} {more}"}), nodes, images)


def test_many_clients_with_a_small_network_and_few_images_get_a_hint() -> None:
    line = advice_for(1000, 35.6)
    assert line.startswith("hint: 50 clients a round, each with a small network and 36 images to pass, wait for")
    assert "engine=inline would be much faster" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("nodes", "images", "more"),
    [
        (300, 36, ""),  # 15 clients a round
        (1000, 501, ""),
        (1000, 36, "model.per_node=[cnn,resnet10] method.name=fedproto"),
    ],
)
def test_others_are_not(nodes: int, images: float, more: str) -> None:
    assert advice_for(nodes, images, more) == ""


# --- A run on a folder with a broken file names the command that finds all of them, and the key that goes ---


def test_a_broken_file_names_prepare_and_the_key(here: Path) -> None:
    noise_sites(here / "images", 12)
    init_files.init("mine", ["data-dir=images"])
    broken = here / "images" / "a" / "cat" / "3.png"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(DataError) as caught:
        checking.check_data(resolve({"experiment": "mine/mine.yaml"}), 2)
    said, remedy = str(caught.value).split("\n")
    assert said.startswith(f"{broken}: cannot be read")
    assert "fedshift prepare" in remedy and remedy.endswith("dataset.skip_broken=true")
    checking.check_data(resolve({"experiment": "mine/mine.yaml", "set": "dataset.skip_broken=true"}), 2)


# --- A site's name, as `fedshift init` takes it, becomes a node's folder, key and configuration ---


#: Names that a site may have.
SITES = ("art_painting", "Große Straße", "a & b + (c)", "東京", "x" * MOST_NAME)


@pytest.mark.parametrize("site", SITES)
def test_every_sites_name_makes_a_node(tmp_path: Path, site: str) -> None:
    folders.check_domain(site)
    name = exporting.node_name(3, site)
    assert name.startswith("node-3") and name.isascii()
    assert credentials.NODE_NAME.fullmatch(name)
    private, public = credentials.make_node(tmp_path / "keys", name)
    assert private.is_file() and public.read_text().rstrip().endswith(name)
    given = parse_config_args([exporting.NodeFolder(tmp_path / name, site, 3).node_config])
    assert (given["domain"], given["data-dir"], given["partition-id"]) == (site, str(tmp_path / name), 3)


# --- resources of a client ----------------------------------------------------------------------------------


@pytest.fixture
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("_two_cores")
def test_a_client_that_fits_no_machine_is_refused() -> None:
    config = resolving.resolve({"experiment": "handwritten"})
    text = refusal_of(ConfigError, runner.resources, config, 4, {"cpus-per-client": 3})
    assert text == "cpus-per-client: expected at most 2, the cores of this machine, found 3"
    text = refusal_of(ConfigError, runner.resources, config, 4, {"gpus-per-client": 0.5})
    assert text == "gpus-per-client: PyTorch can use no GPU of this machine, found 0.5; leave it out"


@pytest.mark.usefixtures("_two_cores")
def test_threads_take_no_more_cores_than_there_are_and_actors_are_told_to_ray() -> None:
    config = resolving.resolve({"experiment": "handwritten", "set": "train.threads=8"})
    assert runner.resources(config, 4, {}) == runner.Resources(2, 0.0)
    assert runner.resources(config, 4, {"gpus-per-client": 0.0, "actors": 1}) == runner.Resources(8, 0.0, 1)
    assert "init-args-num-cpus=6" in runner.resources(config, 4, {"cpus-per-client": 3, "actors": 2}).federation_config(
        4
    )

"""The parts that attacks share: a node's images and state, its owner's policy, and sites with keys."""

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import guarded_node
import pytest
import yaml
from guarded_node import Owner
from secure_sites import MakeSites, Sites, real_nodes
from support import InlineRun

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.flower.internals import identify_process
from fedshift_app.node import state_folder


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> NodeFolder:
    return guarded_node.images(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def folder(exported: NodeFolder, tmp_path: Path) -> NodeFolder:
    """Return the folder of a node that has some images of each class, which a test may change."""
    return replace(exported, path=Path(shutil.copytree(exported.path, tmp_path / "node")))


@pytest.fixture
def policy(tmp_path: Path) -> Owner:
    """Return a function that writes an owner's policy and returns its file: ``policy(rounds_per_day=1)``."""

    def write(**keys: object) -> str:
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump(keys))
        file.chmod(0o600)
        return str(file)

    return write


@pytest.fixture
def sites(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MakeSites:
    """Return a function that makes real nodes with keys: ``sites(FOUR, held)``."""
    real_nodes(monkeypatch, tmp_path)
    return partial(Sites, tmp_path, run_inline)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Let runs log no warnings, under an identity that this process has."""
    identify_process()
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)

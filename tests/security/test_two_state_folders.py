"""Two SuperNodes with state folders of their own work on the same images, to spend what one may spend twice."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import own_sites
import pytest
from flwr.app import MessageType
from guarded_node import Owner, answered, refused, run
from real_node import charge

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import ledger, state_folder
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=1"


def spent(folder: NodeFolder, owner: str, given: str = "") -> bool:
    """Tell whether a node of these images has no round left for today."""
    return "rounds_per_day" in refused(run(folder, given, policy=owner), MessageType.TRAIN)


def test_a_budget_is_spent_once(folder: NodeFolder, policy: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = policy(rounds_per_day=1, budget={"epsilon": 100.0})
    answered(run(folder, DP, policy=owner), MessageType.TRAIN)
    monkeypatch.setenv(state_folder.STATE_DIR, str(folder.path.parent / "two"))
    assert spent(folder, owner, DP) and ledger.of_images(folder.path).with_images


def test_a_copied_folder_goes_on_from_what_was_spent(folder: NodeFolder, policy: Owner) -> None:
    owner = policy(rounds_per_day=1)
    answered(run(folder, policy=owner), MessageType.TRAIN)
    copy = Path(shutil.copytree(folder.path, folder.path.parent / "copy"))
    assert spent(replace(folder, path=copy), owner)


def test_what_was_spent_before_ledgers_lay_with_the_images_is_taken_over(folder: NodeFolder, policy: Owner) -> None:
    owner, own = policy(rounds_per_day=2), ledger.of_images(folder.path)
    assert own.before is not None
    charge(ledger.Ledger(own.before, own.images), "old", 0.0)
    answered(run(folder, policy=owner), MessageType.TRAIN)
    assert len(own.read().trained) == 2 and own.before.is_symlink() and spent(folder, owner)


def test_a_folder_that_cannot_be_written_has_its_ledger_in_the_state_folder(
    folder: NodeFolder, policy: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "can_be_written", lambda folder: False)  # as for whoever is not root
    owner = policy(rounds_per_day=1)
    for kind in (MessageType.QUERY, MessageType.TRAIN):
        answered(run(folder, policy=owner), kind)
    own = ledger.of_images(folder.path)
    assert not own.with_images and own.path.is_relative_to(state_folder.state_dir()) and spent(folder, owner)


def test_the_ledger_is_no_image(tmp_path: Path) -> None:
    """Neither a list of images nor the name under which they are kept decoded knows of it."""
    own_sites.write(tmp_path / "images", ("north",), 30)
    source = Source(tmp_path / "images", classes=own_sites.CLASSES)

    def seen() -> list[Any]:
        catalog.forget()
        own: Any = ("folders", "north", "train", source)
        files: Any = catalog.own_files(*own)
        labels = catalog.load_own(*own, 16).y.tolist()
        return [[item.name for item in files.items], labels, catalog.content(*own, 16)]

    before = seen()
    for folder in (tmp_path / "images", tmp_path / "images" / "north"):
        charge(ledger.of_images(folder), "run")
        assert {path.name for path in folder.glob(".fedshift-node*")} == {ledger.FILE, ".fedshift-node.lock"}
    assert seen() == before

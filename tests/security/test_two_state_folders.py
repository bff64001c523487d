"""Two SuperNodes with state folders of their own work on the same images, to spend what one may spend twice."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_sites
import pytest
import yaml
from flwr.app import MessageType
from guarded_node import answered, images, refused, run
from real_node import charge

from fedshift_app.node import ledger
from fedshift_datasets import catalog
from fedshift_datasets.base import Source
from fedshift_datasets.listing import Listing

DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=1"


def policy_of(tmp_path: Path, **keys: Any) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump(keys))
    file.chmod(0o600)
    return str(file)


def test_a_budget_is_spent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, owner = images(tmp_path), policy_of(tmp_path, rounds_per_day=1, budget={"epsilon": 100.0})
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "one"))
    answered(run(folder, DP, policy=owner), MessageType.TRAIN)
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "two"))
    assert "rounds_per_day=1" in refused(run(folder, DP, policy=owner), MessageType.TRAIN)
    assert ledger.of_images(folder.path).with_images


def test_a_copied_folder_goes_on_from_what_was_spent_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    folder, owner = images(tmp_path), policy_of(tmp_path, rounds_per_day=1)
    answered(run(folder, policy=owner), MessageType.TRAIN)
    shutil.copytree(folder.path, tmp_path / "copy")
    copy = replace(folder, path=tmp_path / "copy")
    assert "rounds_per_day=1" in refused(run(copy, policy=owner), MessageType.TRAIN)
    assert f"copied or moved from {folder.path}" in caplog.text


def test_what_was_spent_before_ledgers_lay_with_the_images_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    folder, owner = images(tmp_path), policy_of(tmp_path, rounds_per_day=2)
    own = ledger.of_images(folder.path)
    assert own.before is not None
    before = ledger.Ledger(own.before, own.images)
    charge(before, "old", 0.0)
    answered(run(folder, policy=owner), MessageType.TRAIN)
    assert len(own.read().trained) == 2 and own.before.is_symlink()
    assert "rounds_per_day=2" in refused(run(folder, policy=owner), MessageType.TRAIN)


def test_a_folder_that_cannot_be_written_has_its_ledger_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(ledger, "can_be_written", lambda folder: False)  # as for whoever is not root
    folder, owner = images(tmp_path), policy_of(tmp_path, rounds_per_day=1)
    answered(run(folder, policy=owner), MessageType.QUERY)
    assert "with another state folder it would spend again" in caplog.text
    answered(run(folder, policy=owner), MessageType.TRAIN)
    own = ledger.of_images(folder.path)
    assert not own.with_images and own.path.is_relative_to(tmp_path / "state")
    assert "rounds_per_day=1" in refused(run(folder, policy=owner), MessageType.TRAIN)


def test_the_ledger_is_no_image(tmp_path: Path) -> None:
    """Neither a list of images nor the name under which they are kept decoded knows of it."""
    own_sites.write(tmp_path / "images", ("north", "west"), 30)
    source = Source(tmp_path / "images", classes=own_sites.CLASSES)

    def seen() -> list[Any]:
        catalog.forget()
        found: list[Any] = []
        for site in ("north", "west"):
            files = catalog.own_files("folders", site, "train", source)
            assert isinstance(files, Listing)
            found += [[item.name for item in files.items], catalog.load_own("folders", site, "train", source, 16).y]
            found.append(catalog.content("folders", site, "train", source, 16))
        return found

    before = seen()
    for folder in (tmp_path / "images", tmp_path / "images" / "north", tmp_path / "images" / "west"):
        charge(ledger.of_images(folder), "run")
        assert {path.name for path in folder.glob(".fedshift-node*")} == {ledger.FILE, ".fedshift-node.lock"}
    assert all(np.array_equal(old, new) for old, new in zip(before, seen(), strict=True))

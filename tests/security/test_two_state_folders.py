"""Two SuperNodes with state folders of their own work on the same images, to spend what one may spend twice."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.app import MessageType
from guarded_node import answered, images, refused, run

from fedshift_app.node import ledger

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
    assert "allowed are rounds_per_day=1" in refused(run(folder, DP, policy=owner), MessageType.TRAIN)
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
    before.charge("old", 0.0, lambda book, now: "")
    answered(run(folder, policy=owner), MessageType.TRAIN)
    assert len(own.read().trained) == 2 and own.before.is_symlink()
    assert "rounds_per_day=2" in refused(run(folder, policy=owner), MessageType.TRAIN)


def test_a_folder_that_cannot_be_written_has_its_ledger_in_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(ledger, "can_be_written", lambda folder: False)  # as for whoever is not root
    folder, owner = images(tmp_path), policy_of(tmp_path, rounds_per_day=1)
    answered(run(folder, policy=owner), MessageType.TRAIN)
    own = ledger.of_images(folder.path)
    assert not own.with_images and own.path.is_relative_to(tmp_path / "state")
    assert "rounds_per_day=1" in refused(run(folder, policy=owner), MessageType.TRAIN)

"""A server asks for scores of samples of a node's test images that differ by one, which would tell that image."""

from pathlib import Path

import pytest
import yaml
from flwr.app import MessageType
from guarded_node import images, refused, run, scored

from fedshift_core.wire import names

BY_ONE = "images.eval_batch=1 evaluate.fraction={}"


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))


def number_of(folder: Path) -> int:
    import numpy as np

    with np.load(folder / "scan_test.npz") as archive:
        return len(archive["y"])


def test_two_samples_that_differ_by_an_image_in_two_runs(tmp_path: Path) -> None:
    folder = images(tmp_path)
    whole = number_of(folder.path)
    sizes = [whole // 2, whole // 2 + 1]
    first, second = (run(folder, BY_ONE.format(size / whole)) for size in sizes)
    assert scored(first, drawn=[sizes[0]])["count/scan"] == sizes[0]
    reason = refused(second, MessageType.EVALUATE, **{names.DOMAINS: ["scan"], names.DRAWN: [sizes[1]]})
    assert reason.startswith(f"evaluate.fraction, as test images={sizes[1]}, allowed is {sizes[0]}")
    again = run(folder, BY_ONE.format(sizes[1] / whole))  # also after a restart, under another run
    assert "allowed is" in refused(again, MessageType.EVALUATE, **{names.DOMAINS: ["scan"], names.DRAWN: [sizes[1]]})
    assert scored(run(folder))["count/scan"] == whole  # all of them are no secret: enough others are left


def test_the_owner_may_state_another_size(tmp_path: Path) -> None:
    folder = images(tmp_path)
    whole = number_of(folder.path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(yaml.safe_dump({"partition": {"test_images": {"scan": 30}}}))
    policy.chmod(0o600)
    first = run(folder, BY_ONE.format(20 / whole))
    assert scored(first, drawn=[20])["count/scan"] == 20
    later = run(folder, BY_ONE.format(30 / whole), policy=str(policy))
    assert scored(later, drawn=[30])["count/scan"] == 30
    assert "allowed is 30" in refused(first, MessageType.EVALUATE, domains=["scan"], drawn=[20])

"""Files of weights: fitted name by name and shape by shape, and refused in a line."""

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from refusals import refused, worded
from torch import Tensor
from torchvision import models

from fedshift_clients.models import networks, packages, weights
from fedshift_core.errors import ConfigError

NAME = "shufflenet_v2_x0_5"
OURS = f"torchvision:{NAME}"


def by_library(classes: int = 4, seed: int = 9) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(models.get_model(NAME, num_classes=classes).state_dict())


def model() -> networks.SplitModel:
    return networks.build(OURS, 4, 0)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_a_librarys_file_makes_the_librarys_network(suffix: str, tmp_path: Path) -> None:
    state, path = by_library(), tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save({"state_dict": state} if suffix == ".pt" else state, path)
    result = weights.fitted(mine := model(), weights.read(path, packages.digest(path)), OURS, str(path))
    assert result.left_out == ()
    mine.load_state_dict(result.values)  # strict
    whole = models.get_model(NAME, num_classes=4)
    whole.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(mine.eval()(x)[1], whole.eval()(x))


def test_a_head_that_does_not_fit_is_left_out_and_reported() -> None:
    bare = {name: tensor for name, tensor in by_library().items() if not name.startswith("fc.")}
    mlp = networks.build(OURS, 4, 0, head="mlp")
    for mine, given in ((model(), by_library(1000)), (model(), bare), (mlp, by_library())):
        result = weights.fitted(mine, given, OURS, "/w.pth")
        worded(" ".join(result.left_out), "head")
        assert not [name for name in result.values if name.startswith("classifier")]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"conv1.0.weight": None, "conv5.0.weight": None}, "encoder.body.conv1.0.weight, encoder.body.conv5.0.weight"),
        ({"evil": torch.zeros(2)}, "encoder.body.evil"),
        ({"conv1.0.weight": torch.zeros(24, 3, 5, 5)}, "(24, 3, 5, 5)"),
        ({"conv1.1.weight": torch.full((24,), torch.nan)}, "conv1.1.weight"),
        ({"conv1.1.weight": torch.full((24,), 1e300, dtype=torch.float64)}, "conv1.1.weight"),
        ({"conv1.1.weight": torch.zeros(24, dtype=torch.int64)}, "torch.int64"),
    ],
)  # fmt: skip
def test_whatever_does_not_fit_is_refused_by_name(change: dict[str, Tensor | None], reason: str) -> None:
    given = {name: tensor for name, tensor in (by_library() | change).items() if tensor is not None}
    with refused(ConfigError, "/w.pth", reason):
        weights.fitted(model(), given, OURS, "/w.pth")


class Evil:
    """Would be called by an unpickler that runs what a file says."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("the file's code was run",)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"conv1.0.weight": Evil()}))
    (tmp_path / "cut.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    (tmp_path / "w.bin").touch()
    for name, content in (("zip.pth", {"w": Evil()}), ("other.pth", {"lr": 0.1}), ("list.pth", [1])):
        torch.save(content, tmp_path / name)
    for name in ("evil.pth", "cut.safetensors", "w.bin", "zip.pth", "other.pth", "list.pth", "none.pth"):
        with refused(ConfigError, "model.weights", name):
            weights.read(tmp_path / name)
    with refused(ConfigError, "model.weights", "none.pth"):
        packages.digest(tmp_path / "none.pth")


def test_a_file_that_was_changed_after_it_was_named_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(by_library(), path)
    before = packages.digest(path)
    safetensors.torch.save_file(by_library(seed=1), path)
    with pytest.raises(ConfigError, match=before[:12]):  # and the file's, which differs
        weights.read(path, before)


def test_our_own_names_are_taken_as_they_are_and_auxiliary_outputs_set_aside() -> None:
    small = networks.build("cnn", 4, 5).state_dict()
    assert weights.fitted(networks.build("cnn", 4, 0), small, "cnn", "/w").values.keys() == small.keys()
    given = by_library() | {"aux1.fc1.weight": torch.zeros(3)}
    (aside,) = weights.fitted(model(), given, OURS, "/w.pth").left_out
    assert "aux1.fc1.weight" in aside

"""Files of weights: fitted name by name and shape by shape, and refused in a line."""

import pickle
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import refusal_of
from torch import Tensor
from torchvision import models

from fedshift_clients.models import networks, weights
from fedshift_core.errors import ConfigError

NAME = "shufflenet_v2_x0_5"
OURS = f"torchvision:{NAME}"


def by_library(classes: int = 4, seed: int = 9) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(models.get_model(NAME, num_classes=classes).state_dict())


def model() -> networks.SplitModel:
    return networks.build(OURS, 4, 0)


def refusal(given: dict[str, Tensor]) -> str:
    result = refusal_of(ConfigError, weights.fitted, model(), given, OURS, "/w.pth")
    assert len(result) < 300
    return result


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_a_librarys_file_makes_the_librarys_network(suffix: str, tmp_path: Path) -> None:
    state, path = by_library(), tmp_path / f"w{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save({"state_dict": state} if suffix == ".pt" else state, path)
    result = weights.fitted(mine := model(), weights.read(path, weights.digest(path)), OURS, str(path))
    assert result.left_out == ()
    mine.load_state_dict(result.values)  # strict
    whole = models.get_model(NAME, num_classes=4)
    whole.load_state_dict(state)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(mine.eval()(x)[1], whole.eval()(x))


def test_our_own_names_are_taken_as_they_are() -> None:
    given = networks.build(OURS, 4, 5).state_dict()
    result = weights.fitted(model(), given, OURS, "/w.safetensors")
    assert result.left_out == ()
    assert all(torch.equal(tensor, given[name]) for name, tensor in result.values.items())
    assert result.values.keys() == given.keys()
    small = networks.build("cnn", 4, 5).state_dict()
    assert weights.fitted(networks.build("cnn", 4, 0), small, "cnn", "/w").values.keys() == small.keys()


def test_a_head_of_another_size_is_left_out_and_reported() -> None:
    result = weights.fitted(model(), by_library(1000), OURS, "/w.pth")
    assert result.left_out == ("the head (1000 classes, the run has 4): the run's begins at random",)
    assert not [name for name in result.values if name.startswith("classifier")]
    bare = {name: tensor for name, tensor in by_library().items() if not name.startswith("fc.")}
    assert weights.fitted(model(), bare, OURS, "/w").left_out == ("the file has no head: the run's begins at random",)
    mlp = networks.build(OURS, 4, 0, head="mlp")
    assert "it is made of other layers" in weights.fitted(mlp, by_library(), OURS, "/w").left_out[0]


def test_counters_of_batchnorm_may_be_missing_and_numbers_may_be_shorter() -> None:
    given = {name: t.half() if t.is_floating_point() else t for name, t in by_library().items()}
    given = {name: t for name, t in given.items() if not name.endswith("num_batches_tracked")}
    values = weights.fitted(model(), given, OURS, "/w").values
    assert values["encoder.body.conv1.0.weight"].dtype == torch.float32
    assert torch.equal(values["encoder.body.conv1.0.weight"], given["conv1.0.weight"].float())


def test_old_names_of_densenet_are_known() -> None:
    """Those of torchvision's own files, which its models rename as they load them."""
    dense = networks.build("torchvision:densenet121", 4, 0)
    state = {
        name.removeprefix("encoder.body."): t for name, t in dense.state_dict().items() if "classifier" not in name
    }
    old = {re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name): t for name, t in state.items()}
    assert old.keys() != state.keys()
    assert len(weights.fitted(dense, old, "torchvision:densenet121", "/w").values) == len(state)


def test_auxiliary_outputs_are_set_aside_and_reported() -> None:
    given = by_library() | {"aux1.fc1.weight": torch.zeros(3), "AuxLogits.fc.bias": torch.zeros(3)}
    assert weights.fitted(model(), given, OURS, "/w").left_out == (
        "auxiliary outputs (aux1.fc1.weight, AuxLogits.fc.bias)",
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"conv1.0.weight": None, "conv5.0.weight": None}, r"lacks encoder.body.conv1.0.weight, encoder.body.conv5"),
        ({"evil": torch.zeros(2)}, "has encoder.body.evil, which it has not"),
        ({"conv1.0.weight": torch.zeros(24, 3, 5, 5)}, r"has shape \(24, 3, 5, 5\), the network's has \(24, 3, 3, 3\)"),
        ({"conv1.1.weight": torch.full((24,), torch.nan)}, "conv1.1.weight holds numbers that are not finite"),
        ({"conv1.1.weight": torch.full((24,), 1e300, dtype=torch.float64)}, "not finite"),
        ({"conv1.1.weight": torch.zeros(24, dtype=torch.int64)}, "is of type torch.int64, the network's of"),
        ({"conv1.1.weight": torch.zeros(24, dtype=torch.complex64)}, "is of type torch.complex64"),
    ],
)  # fmt: skip
def test_whatever_does_not_fit_is_refused_by_name(change: dict[str, Tensor | None], reason: str) -> None:
    given = {name: tensor for name, tensor in (by_library() | change).items() if tensor is not None}
    assert re.search(reason, refusal(given))


def test_another_network_is_refused_with_the_first_names() -> None:
    fields = refusal(dict(models.get_model("resnet18").state_dict()))
    assert re.search(r"is not of torchvision:shufflenet_v2_x0_5: it lacks .* and \d+ more and has conv1.weight", fields)


class Evil:
    """Would be called by an unpickler that runs what a file says."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("the file's code was run",)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    def message_of(name: str, data: bytes) -> str:
        path = tmp_path / name
        path.write_bytes(data)
        said = refusal_of(ConfigError, weights.read, path)
        assert said.startswith("model.weights: ")
        assert "\n" not in said
        return said

    assert "it is no file of tensors alone" in message_of("evil.pth", pickle.dumps({"conv1.0.weight": Evil()}))
    torch.save({"w": Evil()}, tmp_path / "zip.pth")
    assert "it is no file of tensors alone" in message_of("zip.pth", (tmp_path / "zip.pth").read_bytes())
    assert "it is no file of tensors alone" in message_of("cut.safetensors", b"\x08\0\0\0\0\0\0\0{")
    assert "expected a file that ends in .safetensors, .pth, .pt" in message_of("w.bin", b"")
    torch.save({"lr": 0.1}, tmp_path / "other.pth")
    assert "expected tensors by name, found 'lr': float" in message_of(
        "other.pth", (tmp_path / "other.pth").read_bytes()
    )
    torch.save([1], tmp_path / "list.pth")
    assert "expected tensors by name" in message_of("list.pth", (tmp_path / "list.pth").read_bytes())
    assert "No such file" in refusal_of(ConfigError, weights.read, tmp_path / "none.pth")
    assert "No such file" in refusal_of(ConfigError, weights.digest, tmp_path / "none.pth")


def test_a_file_that_was_changed_after_it_was_named_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(by_library(), path)
    before = weights.digest(path)
    safetensors.torch.save_file(by_library(seed=1), path)
    assert "has the SHA-256" in refusal_of(ConfigError, weights.read, path, before)

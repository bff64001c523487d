"""``fedshift save --to``: the library's own network takes the file, and gives the scores of the run's model."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from refusals import refused
from support import InlineRun

from fedshift.export import library, opening, saved, saving, scorer
from fedshift.export.saving import Wanted
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError

NETWORK = "torchvision:shufflenet_v2_x0_5"


def arrays_of(config: RunConfig) -> Arrays:
    """Return the weights that classify, of a model as it begins."""
    client = scorer.bare_client(config)
    state = client.model.state_dict()
    return {name: state[name].numpy().copy() for name in scorer.needs(client).weights}


def configured(given: str, method: str = "fedavg") -> RunConfig:
    return resolve({"experiment": "handwritten", "method": method, "set": given})


def test_the_two_lines_open_what_a_run_has_trained(
    run_inline: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"model.name={NETWORK} allocation.share=0.05 train.epochs=1 dataset.domains=[scan,sketch]"
    run = run_inline(f"nodes=2 rounds=1 {given}")
    folder, lines = library.save(Wanted(run.folder, "safetensors"), "torchvision")
    assert folder == run.folder / "model-torchvision"
    about = json.loads((folder / "about.json").read_text())
    assert about["python"] == lines and "import" not in "".join(lines)
    assert all(line in (folder / "README.md").read_text() for line in about["python"])
    plain, _ = saving.save(Wanted(run.folder, "safetensors", output=tmp_path / "model"))
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = opening.program_of(*saved.read(plain))(images)
    # As its user would, who has these libraries and nothing of FedShift.
    names: dict[str, Any] = {"safetensors": safetensors, "torch": torch, "torchvision": torchvision}
    monkeypatch.chdir(folder)
    exec("\n".join(about["python"]), names)
    mean, std = (torch.tensor(about[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(names["model"].eval()((images - mean) / std), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="exists already"):
        library.save(Wanted(run.folder, "safetensors"), "torchvision")


@pytest.mark.parametrize(
    ("given", "method", "to", "named"),
    [
        ("model.name=cnn", "fedavg", "torchvision", "cnn"),
        (f"model.name={NETWORK}", "fedavg", "timm", "--to torchvision"),
        *((f"model.name={NETWORK} {more}", "fedavg", "torchvision", "") for more in
          ("modules=[f2dc]", "model.projection=16", "model.head=mlp", "model.bn=group")),
        (f"model.name={NETWORK}", "fedsr", "torchvision", ""),
    ],
)  # fmt: skip
def test_models_that_are_more_than_the_librarys_network(given: str, method: str, to: str, named: str) -> None:
    config = configured(given, method)
    with refused(ConfigError, named):
        library.export(config, arrays_of(config), to)


def test_other_scores_are_found_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured(f"model.name={NETWORK}")
    arrays = arrays_of(config)
    _, named = library.export(config, arrays, "torchvision")
    assert {"fc.weight", "fc.bias", "conv1.0.weight"} <= {*named}  # the library's names
    plain: Any = library._plain

    def other(*given: Any) -> Any:
        made = plain(*given)
        made.fc.register_forward_hook(lambda module, inputs, scores: scores + 1)
        return made

    monkeypatch.setattr(library, "_plain", other)
    with refused(ConfigError):
        library.export(config, arrays, "torchvision")

"""``benchmarks/batchnorm.py`` changes BatchNorm's statistics and nothing else."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from support import InlineRun, load_benchmark

from fedshift_app.report import reading, views
from fedshift_wire.errors import FedShiftError

QUICK = "rounds=2 train.epochs=1 allocation.share=0.1"


@pytest.fixture(scope="module")
def batchnorm() -> ModuleType:
    return load_benchmark("batchnorm")


@pytest.mark.parametrize("bn", ["average", "local"])
def test_a_run_scored_again_with_its_own_statistics_is_the_run(
    batchnorm: ModuleType, run_inline: InlineRun, bn: str
) -> None:
    run = run_inline(set=f"{QUICK} model.name=cnn_bn model.bn={bn}")
    method, scores = batchnorm.score(run.folder, None)
    assert method == "fedavg"
    assert scores["run"] == pytest.approx(run.results["final"])
    assert all(set(found) == set(scores["run"]) for found in scores.values())
    assert scores["all"] != scores["run"]
    assert scores["own"] != scores["all"]
    assert batchnorm.score(run.folder, None, 10**6) == (method, scores)
    for found in batchnorm.score(run.folder, None, 10)[1].values():
        assert all(value == pytest.approx(10 * round(value / 10)) for value in found.values())


def test_the_statistics_are_the_means_over_batches(batchnorm: ModuleType, run_inline: InlineRun) -> None:
    run = run_inline(set=f"{QUICK} model.name=cnn_bn images.eval_batch=16")
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    node = record.checkpoint.nodes[0]
    client = views.client_of(record, record.config, node.domain, node)
    before = {name: value.clone() for name, value in client.model.state_dict().items()}
    seen: list[torch.Tensor] = []
    first = next(module for module in client.model.modules() if isinstance(module, torch.nn.BatchNorm2d))
    hook = first.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    assert batchnorm.take_statistics(client, client.train_set) > 0
    hook.remove()
    assert len(seen) == -(-len(client.train_set) // 16)
    batches = [x.double().numpy() for x in seen]
    assert first.running_mean is not None
    assert first.running_var is not None
    np.testing.assert_allclose(first.running_mean, np.mean([x.mean((0, 2, 3)) for x in batches], 0), atol=1e-5)
    variances = [x.var((0, 2, 3), ddof=1) for x in batches]
    np.testing.assert_allclose(first.running_var, np.mean(variances, 0), rtol=1e-4, atol=1e-6)
    for name, value in client.model.state_dict().items():
        assert "running" in name or "num_batches" in name or torch.equal(value, before[name]), name
    assert not client.model.training
    assert first.momentum == 0.1


@pytest.mark.parametrize(
    ("method", "settings", "said"),
    [
        ("fedavg", "model.name=cnn", "cnn has no BatchNorm"),
        ("fedicon", "model.name=cnn_bn method.classifier_rounds=1", "adapts to the test images"),
        ("fedavg-ft", "model.name=cnn_bn", "trains before it is scored"),
    ],
)
def test_runs_that_cannot_be_scored(
    batchnorm: ModuleType, run_inline: InlineRun, method: str, settings: str, said: str
) -> None:
    run = run_inline(method=method, set=f"{QUICK} {settings}")
    with pytest.raises(FedShiftError, match=said):
        batchnorm.score(run.folder, None)


def test_no_run_at_all(batchnorm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["batchnorm.py", str(tmp_path)])
    with pytest.raises(SystemExit):
        batchnorm.main()

"""``evaluate.bn``: the same weights scored with BatchNorm's statistics in several ways, and which of them are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killing import killing, only, outcome, resume, start
from refusals import refused
from support import InlineRun, ListeningGrid, Run
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.config import registry
from fedshift_app.config import resolving as configuration
from fedshift_app.node import setup
from fedshift_app.run import checkpoints
from fedshift_app.run.folder import weights_hash
from fedshift_clients.training import statistics
from fedshift_core.errors import FederationError
from fedshift_core.wire.names import BN_MEAN, BN_VAR

QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name=cnn_bn"
ALL = "evaluate.bn=[averaged,retaken,own,batch]"
WAYS = ("bn=retaken", "bn=own", "bn=batch")


def kept(run: Run) -> checkpoints.Checkpoint:
    folder = run.folder / "checkpoint"
    return checkpoints.load(folder, checkpoints.rounds(folder)[0])


def test_further_statistics_are_reported_after_the_first_and_change_nothing(finished_run: InlineRun) -> None:
    plain = finished_run(rounds=2, set=QUICK)
    run = finished_run(rounds=2, set=f"{QUICK} {ALL}")
    assert run.results["weights_sha256"] == plain.results["weights_sha256"]
    for one, other in zip(plain.rounds, run.rounds, strict=True):
        assert (one["accuracy"], one["test_loss"]) == (other["accuracy"], other["test_loss"])
        assert "others" not in one
        assert set(other["others"]) == set(WAYS)
    assert plain.results["scored_with"] == run.results["scored_with"] == "averaged"
    for way in WAYS:
        by_round = [line["others"][way] for line in run.rounds]
        means = {domain: np.mean([one[domain] for one in by_round]) for domain in by_round[0]}
        assert run.results["others"][way] == pytest.approx(means)
    different = [run.results["domains"], *run.results["others"].values()]
    assert all(one != other for i, one in enumerate(different) for other in different[:i])


def test_the_scores_are_those_of_plain_torch_with_such_statistics(finished_run: InlineRun) -> None:
    """Slow and obvious: one node a domain, PyTorch's own running mean over one batch, its own training mode.

    PyTorch's running variance is that of a sample, n / (n - 1) times ours, of n values a channel: 3600 in the last
    layer. With that taken out both count the same images right.
    """
    run = finished_run(nodes=2, rounds=1, set=f"{QUICK} {ALL} images.eval_batch=256 train.precision=float32")
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    for node in record.checkpoint.nodes:
        client = predictions.client_of(record, record.config, node.domain, node)
        setup.load(record.checkpoint.weights, client, "the checkpoint's")
        norms = [module for module in client.model.modules() if isinstance(module, nn.BatchNorm2d)]
        test = client.test_set(node.domain)
        assert max(len(client.train_set), len(test)) <= 256
        own = statistics.of_moments(*client.take_statistics(1000))

        def right(images: Any, model: nn.Module = client.model) -> int:
            x = torch.cat([x for x, _ in client.plain_batches(images)])  # noqa: B023
            return int((model(x)[1].argmax(1) == torch.from_numpy(images.y)).sum())

        def score_with(way: str, domain: str = node.domain, images: int = len(test)) -> float:
            return float(run.results["others"][way][domain]) * images / 100

        values: list[int] = []
        noted = [m.register_forward_pre_hook(lambda _, x: values.append(x[0].numel() // x[0].shape[1])) for m in norms]  # noqa: B023
        with torch.no_grad():
            for norm in norms:
                norm.train()
            assert right(test) == pytest.approx(score_with("bn=batch"))
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None
            values.clear()
            right(client.train_set)
            for norm, n in zip(norms, values, strict=True):
                assert norm.running_var is not None
                norm.running_var *= (n - 1) / n
            state = client.model.eval().state_dict()
            for name, result in own.items():
                torch.testing.assert_close(result, state[name], rtol=5e-5, atol=2e-6)  # of 3600 values, 3e-4 apart
            assert right(test) == pytest.approx(score_with("bn=own"))
        for norm, hook in zip(norms, noted, strict=True):  # the model may be the next client's too
            norm.momentum = 0.1
            hook.remove()


def test_fewer_nodes_than_domains_have_no_own_statistics_as_first_score(run_inline: InlineRun) -> None:
    with refused(FederationError, "[own,averaged]", "street, sketch"):
        run_inline(nodes=2, rounds=1, set="model.name=cnn_bn evaluate.bn=[own,averaged]")


def test_where_batchnorm_stays_on_the_nodes_it_is_not_retaken(run_inline: InlineRun) -> None:
    run = run_inline(method="fedbn", rounds=1, set=f"{QUICK} {ALL}")
    assert set(run.results["others"]) == {"bn=own", "bn=batch"}


# --- what is kept -------------------------------------------------------------------------------------------------

KEEP = "evaluate.bn=[averaged,retaken] model.bn_keep=retaken"


def test_the_model_with_retaken_statistics_is_kept_and_training_goes_on_with_the_others(
    finished_run: InlineRun,
) -> None:
    plain = finished_run(rounds=2, set=f"{QUICK} evaluate.bn=[averaged,retaken]")
    run = finished_run(rounds=2, set=f"{QUICK} {KEEP}")
    assert run.results["domains"] == plain.results["domains"]
    assert run.results["others"] == plain.results["others"]
    result, before = kept(run), kept(plain)
    assert run.results["weights_sha256"] == weights_hash(result.weights) != plain.results["weights_sha256"]
    assert weights_hash(result.carried_on) == weights_hash(before.weights)
    changed = {name for name, array in result.weights.items() if not np.array_equal(array, before.weights[name])}
    assert changed == {f"encoder.{place}.{key}" for place in (1, 5) for key in (BN_MEAN, BN_VAR)}
    assert not list((plain.folder / "checkpoint").glob("averaged-*"))


def test_a_run_that_keeps_retaken_statistics_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat: dict[str, Any] = {"rounds": 3, "set": f"{QUICK} {KEEP} evaluate.every=2"}
    whole = start(tmp_path / "whole", **flat)
    with killing(monkeypatch)("averaged-00003", "before"):
        start(tmp_path / "runs", **flat)
    assert checkpoints.rounds(only(tmp_path / "runs") / "checkpoint") == [2, 1]
    assert outcome(resume(tmp_path / "runs")) == outcome(whole)


# --- what a node says ---------------------------------------------------------------------------------------------


def without_statistics(*nodes: int) -> Any:
    """Return a grid in which nodes answer without the statistics that they are asked for."""

    class Grid(ListeningGrid):
        def pass_on(self, asked: Any, reply: Any) -> Any:
            if asked.content.config_records["config"].get("take-statistics") and asked.metadata.dst_node_id in nodes:
                del reply.content["knowledge"]
            return reply

    return Grid


def test_a_node_whose_statistics_are_no_use_is_left_out_of_them_alone(run_inline: InlineRun) -> None:
    given = f"{QUICK} evaluate.bn=[averaged,retaken]"
    run = run_inline(rounds=1, grid=without_statistics(1002), set=given)
    (left_out,) = run.rounds[0]["left_out"]
    assert left_out.startswith("node 2 (scan): ")
    assert run.rounds[0]["nodes"] == [0, 1, 2, 3]
    assert None not in run.rounds[0]["others"]["bn=retaken"].values()
    with pytest.raises(FederationError, match=r"^round 1: .*node 0 \(scan\)"):
        run_inline(rounds=1, grid=without_statistics(*range(1000, 1004)), set=given)


# --- GroupNorm ----------------------------------------------------------------------------------------------------


def own_models() -> list[str]:
    """Return a method of each way to build a model, with the modules in it."""
    ways = {}
    for name in registry.METHODS:
        method = registry.get(name)
        if method.needs.get("network") == "batchnorm" or name == "fdse":
            continue
        ways[method.client_class().build_model.__func__, str(method.defaults.get("modules"))] = name  # type: ignore[attr-defined]
    return [*ways.values()]


@pytest.mark.parametrize("method", own_models())
def test_group_norm_leaves_no_batchnorm_in_any_methods_model(method: str) -> None:
    network = f"{registry.get(method).short} model.name=resnet10"
    fields = {"experiment": "handwritten", "method": method, "set": f"{network} model.bn=group"}
    model = setup.initial_model(configuration.resolve(fields))
    plain = setup.initial_model(configuration.resolve(fields | {"set": network}))
    assert not [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    assert any(isinstance(module, nn.GroupNorm) for module in model.modules())
    state, before = model.state_dict(), plain.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in state.items())
    assert set(before) - set(state) == {name for name in before if "running" in name or "num_batches" in name}


@pytest.mark.parametrize("network", ["torchvision:mobilenet_v3_small", "timm:mobilenetv3_small_050"])
def test_group_norm_stands_for_each_batchnorm_of_a_librarys_network(network: str) -> None:
    """The second has activations within its BatchNorm."""
    pytest.importorskip(network.partition(":")[0])
    given = f"model.name={network} dataset.size=64"
    plain, model = (
        setup.initial_model(configuration.resolve({"set": f"{given} model.bn={bn}"})) for bn in ("average", "group")
    )
    norms = [m for m in plain.modules() if isinstance(m, _BatchNorm)]
    put = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert [(m.num_groups, m.num_channels, m.eps) for m in put] == [(2, m.num_features, m.eps) for m in norms]
    assert len(norms) >= 20 and not [m for m in model.modules() if isinstance(m, _BatchNorm)]
    kinds = (nn.ReLU, nn.Hardswish, nn.Hardsigmoid)
    acts, before = ([type(m) for m in one.modules() if isinstance(m, kinds)] for one in (model, plain))
    assert acts == before
    x = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for mode in (True, False):
        features, logits = model.train(mode)(x)
        assert features.isfinite().all() and features.std() > 0 and logits.shape == (3, 10)
    alone, together = model(x[:1])[1], model(x)[1][:1]
    torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-4)  # no image depends on the others of its batch


# --- compare ------------------------------------------------------------------------------------------------------

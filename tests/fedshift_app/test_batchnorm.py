"""``evaluate.bn``: the same weights scored with BatchNorm's statistics in several ways, and which of them are kept."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from killing import killing, only, outcome, resume, start
from refusals import refused
from support import InlineRun, Run
from torch import nn
from traffic import asked, changing

from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.config import registry
from fedshift_app.config import resolving as configuration
from fedshift_app.node import loading, setup
from fedshift_app.run import checkpoints
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.training import statistics
from fedshift_core.errors import FederationError
from fedshift_datasets.base import ImageSet

QUICK = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name=cnn_bn"
ALL = "evaluate.bn=[averaged,retaken,own,batch]"
WAYS = ("bn=retaken", "bn=own", "bn=batch")


def kept(run: Run) -> checkpoints.Checkpoint:
    folder = run.folder / "checkpoint"
    return checkpoints.load(folder, checkpoints.rounds(folder)[0])


def test_further_statistics_are_reported_after_the_first_and_change_nothing(finished_run: InlineRun) -> None:
    plain, run = (finished_run(f"nodes=2 rounds=2 {given}") for given in (QUICK, f"{QUICK} {ALL}"))
    for key in ("weights_sha256", "scored_with"):
        assert run.results[key] == plain.results[key]
    for one, other in zip(plain.rounds, run.rounds, strict=True):
        assert (one["accuracy"], one["test_loss"]) == (other["accuracy"], other["test_loss"])
        assert "others" not in one and {*other["others"]} == {*WAYS}
    for way in WAYS:
        by_round = [line["others"][way] for line in run.rounds]
        means = {domain: np.mean([one[domain] for one in by_round]) for domain in by_round[0]}
        assert run.results["others"][way] == pytest.approx(means)
    assert len({tuple(of.values()) for of in (run.results["domains"], *run.results["others"].values())}) == 4


def test_the_scores_are_those_of_plain_torch_with_such_statistics(finished_run: InlineRun) -> None:
    """Slow and obvious: one node a domain, PyTorch's own running mean over one batch, its own training mode.

    PyTorch's running variance is that of a sample, n / (n - 1) times ours, of n values a channel: 3600 in the last
    layer. With that taken out both count the same images right.
    """
    run = finished_run(f"nodes=2 rounds=1 {QUICK} {ALL} images.eval_batch=256 train.precision=float32")
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    for node in record.checkpoint.nodes:
        client = predictions.client_of(record, record.config, node.domain, node)
        loading.load(record.checkpoint.weights, client, "the checkpoint's")
        model = copy.deepcopy(client.model)  # the client's may be the next one's too
        norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
        test, own = client.test_set(node.domain), statistics.of_moments(*client.take_statistics(1000))
        assert max(len(client.train_set), len(test)) <= 256

        def right(images: ImageSet) -> float:
            x = torch.cat([x for x, _ in client.plain_batches(images)])  # noqa: B023
            return 100 * float((model(x)[1].argmax(1) == torch.from_numpy(images.y)).float().mean())  # noqa: B023

        others = {way: scores[node.domain] for way, scores in run.results["others"].items()}
        values: list[int] = []
        with torch.no_grad():
            for norm in norms:
                norm.train()
            assert right(test) == pytest.approx(others["bn=batch"])
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None
                norm.register_forward_pre_hook(lambda _, x: values.append(x[0].numel() // x[0].shape[1]))  # noqa: B023
            right(client.train_set)
            for norm, n in zip(norms, values, strict=True):
                norm.running_var *= (n - 1) / n
            state = model.eval().state_dict()
            for name, result in own.items():
                torch.testing.assert_close(result, state[name], rtol=5e-5, atol=2e-6)  # of 3600 values, 3e-4 apart
            assert right(test) == pytest.approx(others["bn=own"])


def test_fewer_nodes_than_domains_have_no_own_statistics_as_first_score(run_inline: InlineRun) -> None:
    with refused(FederationError, "[own,averaged]", "street, sketch"):
        run_inline("nodes=2 rounds=1 model.name=cnn_bn evaluate.bn=[own,averaged]")


def test_where_batchnorm_stays_on_the_nodes_it_is_not_retaken(run_inline: InlineRun) -> None:
    run = run_inline(f"method=fedbn nodes=2 rounds=1 {QUICK} {ALL}")
    assert set(run.results["others"]) == {"bn=own", "bn=batch"}


# --- what is kept -------------------------------------------------------------------------------------------------

KEEP = "evaluate.bn=[averaged,retaken] model.bn_keep=retaken"


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


def without_statistics(message: Message, reply: Message) -> Message:
    """Answer without the statistics that are asked for."""
    if asked(message).get("take-statistics"):
        del reply.content["knowledge"]
    return reply


def test_a_node_whose_statistics_are_no_use_is_left_out_of_them_alone(run_inline: InlineRun) -> None:
    given = f"{QUICK} evaluate.bn=[averaged,retaken]"
    (line,) = run_inline(f"rounds=1 {given}", grid=changing(without_statistics, nodes=[2])).rounds
    (left_out,) = line["left_out"]
    assert left_out.startswith("node 2 (scan): ") and line["nodes"] == [0, 1, 2, 3]
    assert None not in line["others"]["bn=retaken"].values()
    with pytest.raises(FederationError, match=r"^round 1: .*node 0 \(scan\)"):
        run_inline(f"rounds=1 {given}", grid=changing(without_statistics))


# --- GroupNorm ----------------------------------------------------------------------------------------------------


def own_models() -> list[str]:
    """Return a method of each way to build a model, with the modules in it."""
    ways = {}
    for method in registry.listed():
        if method.needs.get("network") != "batchnorm" and method.name != "fdse":
            build: Any = method.client_class().build_model
            ways[build.__func__, str(method.defaults.get("modules"))] = method.name
    return [*ways.values()]


@pytest.mark.parametrize("method", own_models())
def test_group_norm_leaves_no_batchnorm_in_any_methods_model(method: str) -> None:
    network = f"{registry.get(method).short} model.name=resnet10 model.bn="
    plain, model = (initial(network + bn, method=method) for bn in ("average", "group"))
    kinds = [type(module) for module in model.modules()]
    assert nn.GroupNorm in kinds and not any(issubclass(kind, nn.BatchNorm2d) for kind in kinds)
    state, before = model.state_dict(), plain.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in state.items())
    assert before.keys() - state.keys() == {name for name in before if "running" in name or "num_batches" in name}


def initial(settings: str, **flat: Any) -> SplitModel:
    return setup.initial_model(configuration.resolve({"set": settings} | flat))

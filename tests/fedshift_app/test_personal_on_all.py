"""``evaluate.personal_on=all_domains``: each node's own model on every domain, as F2DC with local modules needs."""

from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file
from support import InlineRun

from fedshift.lab.pages.report import predictions
from fedshift.lab.tables.compare import compare
from fedshift.run import reading
from fedshift_app.node import setup, state_store

ON_ALL = "evaluate.personal_on=all_domains"
SMALL = "dataset.domains=[scan,sketch] model.name=cnn_bn train.epochs=1 allocation.share=0.05"


def test_each_nodes_own_model_is_scored_on_all_domains(run_inline: InlineRun) -> None:
    given: dict[str, Any] = {"method": "fedbn", "nodes": 4, "rounds": 2, "set": SMALL}
    own, every = run_inline(**given), run_inline(**given | {"set": f"{given['set']} {ON_ALL}"})
    assert every.results["weights_sha256"] == own.results["weights_sha256"]
    assert own.results["evaluated"] == "personal models"
    assert "spread_over_nodes" not in own.results
    assert every.results["evaluated"] == "personal models, each on all domains"
    record = reading.read(every.folder)
    assert record.checkpoint is not None
    for domain in record.config.dataset.domains:  # slow: each node's client, scored as a whole
        each = []
        for node in record.checkpoint.nodes:
            client = predictions.client_of(record, record.config, domain, node)
            setup.load(record.checkpoint.weights, client, "the checkpoint's")
            test = client.test_set(domain)
            each.append(100 * client.score_test(test).correct / len(test))
        assert every.rounds[-1]["accuracy"][domain] == pytest.approx(np.mean(each))
        assert every.rounds[-1]["spread_over_nodes"][domain] == pytest.approx(np.std(each, ddof=1))
    shown = compare([every.folder]).text(1000)
    assert "personal on all" in shown
    assert "standard deviation over nodes scan " in shown


def test_f2dcs_local_modules_are_scored_so(run_inline: InlineRun) -> None:
    """Slow and obvious: global weights and one node's modules, from their files, in a network of its own."""
    run = run_inline(
        method="f2dc", rounds=1, nodes=2,
        set="dataset.domains=[scan,sketch] train.epochs=2 train.lr=0.03 train.precision=float32 allocation.share=1 "
        "method.local_modules=local method.eval_modules=client_mean",
    )  # fmt: skip
    assert run.results["evaluated"] == "personal models, each on all domains"
    config = yaml.safe_load((run.folder / "config.yaml").read_text())["resolved"]
    assert config["evaluate"]["personal_on"] == "all_domains"
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    by_name: dict[str, list[float]] = {domain: [] for domain in record.config.dataset.domains}
    for node in record.checkpoint.nodes:
        kept = state_store.simulated(run.folder / "checkpoint" / "nodes", node.partition_id)
        (path,) = kept.glob("round-00001-*.safetensors")
        modules = {name.removeprefix("model/"): array for name, array in load_file(path).items()}
        assert all(name.startswith("decoupling.stage2.") for name in modules)
        model = setup.initial_model(record.config)
        state = {name: torch.from_numpy(array) for name, array in (record.checkpoint.weights | modules).items()}
        model.load_state_dict(state)  # strict: nothing is of the start
        model.eval()
        client = predictions.client_of(record, record.config, node.domain, node)
        for domain, each in by_name.items():
            test, right = client.test_set(domain), 0
            for x, y in client.plain_batches(test):
                with torch.no_grad():
                    right += int((model(x)[1].argmax(1) == y).sum())
            each.append(100 * right / len(test))
    line = run.rounds[-1]
    for domain, each in by_name.items():
        assert line["accuracy"][domain] == pytest.approx(np.mean(each))
        assert line["spread_over_nodes"][domain] == pytest.approx(np.std(each, ddof=1))
    assert max(np.std(each) for each in by_name.values()) > 2  # one model for all would be seen

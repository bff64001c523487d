"""``evaluate.personal_on=all_domains``: each node's own model on every domain, as F2DC with local modules needs."""

from typing import Any

import numpy as np
import pytest
from support import InlineRun

from fedshift.lab.pages.report import predictions
from fedshift.lab.tables.compare import compare
from fedshift.run import reading
from fedshift_app.node import loading

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
            loading.load(record.checkpoint.weights, client, "the checkpoint's")
            test = client.test_set(domain)
            each.append(100 * client.score_test(test).correct / len(test))
        assert every.rounds[-1]["accuracy"][domain] == pytest.approx(np.mean(each))
        assert every.rounds[-1]["spread_over_nodes"][domain] == pytest.approx(np.std(each, ddof=1))
    shown = compare([every.folder]).text(1000)
    assert "personal on all" in shown
    assert "standard deviation over nodes scan " in shown

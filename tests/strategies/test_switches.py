"""A setting leaves out what does not travel then; with everything off the server keeps and sends nothing."""

from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import ArrayRecord
from support import ask, new_strategy, node

from fedshift_app.config import registry
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.updates import Update

PROTOTYPES, STATISTICS = {"prototypes", "counts"}, {"class-features", "variance"}
STYLES, HEADS = PROTOTYPES | {"style-prototype"}, {"head-weight", "head-bias"}


@pytest.mark.parametrize(
    ("method", "params", "names"),
    [
        ("fedcode", "", STYLES),
        ("fedcode", "use_semcl: false", STYLES),
        ("fedcode", "use_stycl: false", STYLES),
        ("fedcode", "global_model: average_heads", STYLES | HEADS),
        ("fedcode", "alpha: 0", set()),
        ("fedcode", "use_semcl: false, use_stycl: false", set()),
        ("fedicon", "", set()),
        ("fediir", "lambda_iir: 0", set()),
        ("fedmd", "digest_epochs: 0", set()),
        ("fedpac", "", PROTOTYPES | STATISTICS),
        ("fedpac", "lambda_align: 0", STATISTICS),
        ("fedpac", "combine_heads: false", PROTOTYPES),
        ("fedpac", "combine_heads: false, lambda_align: 0", set()),
        ("fedpall", "", PROTOTYPES | {"features", "labels"}),
        ("fedpall", "lambda_adv: 0, take: 0", PROTOTYPES),
        ("fedpall", "lambda_adv: 0, take: 0, lambda_con: 0", set()),
        ("fedplvm", "lambda_proto: 0", set()),
        ("fedtgp", "", PROTOTYPES),
        ("fedthe", "personal_head: false", set()),
        ("ggeur", "samples: 0", set()),
        ("scaffold", "control: false", set()),
        ("stablefdg", "shift: 0", set()),
    ],
)
def test_what_is_switched_off_does_not_travel(method: str, params: str, names: set[str]) -> None:
    own = yaml.safe_load(f"{{{params}}}")
    server = new_strategy(registry.get(method).strategy_class(), personal=True, rounds=12, **own)
    assert set(server.expected()) == names
    if not names:
        server.merge_knowledge([Update(node(0), ArrayRecord(), {}, 3, {})])
        assert server.knowledge == server.state == server.knowledge_for(node(0), ask(2)) == {}


@pytest.mark.parametrize(
    ("method", "params"),
    [("fedomg", {"kappa": 0}), ("feddyn", {"alpha": 0}), ("fedheal", {"use_mask": False, "use_fair": False})],
)
def test_switched_off_it_is_fedavgs_average_to_the_bit(method: str, params: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    sent, *came = (
        {"w": rng.normal(size=(3, 2)).astype(np.float32), "bn.num_batches_tracked": np.array(number)}
        for number in range(4)
    )
    results = []
    for made in (new_strategy(registry.get(method).strategy_class(), **params), new_strategy(DomainStrategy)):
        made._global = encode(sent)
        updates = [Update(node(i, (i + 1, 0, 1)), encode(arrays), {}, i + 2, {}) for i, arrays in enumerate(came)]
        weights = made.node_weights(updates)
        merged = decode(made.merge(updates, weights))
        results.append((weights, {name: (array.dtype, array.tobytes()) for name, array in merged.items()}))
        assert made.state == {}
    assert results[0] == results[1]

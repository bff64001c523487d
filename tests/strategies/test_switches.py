"""What a setting of a method leaves out does not travel; with everything off the server keeps and sends nothing."""

from typing import Any

import pytest
from flwr.app import ArrayRecord
from support import ask, new_strategy, node

from fedshift_app.config import registry
from fedshift_strategies.federation.updates import Update

PROTOTYPES, STATISTICS = {"prototypes", "counts"}, {"class-features", "variance"}
STYLES, HEADS = PROTOTYPES | {"style-prototype"}, {"head-weight", "head-bias"}


@pytest.mark.parametrize(
    ("method", "params", "names"),
    [
        ("fedcode", {}, STYLES),
        ("fedcode", {"use_semcl": False}, STYLES),
        ("fedcode", {"use_stycl": False}, STYLES),
        ("fedcode", {"global_model": "average_heads"}, STYLES | HEADS),
        ("fedcode", {"alpha": 0.0}, set()),
        ("fedcode", {"use_semcl": False, "use_stycl": False}, set()),
        ("fedicon", {}, set()),
        ("fediir", {"lambda_iir": 0.0}, set()),
        ("fedmd", {"digest_epochs": 0}, set()),
        ("fedpac", {}, PROTOTYPES | STATISTICS),
        ("fedpac", {"lambda_align": 0.0}, STATISTICS),
        ("fedpac", {"combine_heads": False}, PROTOTYPES),
        ("fedpac", {"combine_heads": False, "lambda_align": 0.0}, set()),
        ("fedpall", {}, PROTOTYPES | {"features", "labels"}),
        ("fedpall", {"lambda_adv": 0, "take": 0}, PROTOTYPES),
        ("fedpall", {"lambda_adv": 0, "take": 0, "lambda_con": 0}, set()),
        ("fedplvm", {"lambda_proto": 0.0}, set()),
        ("fedtgp", {}, PROTOTYPES),
        ("fedthe", {"personal_head": False}, set()),
        ("ggeur", {"samples": 0}, set()),
        ("scaffold", {"control": False}, set()),
        ("stablefdg", {"shift": 0}, set()),
    ],
)
def test_what_is_switched_off_does_not_travel(method: str, params: dict[str, Any], names: set[str]) -> None:
    server = new_strategy(registry.get(method).strategy_class(), personal=True, rounds=12, **params)
    assert set(server.expected()) == names
    if not names:
        server.merge_knowledge([Update(node(0), ArrayRecord(), {}, 3, {})])
        assert server.knowledge == server.state == server.knowledge_for(node(0), ask(2)) == {}

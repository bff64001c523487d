"""Names that strategies declare; FedMLP's and FedTHE's strategies."""

from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import ArrayRecord
from support import ask, new_strategy, node

from fedshift_app.config import registry
from fedshift_core.arrays import Arrays
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import behind, declared, dtype_of, of_features
from fedshift_strategies.federation.update_norms import out_of_proportion
from fedshift_strategies.federation.updates import Update
from fedshift_strategies.methods.fedproto import FedProtoStrategy
from fedshift_strategies.methods.fedthe import FedTHEStrategy

# --- What a strategy declares that it sends its nodes, which nodes hold messages against ---


def test_a_method_that_does_not_declare_may_send_anything() -> None:
    class Sends(FedProtoStrategy):
        def knowledge_for(self, node: Any, ask: Any) -> Arrays:
            return {"own": np.zeros(1)}

    class Says(Sends):
        sends = ("own",)

    class Weighs(FedProtoStrategy):
        def weights(self, updates: Any) -> list[float]:
            return []

    assert declared(Sends, "sends") is None
    assert declared(Says, "sends") == ("own",)
    assert declared(Weighs, "sends") == ("prototypes", "labels")


# --- What nodes contribute, held against the other nodes' ---

#: Lengths of the rows of prototypes after round 1 of the CNN on the embedded digits (64 features), seed 0: those of
#: FedProc and FedGH, and of FedPAC. One node of four learnt, all are honest, and ``federation.max_update`` is 10.
FIRST_ROUNDS = ([20.3, 1.1, 0.9, 2.7], [36.8, 1.7, 0.9, 3.7])
SIZES = {"C": 10, "D": 64, "F": 64}
#: What is measured under the weights that all nodes were sent, so that no node is ahead of the others.
UNDER_SENT_WEIGHTS = {"eigenvalues", "head-gradient", "style", "variance"}
#: What follows a node's own training and is as long on all nodes: changes of weights, heads, logits.
AS_LONG = {"delta-c", "head-bias", "head-weight", "scores"}


@pytest.mark.parametrize("lengths", FIRST_ROUNDS)
def test_no_method_leaves_out_the_first_node_that_learns(lengths: list[float]) -> None:
    """All that is made of features grows with them: a new method's array must be known as such, or as another kind."""
    for name in registry.METHODS:
        strategy = registry.get(name).strategy_class()
        features = of_features(strategy, strategy.contributes)
        whole = {array for array, shape in strategy.contributes.items() if dtype_of(array, shape) == "int64"}
        others = set(strategy.contributes) - features - whole
        assert others <= UNDER_SENT_WEIGHTS | AS_LONG, f"{name}: of what kind is it?"
        assert all(behind(strategy, array) != "model" for array in features)
        shapes = {
            array: [part if isinstance(part, int) else SIZES.get(part, 3) for part in strategy.contributes[array]]
            for array in features
        }
        honest: list[Arrays] = [
            {array: np.full(shape, length / np.sqrt(shape[-1]), np.float32) for array, shape in shapes.items()}
            for length in lengths
        ]
        assert out_of_proportion(honest, 10, features) == {}, name
        lie = [*honest[1:], {array: 30 * rows for array, rows in honest[0].items()}]
        assert sorted(out_of_proportion(lie, 10, features)) == ([3] if features else []), name


# --- FedTHE on the server: the plain mean of the nodes' mean features, and nothing where it is off ---


def sent_by(index: int, images: int, feature: list[float]) -> Update:
    fields = {"feature": np.array(feature, np.float32)}
    return Update(node(index, (images, 0, 0)), ArrayRecord(), fields, images, {})


def test_each_node_counts_the_same_however_many_images_it_has() -> None:
    server = new_strategy(FedTHEStrategy)
    server.merge_knowledge([sent_by(0, 1, [1, 4]), sent_by(1, 99, [3, -2]), sent_by(3, 5, [2, 1])])
    assert server.knowledge["feature"].tolist() == [2, 1]
    assert server.knowledge["feature"].dtype == np.float32


# --- switches -----------------------------------------------------------------------------------------------


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

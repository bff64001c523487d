"""Fed3R and FedCGS on a node: sums of its features in whole numbers, contributed once; nothing trains."""

from typing import Any

import numpy as np
import pytest
import torch
from refusals import refused
from support import C, D, check_accepted, features_of, fit, image_set, new_client, normalised, scored_weights, shared
from support import same as same_arrays

from fedshift_clients.methods.feature_sums import FeatureSumsClient, Fed3RClient, own_head
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.errors import ConfigError
from fedshift_core.methods.feature_sums import RIDGES, STEP, UNIT, Fed3RParams, FedCGSParams, unpacked
from fedshift_strategies.methods.fed3r import Fed3RStrategy
from fedshift_strategies.methods.fedcgs import FedCGSStrategy


def client(kind: type[FeatureSumsClient[Any]] = Fed3RClient, lacking: int = 1, **more: Any) -> FeatureSumsClient[Any]:
    return new_client(kind, scalars={"sums": 1} if lacking else {}, **more)


def test_it_tells_sums_of_its_features_in_whole_numbers_and_trains_nothing() -> None:
    made = client()
    before = shared(made)
    arrays, metrics = fit(made)
    assert same_arrays(arrays, before) and not [name for name in metrics if name.startswith("loss/")]
    contributed, y = made.contribution(), made.train_set.y
    f = features_of(made.model.eval(), normalised(made.train_set, made.setup.images))
    steps = np.rint(f / STEP)
    assert unpacked(contributed["gram"] * UNIT, D) == pytest.approx(steps.T @ steps * UNIT, abs=1e-4)
    for k in range(C):
        assert contributed["cross"][k] * UNIT == pytest.approx(f[y == k].sum(axis=0), abs=len(y) * STEP)
    assert contributed["counts"].tolist() == np.bincount(y, minlength=C).tolist()
    assert {str(array.dtype) for array in contributed.values()} == {"int64"}
    check_accepted(made, Fed3RStrategy)
    assert made.memory == {}


def test_a_node_whose_sums_are_known_sends_its_numbers_alone() -> None:
    made = client(FeatureSumsClient, lacking=0)
    fit(made)
    assert {name: array.size for name, array in made.contribution().items()} == {"counts": C, "gram": 0, "cross": 0}
    check_accepted(made, FedCGSStrategy)


@pytest.mark.parametrize("has", [True, False])
def test_it_scores_the_grid_on_its_validation_images(has: bool) -> None:
    rng = np.random.default_rng(0)
    heads, biases = rng.normal(size=(len(RIDGES), C, D)), rng.normal(size=(len(RIDGES), C))
    knowledge = {"heads": heads.astype(np.float32), "biases": biases.astype(np.float32)}
    images = image_set(30, seed=5)
    made = client(lacking=0, params={"ridge": "validation"}, knowledge=knowledge,
                  own_sets={"validation": images} if has else {})  # fmt: skip
    fit(made)
    f = features_of(made.model.eval(), normalised(images, made.setup.images))
    slow = [sum((w @ a + b).argmax() == k for a, k in zip(f, images.y, strict=True)) if has else 0
            for w, b in zip(heads, biases, strict=True)]  # fmt: skip
    assert made.contribution()["right"].tolist() == slow
    assert not has or len({*slow}) > 1
    check_accepted(made, Fed3RStrategy, ridge="validation")


def test_before_there_are_heads_none_is_right() -> None:
    made = client(params={"ridge": "validation"}, own_sets={"validation": image_set(seed=5)})
    fit(made)
    assert made.contribution()["right"].tolist() == [0] * len(RIDGES)


@pytest.mark.parametrize(
    ("model", "found"), [({"freeze": "none"}, "none"), ({"freeze": "encoder", "head": "mlp"}, "mlp")]
)
@pytest.mark.parametrize("kind", [Fed3RClient, FeatureSumsClient])
def test_an_encoder_that_trains_and_another_head_are_refused(
    kind: type[FeatureSumsClient[Any]], model: dict[str, Any], found: str
) -> None:
    params = Fed3RParams() if kind is Fed3RClient else FedCGSParams()
    with refused(ConfigError, "model.freeze=encoder", "model.head=linear", found):
        kind.check_run(
            params,
            ModelConfig.model_validate({"name": "cnn"} | model),
            TrainConfig(epochs=1, batch_size=8, lr=0.1),
            ImageConfig(),
        )


# --- a head of the node's own ---------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [1e-3, 1.0, 1e3])
def test_a_nodes_own_head_is_the_regression_toward_the_shared_one(rho: float) -> None:
    """As least squares of the images and of rows that pull each weight to the shared one."""
    rng = np.random.default_rng(0)
    f, y, weight, bias = rng.normal(size=(30, 5)), rng.integers(0, C, 30), rng.normal(size=(C, 5)), rng.normal(size=C)
    pull = np.sqrt(rho * (f**2).sum() / 5) * np.eye(6)
    rows = np.concatenate([np.column_stack([f, np.ones(30)]), pull])
    aims = np.concatenate([np.eye(C)[y], pull @ np.column_stack([weight, bias]).T])
    slow = np.linalg.lstsq(rows, aims, rcond=None)[0]
    found = own_head(*(torch.from_numpy(a) for a in (f, y, weight, bias)), rho)
    np.testing.assert_allclose(found[0], slow[:-1].T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[1], slow[-1], rtol=0, atol=1e-10)


def test_it_is_scored_with_its_own_head_and_keeps_the_shared_one() -> None:
    shared_alone, made, far = (client(params={"personal": rho}) for rho in (None, 1e-3, 1e9))
    test = image_set(30, seed=9)
    scores, seen = scored_weights(made, test)
    head = made.model.classifier
    f, _ = made.encoded(made.train_set, made.model.encoder)
    weight, bias = own_head(f, torch.from_numpy(made.train_set.y), head.weight, head.bias, 1e-3)
    assert np.array_equal(seen[0]["classifier.weight"], weight.detach().numpy())
    assert np.array_equal(seen[0]["classifier.bias"], bias.detach().numpy())
    assert same_arrays(shared(made), shared(shared_alone)) and made.memory == {}
    plain = scored_weights(shared_alone, test)[0]
    assert scores.loss_sum != plain.loss_sum
    assert scored_weights(far, test)[0].loss_sum == pytest.approx(plain.loss_sum, abs=1e-4)
    assert [kind.personal for kind in (made.params, shared_alone.params)] == [1e-3, None]
    assert not made.scores_as_sent(made.params) and shared_alone.scores_as_sent(shared_alone.params)


def test_the_sums_of_two_nodes_are_those_of_one_with_the_images_of_both() -> None:
    images = image_set()
    first, second = (images.select(np.arange(*part)) for part in ((0, 7), (7, len(images))))
    contributed = []
    for part in (images, first, second):
        made = client(FeatureSumsClient, train_set=part, images=ImageConfig(eval_batch=1))
        fit(made)
        contributed.append(made.contribution())
    assert all((contributed[0][name] == contributed[1][name] + contributed[2][name]).all() for name in contributed[0])

"""FedAvg-FT: what is scored is the global model after one more local round; the global model stays FedAvg's."""

from typing import Any

import numpy as np
import pytest
import torch
from clients.fedavg_ft import BEFORE, FedAvgFTClient, FedAvgFTParams
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor, nn

from clients.base import ClientSetup, DomainClient
from clients.models.networks import Blueprint, SplitModel, build
from clients.training.batches import Batch
from clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from datasets.base import ImageSet
from fedshift_wire.names import (
    CORRECT,
    DOMAINS,
    LOCAL_CORRECT,
    LOCAL_DOMAINS,
    LOSS_SUM,
    OTHER_CORRECT,
    SERVER_ROUND,
    VALIDATION,
    VALIDATION_CORRECT,
)  # fmt: skip
from fedshift_wire.params import Params

C, N, ROUND = 4, 12, 2


def image_set(n: int = N, seed: int = 0) -> ImageSet:
    """Images whose brightness tells their class, so that training helps."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % C
    x = rng.integers(0, 64, size=(n, 32, 32, 3)) + 60 * y[:, None, None, None]
    return ImageSet(x.astype(np.uint8), y)


def test_set(domain: str) -> ImageSet:
    return image_set(20, 1 + len(domain))


test_set.__test__ = False  # type: ignore[attr-defined]


def client(
    params: dict[str, Any] | None = None, *, kind: Any = FedAvgFTClient, model: str = "cnn", bn: str = "average",
    plugin: Any = None, **train: Any,
) -> DomainClient:  # fmt: skip
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 4, "lr": 0.05, "precision": "float32"}
    setup = ClientSetup(
        seed=11, index=3, device=torch.device("cpu"), model=ModelConfig.model_validate({"name": model, "bn": bn}),
        train=TrainConfig(**settings | train), images=ImageConfig(crop_padding=2),
    )  # fmt: skip
    built = build(model, C, 0)
    if plugin is not None:
        built = plugin.wrap(built, Blueprint(setup.model, C, 32, 0))
    made: DomainClient = kind(
        built, setup, FedAvgFTParams(**params or {}) if kind is FedAvgFTClient else Params(), image_set(), test_set,
        validation_set=image_set(8, 9), plugin=plugin,
    )  # fmt: skip
    return made


def received(of: DomainClient) -> list[NDArray[Any]]:
    """What the server sends: some weights, the same for every client of the network, whatever it did before."""
    rng = np.random.default_rng(7)
    state = of.model.state_dict() | build(of.setup.model.name, C, 1).state_dict()
    arrays = [state[name].numpy() for name in of.shared_names]
    return [a if a.dtype == np.int64 else a + rng.normal(0, 0.01, a.shape).astype(np.float32) for a in arrays]


def asked(*domains: str, server_round: int = ROUND, **more: Any) -> dict[str, Any]:
    return {SERVER_ROUND: server_round, DOMAINS: list(domains), **more}


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# --- what is scored --------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "average"), ("cnn_bn", "local")])
@pytest.mark.parametrize("ft_epochs", [None, 1, 3])
def test_scores_are_those_of_the_node_s_next_local_round(model: str, bn: str, ft_epochs: int | None) -> None:
    made = client({"ft_epochs": ft_epochs}, model=model, bn=bn)
    trained = client(kind=DomainClient, model=model, bn=bn, epochs=ft_epochs or 2)
    given = received(made)
    _, _, metrics = made.evaluate(given, asked("a", "bb"))
    _, _, expected = trained.fit(given, {SERVER_ROUND: ROUND + 1, LOCAL_DOMAINS: ["a", "bb"]})
    for domain in ("a", "bb"):
        assert metrics[CORRECT + domain] == expected[LOCAL_CORRECT + domain]
        assert metrics[LOSS_SUM + domain] == trained.score(test_set(domain))[1]  # to the last bit


def test_the_global_model_is_scored_beside_it() -> None:
    made, plain = client(epochs=30, lr=0.01), client(kind=DomainClient)
    given = received(made)
    _, _, metrics = made.evaluate(given, asked("a", "bb"))
    _, _, expected = plain.evaluate(given, asked("a", "bb"))
    for domain in ("a", "bb"):
        assert metrics[f"{OTHER_CORRECT}{BEFORE}/{domain}"] == expected[CORRECT + domain]
        assert metrics[LOSS_SUM + domain] < expected[LOSS_SUM + domain]  # tuning helped


def test_all_domains_of_a_call_share_one_tuned_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    made = client()
    train = made._train

    def noted(server_round: int) -> dict[str, float]:
        rounds.append(server_round)
        return train(server_round)

    monkeypatch.setattr(made, "_train", noted)
    given = received(made)
    _, _, together = made.evaluate(given, asked("a", "bb", "ccc"))
    assert rounds == [ROUND + 1]
    for domain in ("ccc", "a", "bb"):  # the order does not matter, nor what was scored before
        _, _, alone = made.evaluate(given, asked(domain))
        assert all(together[name] == value for name, value in alone.items())
    assert rounds == [ROUND + 1] * 4
    assert made.evaluate(given, asked())[2] == {}
    assert len(rounds) == 4  # nothing to score, nothing to tune


def test_another_call_tunes_what_it_was_sent() -> None:
    made, fresh = client(), client()
    other = [a if a.dtype == np.int64 else a * np.float32(0.5) for a in received(made)]
    made.evaluate(received(made), asked("a"))
    assert made.evaluate(other, asked("a", server_round=5)) == fresh.evaluate(other, asked("a", server_round=5))


# --- nothing of it stays ---------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "average"), ("cnn_bn", "local")])
def test_training_is_fedavg_bit_for_bit_whatever_is_scored_in_between(model: str, bn: str) -> None:
    mine, plain = client(model=model, bn=bn), client(kind=DomainClient, model=model, bn=bn)
    arrays = received(mine)
    for server_round in (1, 2, 3):
        wanted, _, expected = plain.fit(arrays, {SERVER_ROUND: server_round})
        arrays, _, metrics = mine.fit(arrays, {SERVER_ROUND: server_round})
        assert same(arrays, wanted)
        assert metrics == expected
        mine.evaluate(arrays, asked("a", server_round=server_round))
        assert set(mine.memory) == set(plain.memory)
        assert all(np.array_equal(mine.memory[name], plain.memory[name]) for name in plain.memory)


def test_scoring_leaves_weights_and_buffers_as_they_were() -> None:
    made = client(model="cnn_bn")
    made.evaluate(received(made), asked("a", "bb"))
    state = made.model.state_dict()
    assert same([state[name].numpy() for name in made.shared_names], received(made))


def test_models_right_after_local_training_are_not_tuned_again() -> None:
    mine, plain = client(), client(kind=DomainClient)
    config = {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a", "bb"]}
    metrics, expected = mine.fit(received(mine), config)[2], plain.fit(received(mine), config)[2]
    assert metrics == expected
    # The same client scores a received model the tuned way afterwards.
    assert f"{OTHER_CORRECT}{BEFORE}/a" in mine.evaluate(received(mine), asked("a"))[2]


def test_validation_images_are_scored_with_the_global_model() -> None:
    made, plain = client(), client(kind=DomainClient)
    given, config = received(made), asked("a", **{VALIDATION: True})
    got, expected = made.evaluate(given, config)[2], plain.evaluate(given, config)[2]
    assert got[VALIDATION_CORRECT] == expected[VALIDATION_CORRECT]


def test_every_node_is_scored_with_a_model_of_its_own_though_all_travels() -> None:
    made = client()
    assert FedAvgFTClient.personal(made.model, made.setup.model, made.params)
    assert made.shared_names == list(made.model.state_dict())


# --- with modules, and parameters ------------------------------------------------------------------


class Noisy:
    """A plugin whose loss term needs the generator of the round."""

    params_model = Params
    personal = False

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        model.register_module("extra", nn.Linear(model.feature_dim, model.num_classes))
        return model

    def private(self, model: SplitModel) -> frozenset[str]:
        return frozenset()

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        self._rng = rng

    def terms(self, model: SplitModel, batch: Batch) -> dict[str, Tensor]:
        features = model(batch.x)[0]
        noise = torch.rand(features.shape, generator=self._rng)
        return {"extra": nn.functional.cross_entropy(model.get_submodule("extra")(features + noise), batch.y)}


def test_modules_are_tuned_as_in_a_local_round() -> None:
    made, trained = client(plugin=Noisy()), client(kind=DomainClient, plugin=Noisy())
    given = received(made)
    _, _, metrics = made.evaluate(given, asked("a"))
    trained.fit(given, {SERVER_ROUND: ROUND + 1})
    assert metrics[LOSS_SUM + "a"] == trained.score(test_set("a"))[1]


@pytest.mark.parametrize("wrong", [{"ft_epochs": 0}, {"ft_epochs": -1}, {"ft_epochs": 1.5}, {"epochs": 5}])
def test_parameters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        FedAvgFTParams(**wrong)

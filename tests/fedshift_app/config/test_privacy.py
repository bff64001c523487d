"""Local differential privacy: what a node sends is clipped and noised, and what would get around it is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, on_images

from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import PrivacyConfig
from fedshift_clients.base import DomainClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.wire.records import decode

SHORT = "train.epochs=1 allocation.share=0.1"
PRIVATE = f"{SHORT} privacy.name=local-dp privacy.clipping_norm=0.5"


def spy(heard: list[Message]) -> Any:
    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            if message.metadata.message_type == MessageType.TRAIN:
                # Copies: the server lets the weights go.
                heard.append((decode(message.content["arrays"]), decode(reply.content["arrays"]), reply))  # type: ignore[arg-type]
            return reply

    return Grid


def norm(before: Arrays, after: Arrays) -> float:
    return math.sqrt(sum(float(np.square(after[name].astype(np.float64) - before[name]).sum()) for name in before))


def test_with_next_to_no_noise_each_update_is_the_clipped_one(run_inline: InlineRun) -> None:
    plain: list[Any] = []
    run_inline(rounds=1, set=SHORT, grid=spy(plain))
    private: list[Any] = []
    run_inline(rounds=1, set=f"{PRIVATE} privacy.clipping_norm=0.005 privacy.epsilon=1e6", grid=spy(private))
    assert len(plain) == len(private) == 4
    for (start, free, _), (_, cut, _) in zip(plain, private, strict=True):
        long = norm(start, free)
        assert long > 0.01
        assert norm(start, cut) == pytest.approx(0.005, rel=1e-2)
        for name in start:
            wanted = start[name] + (free[name] - start[name]) * (0.005 / long)
            np.testing.assert_allclose(cut[name], wanted, atol=1e-6)
            assert cut[name].dtype == np.float32


def test_the_noise_has_the_deviation_that_is_reported_and_differs_between_nodes(run_inline: InlineRun) -> None:
    heard: list[Any] = []
    cfg = PrivacyConfig(name="local-dp", clipping_norm=0.5, epsilon=2.0)
    run = run_inline(rounds=1, set=f"{PRIVATE} privacy.epsilon=2", grid=spy(heard))
    flat = [np.concatenate([(after[name] - start[name]).ravel() for name in start]) for start, after, _ in heard]
    for update in flat:  # the clipped part has norm 0.5 in all
        assert update.std() == pytest.approx(cfg.noise, rel=0.02)
    assert abs(float(np.corrcoef(flat[0], flat[1])[0, 1])) < 0.02
    weights = load_file(run.folder / "checkpoint" / "weights-00001.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())


def test_neither_losses_nor_knowledge_travel_next_to_the_noise(run_inline: InlineRun, capsys: Any) -> None:
    heard: list[Any] = []
    run = run_inline(rounds=1, set=f"{PRIVATE} privacy.epsilon=100", grid=spy(heard))
    for _, _, reply in heard:
        assert list(reply.content.metric_records["metrics"]) == ["num-examples"]
        assert not reply.content.array_records["knowledge"]
    assert run.rounds[0]["losses"] == {}
    shown = capsys.readouterr().out
    assert (
        "privacy: each node's update is cut to norm 0.5 and given noise of standard deviation 0.0484; after 1" in shown
    )
    assert "loss" not in shown


@pytest.mark.parametrize("method", ["moon", "fedbn"])
def test_methods_that_send_weights_only_run_with_noise(method: str, run_inline: InlineRun) -> None:
    model = "model.name=cnn_bn" if method == "fedbn" else ""
    run = run_inline(method=method, rounds=2, set=f"{PRIVATE} privacy.epsilon=1e3 {model}")
    assert run.rounds[1]["nodes"] == [0, 1, 2, 3]


def test_a_method_that_would_get_around_the_noise_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        ConfigError,
        match=r"not fit 'i2pfl': there is noise on weights only, and it also sends: up: class: prototypes \(C x D\), "
        r"counts \(C\); down: .*; it fits\s+fedavg, ",
    ):
        resolve({"method": "i2pfl", "set": "privacy.name=local-dp"})


def test_scores_of_models_before_the_noise_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"not go with evaluate.client_models=last, which sends without noise correct .*; allowed is off",
    ):
        resolve({"set": "privacy.name=local-dp evaluate.client_models=last"})


def test_a_model_that_noise_does_not_fit_stops_before_training(run_inline: InlineRun, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="num_batches_tracked would travel, a single number of type int64"):
        run_inline(rounds=1, set="privacy.name=local-dp model.name=cnn_bn")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("privacy.epsilon=0", "privacy.epsilon"),
        ("privacy.delta=1", "privacy.delta"),
        ("privacy.clipping_norm=-1", "privacy.clipping_norm"),
        ("privacy.name=central-dp", "privacy.name"),
        ("privacy.noise=1", "unknown key privacy.noise; there are name, clipping_norm, epsilon, delta"),
    ],
)
def test_what_the_section_may_say(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({"set": given})


def test_the_noise_is_that_of_the_formula() -> None:
    # sigma = 2 * 0.5 * sqrt(2 ln(1.25e5)) / 1 = sqrt(23.4720...) = 4.84481
    assert PrivacyConfig(clipping_norm=0.5).noise == pytest.approx(4.84481, rel=1e-5)
    assert PrivacyConfig(clipping_norm=5, epsilon=10).noise == pytest.approx(4.84481, rel=1e-5)


def test_the_epsilon_of_a_run() -> None:
    # One round of the classical mechanism spends at most the epsilon of its formula (Dwork & Roth, theorem A.1)...
    one = PrivacyConfig(epsilon=1.0)
    assert 0.5 < one.spent(1) < 1.0
    # ... and no T rounds spend more than T times as much; the noise grows less than that.
    assert one.spent(1) < one.spent(20) < 20 * one.spent(1)
    # By hand, for mu = 1: delta(epsilon) = Phi(1/2 - epsilon) - e^epsilon Phi(-1/2 - epsilon); at epsilon = 1 this is
    # 0.308538 - 2.718282 * 0.066807 = 0.126937.
    delta = 0.126937
    mu_is_one = PrivacyConfig(epsilon=math.sqrt(2 * math.log(1.25 / delta)), delta=delta)
    assert mu_is_one.noise == pytest.approx(mu_is_one.sensitivity)
    assert mu_is_one.spent(1) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("method", on_images(registry.METHODS))
def test_every_method_sends_weights_alone_or_is_refused(method: str) -> None:
    """By what it declares: nothing is listed by hand."""
    chosen = registry.get(method)
    able = not (chosen.strategy_class().contributes or chosen.numbers or chosen.client_class().heterogeneous)
    network = "model.name=cnn_bn" if chosen.needs.get("network") else ""
    given = {"method": method, "set": f"privacy.name=local-dp {network}"}
    if able:
        assert resolve(given).privacy.name == "local-dp"
    else:
        with pytest.raises(ConfigError, match=f"does not (fit '{method}'|go with)"):
            resolve(given)


def test_knowledge_that_a_node_contributes_all_the_same_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, run_inline: InlineRun
) -> None:
    monkeypatch.setattr(DomainClient, "finish_round", lambda self, server_round: {"prototypes": np.ones(3)})
    with pytest.raises(FederationError, match=r"privacy.name=local-dp: prototypes would travel without noise"):
        run_inline(rounds=1, set=PRIVATE)

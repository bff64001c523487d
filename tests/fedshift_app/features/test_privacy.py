"""The noise of local differential privacy: each node draws its own, in every engine and every process."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from flwr.supercore.differential_privacy import compute_clip_model_update
from refusals import refused
from support import InlineRun, on_images
from traffic import changing, numbers
from words import config as config_of

from fedshift.run.engine import inline
from fedshift.run.engine.workers import WorkersGrid
from fedshift.run.launch import runner
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import PrivacyConfig
from fedshift_app.features.privacy.node import noised
from fedshift_clients.base import DomainClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError, FedShiftError
from fedshift_core.wire.records import decode

NODES = 4
#: So much noise that the update itself is not seen in it.
NOISY = (
    "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 privacy.name=local-dp "
    "privacy.clipping_norm=0.01 privacy.epsilon=0.01"
)
Updates = list[np.ndarray[Any, Any]]


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> Updates:
    """Return what each node's reply changes of the weights that it was sent, as they come."""
    heard: Updates = []
    for grid in (inline.InlineGrid, WorkersGrid):
        send: Callable[..., Iterable[Message]] = grid.send_and_receive

        def listening(self: Any, messages: Iterable[Message], send: Any = send, **more: Any) -> list[Message]:
            requests = list(messages)
            replies = list(send(self, requests, **more))
            for request, reply in zip(requests, replies, strict=True):
                if request.metadata.message_type == MessageType.TRAIN:
                    sent, came = decode(request.content["arrays"]), decode(reply.content["arrays"])  # type: ignore[arg-type]
                    heard.append(np.concatenate([(came[name] - sent[name]).ravel() for name in sent]))
            return replies

        monkeypatch.setattr(grid, "send_and_receive", listening)
    return heard


def check_independent(heard: Updates, sigma: float) -> None:
    """Check that no two updates have noise in common, and that their mean is as much less noisy."""
    for one, other in combinations(heard, 2):
        assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.03
    assert np.mean(heard, axis=0).std() == pytest.approx(sigma / np.sqrt(len(heard)), rel=0.05)


@pytest.mark.parametrize("workers", [1, 2])
def test_no_two_nodes_share_noise_nor_two_runs_from_one_global_state(
    workers: int, updates: Updates, tmp_path: Path
) -> None:
    """A worker that takes the place of a dead one starts from the state that the dead one had."""
    for place in ("one", "other"):
        np.random.seed(0)
        flat = {"experiment": "handwritten", "rounds": 2, "set": NOISY, "output-dir": str(tmp_path / place)}
        runner.run_inline(flat, NODES, workers)
    assert len(updates) == 2 * 2 * NODES
    check_independent(updates, resolve(flat).privacy.noise)


# --- clipping ----------------------------------------------------------------------------------------


def arrays(seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in {"w": (7, 5), "b": (5,)}.items()}


@pytest.mark.parametrize("norm", [0.05, 1e6])
def test_an_update_is_clipped_as_flowers_mod_clips_it(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivacyConfig, "noise", 0.0)
    sent, trained = arrays(0), arrays(1)
    result = noised(PrivacyConfig(name="local-dp", clipping_norm=norm), sent, trained)
    flowers = [array.copy() for array in trained.values()]
    compute_clip_model_update(flowers, list(sent.values()), norm)
    for array, wanted in zip(result.values(), flowers, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-6)
        assert array.dtype == np.float32


def test_an_update_of_exactly_zero_is_noise_alone() -> None:
    privacy = PrivacyConfig(name="local-dp", epsilon=0.5)
    sent = {"w": np.zeros((100, 100), np.float32)}
    result = noised(privacy, sent, {"w": sent["w"].copy()})["w"]
    assert result.std() == pytest.approx(privacy.noise, rel=0.05)


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros(3, np.int64), "privacy.name=local-dp: w"),
        (np.zeros((), np.float32), "privacy.name=local-dp: w"),
        (np.array([0, np.inf], np.float32), "w holds"),
    ],
)
def test_what_noise_does_not_fit_does_not_leave(array: Any, named: str) -> None:
    with refused(FedShiftError, named):
        noised(PrivacyConfig(name="local-dp"), {"w": np.zeros_like(array)}, {"w": array})


# --- bounds of the section ---------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["epsilon", "clipping_norm"])
@pytest.mark.parametrize("value", ["1e308", "1.1e6", "1e-308"])
def test_numbers_that_give_no_finite_noise_are_refused(key: str, value: str) -> None:
    with refused(ConfigError, f"privacy.{key}"):
        resolve({"set": f"privacy.name=local-dp privacy.{key}={value}"})
    with refused(ConfigError, "privacy.delta"):
        resolve({"set": "privacy.delta=1e-308"})


@pytest.mark.parametrize("norm", [1e-6, 1e6])
@pytest.mark.parametrize("epsilon", [1e-6, 1e6])
@pytest.mark.parametrize("delta", [1e-30, 1 - 1e-12])
def test_within_the_bounds_all_numbers_are_finite(norm: float, epsilon: float, delta: float) -> None:
    privacy = PrivacyConfig(name="local-dp", clipping_norm=norm, epsilon=epsilon, delta=delta)
    assert 0 < privacy.noise < np.finfo(np.float32).max
    for rounds in (1, 10**6):
        assert np.isfinite(privacy.spent(rounds))
    assert privacy.spent(0) == 0  # a run that only scores
    assert np.isfinite(noised(privacy, arrays(0), arrays(1))["w"]).all()


# --- in runs ------------------------------------------------------------------------------------------------


SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"
PRIVATE = f"{SHORT} privacy.name=local-dp privacy.clipping_norm=0.5"


def spy(heard: list[Any]) -> Any:
    """Return a grid that notes the weights that each node was sent and those that it sent, copies, and its reply."""

    def note(message: Message, reply: Message) -> Message:
        heard.append((*(decode(of.content.array_records["arrays"]) for of in (message, reply)), reply))
        return reply

    return changing(note, "train")


def norm(before: Arrays, after: Arrays) -> float:
    return math.sqrt(sum(float(np.square(after[name].astype(np.float64) - before[name]).sum()) for name in before))


def test_with_next_to_no_noise_each_update_is_the_clipped_one(run_inline: InlineRun) -> None:
    plain, private = list[Any](), list[Any]()
    run_inline(f"nodes=2 rounds=1 {SHORT}", grid=spy(plain))
    run_inline(f"nodes=2 rounds=1 {PRIVATE} privacy.clipping_norm=0.005 privacy.epsilon=1e6", grid=spy(private))
    assert len(plain) == len(private) == 2
    for (start, free, _), (_, cut, _) in zip(plain, private, strict=True):
        long = norm(start, free)
        assert long > 0.01 and norm(start, cut) == pytest.approx(0.005, rel=1e-2)
        for name in start:
            wanted = start[name] + (free[name] - start[name]) * (0.005 / long)
            np.testing.assert_allclose(cut[name], wanted, atol=1e-6)
            assert cut[name].dtype == np.float32


def test_the_noise_has_the_deviation_that_is_reported_and_nothing_travels_next_to_it(
    run_inline: InlineRun, capsys: Any
) -> None:
    heard: list[Any] = []
    noise = PrivacyConfig(name="local-dp", clipping_norm=0.5, epsilon=2.0).noise
    run = run_inline(f"nodes=2 rounds=1 {PRIVATE} privacy.epsilon=2", grid=spy(heard))
    flat = [np.concatenate([(after[name] - start[name]).ravel() for name in start]) for start, after, _ in heard]
    for update in flat:  # the clipped part has norm 0.5 in all
        assert update.std() == pytest.approx(noise, rel=0.02)
    assert abs(np.corrcoef(flat[0], flat[1])[0, 1]) < 0.02
    weights = run.weights
    assert all(np.isfinite(array).all() for array in weights.values())
    for _, _, reply in heard:
        assert [*numbers(reply)] == ["num-examples"] and not reply.content.array_records["knowledge"]
    shown = capsys.readouterr().out
    assert run.rounds[0]["losses"] == {} and f"{noise:.3g}" in shown and "loss" not in shown


def test_a_model_that_noise_does_not_fit_stops_before_training(run_inline: InlineRun, tmp_path: Path) -> None:
    with refused(ConfigError, "num_batches_tracked", "int64"):
        run_inline("rounds=1 privacy.name=local-dp model.name=cnn_bn")
    assert not (tmp_path / "runs").exists()


def test_the_noise_is_that_of_the_formula() -> None:
    # sigma = 2 * 0.5 * sqrt(2 ln(1.25e5)) / 1 = sqrt(23.4720...) = 4.84481
    for norm, epsilon in ((0.5, 1), (5, 10)):
        assert PrivacyConfig(clipping_norm=norm, epsilon=epsilon).noise == pytest.approx(4.84481, rel=1e-5)


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
    with nullcontext() if able else pytest.raises(ConfigError, match=f"does not (fit '{method}'|go with)"):
        config_of(f"method={method} privacy.name=local-dp {'model.name=cnn_bn' * bool(chosen.needs.get('network'))}")


def test_knowledge_that_a_node_contributes_all_the_same_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, run_inline: InlineRun
) -> None:
    monkeypatch.setattr(DomainClient, "finish_round", lambda self, server_round: {"prototypes": np.ones(3)})
    with pytest.raises(FederationError, match="prototypes would travel"):
        run_inline(f"rounds=1 {PRIVATE}")

"""The noise of local differential privacy: each node draws its own, in every engine and every process."""

from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from flwr.supercore.differential_privacy import compute_clip_model_update
from refusals import refused

from fedshift.run.engine import inline
from fedshift.run.engine.workers import WorkersGrid
from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import PrivacyConfig
from fedshift_app.features.privacy.node import noised
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
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

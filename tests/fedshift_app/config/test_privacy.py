"""Local differential privacy: what a node sends is clipped and noised, and what would get around it is refused."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from refusals import refused
from support import InlineRun, on_images
from traffic import changing, numbers
from words import config as config_of

from fedshift_app.config import registry
from fedshift_app.config.sections import PrivacyConfig
from fedshift_clients.base import DomainClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.wire.records import decode

SHORT = "train.epochs=1 allocation.share=0.1"
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
    run_inline(f"rounds=1 {SHORT}", grid=spy(plain))
    run_inline(f"rounds=1 {PRIVATE} privacy.clipping_norm=0.005 privacy.epsilon=1e6", grid=spy(private))
    assert len(plain) == len(private) == 4
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
    run = run_inline(f"rounds=1 {PRIVATE} privacy.epsilon=2", grid=spy(heard))
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

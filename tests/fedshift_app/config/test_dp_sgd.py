"""``privacy.name=dp-sgd`` in runs: what is refused and why, what nodes send, what a run shows of epsilon."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import KillAt, resume, start
from refusals import refused
from support import InlineRun, phase, server_feature
from traffic import Pair, changing, lost, noting, numbers
from words import config as config_of

from fedshift_app.config import fits, needs, registry
from fedshift_app.config.sections import PrivacyConfig
from fedshift_app.features.privacy.server import Privacy
from fedshift_clients.base import DomainClient
from fedshift_clients.training.phases import Phase
from fedshift_core.dp_accounting import Spending, spending
from fedshift_core.errors import ConfigError, FederationError
from fedshift_core.limits import Refused
from fedshift_core.wire.names import EPSILON
from fedshift_strategies.features.base import Training
from fedshift_strategies.features.catalog import Around

for package in ("opacus", "dp_accounting"):
    pytest.importorskip(package, reason="fedshift[dp] is not installed")

DP = "privacy.name=dp-sgd"
SHORT = (
    "dataset.domains=[scan,sketch] allocation.share=0.05 train.epochs=1 train.batch_size=16 evaluate.figures=false "
    f"{DP} privacy.noise_multiplier=0.5"
)
HEAD = (
    "dataset.domains=[scan] model.freeze=encoder model.precompute=on images.crop_padding=0 train.epochs=1 "
    "allocation.share=0.1 evaluate.figures=false"
)
SMALL = f"train.epochs=1 allocation.share=0.05 dataset.domains=[scan] evaluate.figures=false {DP}"
STEPS, IMAGES = 2, 18  # of a node and a round of SHORT, in batches of 16


# --- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", registry.METHODS)
def test_each_method_goes_or_is_refused_with_its_reason(method: str) -> None:
    chosen = registry.get(method)
    typed = f"method={method} {SHORT} {'model.name=cnn_bn' * bool(chosen.needs.get('network'))}"
    if "dp-sgd" in fits.mechanisms(chosen):
        config = config_of(typed)
        assert config.privacy.of_images and config.train.precision == "float32"
        return
    with pytest.raises(ConfigError, match=f"does not (fit '{method}': |go with)") as raised:
        config_of(typed)
    message = str(raised.value)
    assert needs.why_not("single images", chosen) in message or "go with" in message


FITTING = "fedavg fedprox feddyn fedproto fedtgp fpl local"
#: Contrast of a batch's images, other parts of training, weights learned from images, gradients of all images.
UNFIT = "fedrcl i2pfl fedrep fedala ditto scaffold f2dc ga fedavg-ft fedpac"


def test_which_methods_fit() -> None:
    fitting = {name for name in registry.METHODS if "dp-sgd" in fits.mechanisms(registry.get(name))}
    assert {*FITTING.split()} <= fitting and not fitting & {*UNFIT.split()}


def test_a_network_that_mixes_images_stops_before_training(run_inline: InlineRun, tmp_path: Any) -> None:
    with refused(ConfigError, "BatchNorm", "model.bn=freeze", "model.bn=group"):
        run_inline(f"rounds=1 {SHORT} model.name=cnn_bn")
    assert not (tmp_path / "runs").exists()


# --- runs ------------------------------------------------------------------------------------------


def test_a_run_says_what_each_node_has_spent_and_lets_nothing_else_out(run_inline: InlineRun, capsys: Any) -> None:
    seen: list[Pair] = []
    run = run_inline(f"method=fedproto rounds=2 {SHORT}", grid=noting(seen, "train"))
    for _, reply in seen:
        assert sorted(numbers(reply)) == [EPSILON, "kept", "num-examples"]
        assert [*reply.content.array_records["knowledge"]] == ["prototypes", "counts"]
    spends = Spending(IMAGES, 16 / IMAGES, STEPS, 0.5, 0.5, 1e-5)
    for number, line in enumerate(run.rounds, 1):
        wanted = dict.fromkeys("0123", pytest.approx(spends.epsilon(number)))
        assert line["privacy"] == {"epsilon": wanted, "delta": 1e-5}
        assert line["losses"] == {} and line["nodes"] == [0, 1, 2, 3]
    assert run.results["privacy"]["largest"] == pytest.approx(spends.epsilon(2))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{IMAGES} images, sampling rate 0.889, {STEPS} steps a round, noise multiplier 0.5" in shown
    assert f"epsilon is {spends.epsilon(2):.3g} at delta 1e-05" in shown


def epsilon_of(rounds: int, **privacy: Any) -> float:
    """Return what a node of 18 images has spent after so many rounds of three."""
    given = PrivacyConfig(name="dp-sgd", **privacy)
    return spending(given, 18, 32, 1, 3, prototypes=False).epsilon(rounds)


def test_repeated_rounds_of_a_resumed_run_spend_again(tmp_path: Path, capsys: Any) -> None:
    (start(tmp_path, rounds=3, set=f"{SMALL} privacy.target_epsilon=8").folder / "results.json").unlink()
    capsys.readouterr()
    run = resume(tmp_path, round=2)
    one, two, four = (epsilon_of(rounds, target_epsilon=8.0) for rounds in (1, 2, 4))
    epsilons = [max(line["privacy"]["epsilon"].values()) for line in run.rounds]
    assert epsilons == pytest.approx([one, two, four])
    assert run.results["privacy"]["largest"] == pytest.approx(four) and four > 8
    assert f"epsilon is {four:.3g}" in capsys.readouterr().out
    assert run.config["resumed"][0]["repeats"] == 1
    with pytest.raises(ConfigError, match="is finished"):
        resume(tmp_path)


def test_a_round_that_was_under_way_is_counted_again(tmp_path: Path, kill_at: KillAt) -> None:
    with kill_at("metrics.jsonl:2", "before"):
        start(tmp_path, rounds=3, set=f"{SMALL} privacy.noise_multiplier=1")
    with kill_at("metrics.jsonl:2", "half"):
        resume(tmp_path)
    largest = resume(tmp_path).results["privacy"]["largest"]
    assert largest == pytest.approx(epsilon_of(5, noise_multiplier=1.0))


def test_a_node_whose_answer_is_not_used_may_have_spent(run_inline: InlineRun) -> None:
    run = run_inline(f"nodes=2 rounds=2 {SHORT} dataset.domains=[scan]", grid=changing(lost, "train", [1], [2]))
    assert run.rounds[1]["left_out"]
    spends = Spending(IMAGES, 16 / IMAGES, STEPS, 0.5, 0.0, 1e-5)
    assert run.results["privacy"]["epsilon"] == dict.fromkeys("01", pytest.approx(spends.epsilon(2)))


def test_no_other_run_repeats_the_noise(run_inline: InlineRun) -> None:
    """With features that are kept, of which a head alone trains; the target is met by the planned rounds."""
    given = f"{HEAD} {DP} privacy.target_epsilon=8"
    runs = [run_inline(f"nodes=2 rounds=2 {given}") for _ in range(2)]
    for run in runs:
        first, last = (max(line["privacy"]["epsilon"].values()) for line in run.rounds)
        assert first < 7.9 < last <= 8
    one, other = (run.weights for run in runs)
    trained = [name for name in one if name.startswith("classifier")]
    assert trained and not any(np.array_equal(one[name], other[name]) for name in trained)


@pytest.mark.parametrize(
    ("name", "returned", "match"),
    [("finish_round", {"secrets": np.ones(3)}, "secrets would travel"), ("phases", [Phase(3)], r"train\.epochs=1")],
)
def test_knowledge_without_noise_and_epochs_that_are_not_accounted_for_do_not_leave(
    name: str, returned: Any, match: str, monkeypatch: pytest.MonkeyPatch, run_inline: InlineRun
) -> None:
    monkeypatch.setattr(DomainClient, name, lambda self, server_round: returned)
    with pytest.raises(FederationError, match=match):
        run_inline(f"rounds=1 {SHORT}")


def test_a_reply_without_epsilon_is_refused() -> None:
    feature = server_feature(Privacy, privacy=PrivacyConfig(name="dp-sgd", noise_multiplier=1.0))
    around = Around([("privacy", feature.on_round(phase(Training)))])
    with refused(Refused, "epsilon", "privacy.name=dp-sgd"):
        around.check({})
    around.check({EPSILON: 1.0})

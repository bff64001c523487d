"""Fed3R and FedCGS in whole runs: one round beats chance, whoever holds what; resumed, from a file, held out."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from secure_sites import Sites, real_nodes
from support import InlineRun, Run, json_lines
from traffic import changing, lost

from fedshift import testing
from fedshift.run.launch import runner
from fedshift_app.node import state_folder
from fedshift_app.run.received_log import RECEIVED_FILE
from fedshift_clients.methods.feature_sums import FeatureSumsClient
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FederationError

FROZEN = "model.freeze=encoder"
RANDOM = f"{FROZEN} model.name=cnn3 model.projection=1024"  # random features of a random encoder
FEW = f"{FROZEN} allocation.share=0.15 dataset.domains=[scan,sketch] evaluate.figures=false evaluate.site_figures=false"
VALIDATED = "allocation.validation_fraction=0.3 method.ridge=validation"
METHODS = ("fed3r", "fedcgs")


def same(first: Arrays, second: Arrays) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", METHODS)
def test_one_round_beats_chance_in_every_domain(method: str, run_inline: InlineRun) -> None:
    ridge = "method.ridge=0.01" if method == "fed3r" else ""
    run = run_inline(f"method={method} rounds=1 {RANDOM} {ridge} allocation.share=1")
    testing.check_beats_chance(run.folder)
    assert run.rounds[0]["losses"] == {"loss": 0.0}


@pytest.mark.parametrize("method", METHODS)
def test_nodes_that_come_late_end_with_the_head_of_all_at_once(
    method: str, run_inline: InlineRun, shared_run: InlineRun
) -> None:
    whole = shared_run(f"method={method} rounds=1 {FEW}")
    late = run_inline(f"method={method} rounds=6 {FEW} federation.participation=0.5")
    assert {*late.rounds[0]["nodes"]} < {0, 1, 2, 3}
    assert same(late.kept("state"), whole.kept("state"))
    assert same(late.weights, whole.weights)
    up, sums = [line["bytes_up"] for line in late.rounds], 8 * (64 * 65 // 2 + 10 * 64)
    assert sum(up) - 4 * sums == 6 * (up[0] - 2 * sums)  # each of four nodes tells them once, in six rounds of two


def test_a_run_goes_on_with_the_same_bits(run_inline: InlineRun) -> None:
    """In the middle of nodes that come late, and of the grid."""
    more = f"{FEW} federation.participation=0.5 keep_rounds=[2] {VALIDATED}"
    run = run_inline(f"method=fed3r rounds=4 {more}")
    before, state, accuracy = run.results, run.kept("state"), [line["accuracy"] for line in run.rounds]
    (run.folder / "results.json").unlink()
    resumed = Run(runner.run_inline({"resume": str(run.folder), "round": 2}, 4))
    assert resumed.results["resumed_after"] == [2]
    assert resumed.results["weights_sha256"] == before["weights_sha256"]
    assert same(resumed.kept("state"), state)
    assert [line["accuracy"] for line in resumed.rounds] == accuracy


def test_the_grid_is_scored_on_validation_images(run_inline: InlineRun) -> None:
    run = run_inline(f"method=fed3r rounds=2 {FEW} {VALIDATED}")
    state = run.kept("state")
    right = state["right"]
    assert right.shape == (7,) and right.max() > right.min()
    best = 10.0 ** (np.flatnonzero(right == right.max())[-1] - 3)
    stated = f"{FEW} allocation.validation_fraction=0.3 method.ridge={best}"
    assert same(run.weights, run_inline(f"rounds=1 method=fed3r {stated}").weights)


def test_a_grid_without_a_second_round_is_refused_before_anything_starts(run_inline: InlineRun) -> None:
    with refused(ConfigError, "method.ridge=validation", "rounds=1"):
        run_inline(f"method=fed3r rounds=1 {FEW} {VALIDATED}")


def test_a_grid_without_validation_images_ends_the_run(run_inline: InlineRun) -> None:
    with pytest.raises(FederationError, match=r"allocation\.validation_fraction"):
        run_inline(f"method=fed3r rounds=2 {FEW} method.ridge=validation")


# --- secure sums ---------------------------------------------------------------------------------------

SUMS = "federation.secure_sums=on"


@pytest.mark.parametrize(("method", "rounds", "more"), [("fed3r", 1, ""), ("fedcgs", 1, ""), ("fed3r", 2, VALIDATED)])
def test_with_secure_sums_the_head_is_the_same_to_the_bit(
    method: str, rounds: int, more: str, shared_run: InlineRun, tmp_path: Path
) -> None:
    """In worker processes, too, where nodes keep something."""
    words = f"{FEW} {more}"
    plain = shared_run(f"method={method} rounds={rounds} {words}")
    secure = shared_run(f"method={method} rounds={rounds} {words} {SUMS}")
    runs = [secure]
    if rounds > 1:
        flat = {"experiment": "handwritten", "method": method, "rounds": rounds, "output-dir": str(tmp_path / "w")}
        runs += [Run(runner.run_inline(flat | {"set": f"{words} {SUMS}"}, 4, 2))]
    assert secure.rounds[0]["secure_sums"]["nodes"] == 4
    for run in runs:
        assert same(run.weights, plain.weights)
        state, expected = run.kept("state"), plain.kept("state")
        assert same(state | {"nodes": state["members"]}, expected | {"members": expected["nodes"]})


def test_secure_sums_over_other_nodes_in_each_round_are_refused(run_inline: InlineRun) -> None:
    words = f"{FEW} {SUMS} federation.participation=0.8"
    with refused(ConfigError, "federation.participation=0.8", "rounds=1"):
        run_inline(f"method=fed3r rounds=2 {words}")


def test_a_secure_sum_of_longer_features_than_its_range_ends_the_run(run_inline: InlineRun) -> None:
    """One node's lie is in the sum of all: without a range it could be of any length."""
    words = f"{FEW} {SUMS} federation.secure_sums_range=0.1"
    with pytest.raises(FederationError, match=r"cross comes to .*\(federation\.secure_sums_range"):
        run_inline(f"method=fed3r rounds=1 {words}")


def test_of_secure_sums_that_of_the_most_images_counts(run_inline: InlineRun, shared_run: InlineRun) -> None:
    words = f"{FEW} {SUMS}"
    whole = shared_run(f"method=fed3r rounds=1 {words}")
    part = run_inline(f"method=fed3r rounds=1 {words}", grid=changing(lost, "train", [0]))
    assert part.rounds[0]["nodes"] == [1, 2, 3]
    assert part.kept("state")["counts"].sum() < whole.kept("state")["counts"].sum()
    assert not same(part.weights, whole.weights)


def test_real_nodes_with_a_policy_of_masked_weights_take_part(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline)
    with (tmp_path / "policy.yaml").open("a") as policy:
        policy.write("weights: masked\nleast_images: 8\n")
    run = sites.run(1, method="fed3r", more=FROZEN)
    assert [line["left_out"] for line in run.rounds] == [[]]
    received = json_lines(run.folder / RECEIVED_FILE)
    trained = {line["name"] for line in received if line["message"] == "train" and line.get("kind") == "array"}
    assert trained == {"arrays/masked"}
    with pytest.raises(FederationError, match=r"federation\.secure_sums=off"):
        sites.run(1, method="fed3r", more=f"{FROZEN} federation.secure_sums=off")


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_too_few_hold_is_left_out_as_if_nobody_had_it(
    method: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the gram matrix, too."""
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, held={"north": ("bar", "cross")})
    words = f"{FROZEN} aggregation.weights=equal"
    run = sites.run(1, method=method, more=words)
    assert "secure sums: rows of disc are in no sum" in (run.folder / "log.jsonl").read_text()
    sums_of = FeatureSumsClient.sums_of
    monkeypatch.setattr(
        FeatureSumsClient, "sums_of", lambda self, chosen: sums_of(self, chosen & (self.train_set.y != 2))
    )
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "other"))
    nobody = sites.run(1, method=method, more=words)
    for stem in ("state", "weights"):
        for name, array in nobody.kept(stem).items():
            np.testing.assert_array_equal(run.kept(stem)[name], array, err_msg=name)
    assert run.kept("state")["counts"][2] == 0 and not run.weights["classifier.weight"][2].any()


# --- a head of each node's own ---------------------------------------------------------------------------

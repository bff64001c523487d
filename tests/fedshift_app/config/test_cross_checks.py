"""Keys of different sections that contradict each other: the message names them and what is allowed."""

import shlex

import pytest
from support import refusal_of

from fedshift_app.config.resolving import resolve
from fedshift_core.errors import ConfigError


def given(*keys: str) -> dict[str, str]:
    """Return dotted keys as those of a run of the embedded digits: scan, texture, street, sketch."""
    return {"set": shlex.join(keys)}


def refusal(*keys: str) -> str:
    """Return the message with which dotted keys are refused."""
    return refusal_of(ConfigError, resolve, given(*keys))


# --- allocation.share -------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["share_per=domain", "with_replacement=true", "last_takes_rest=true", "seed=0"])
def test_shares_by_domain_name_each_domain_that_has_nodes(more: str) -> None:
    more = more if more == "seed=0" else f"allocation.{more}"
    message = refusal("allocation.share={scan: 0.1}", "allocation.counts={scan: 1, texture: 1, sketch: 1}", more)
    for part in ("allocation.share", "found none for texture, sketch", "expected a number for each domain"):
        assert part in message
    assert "found none for texture, street, sketch" in refusal("allocation.share={scan: 0.1}")


def test_shares_by_domain_leave_out_domains_without_nodes() -> None:
    for nodes in ("allocation.counts={scan: 2, sketch: 0}", "allocation.held_out=[texture,street,sketch]"):
        assert resolve(given("allocation.share={scan: 0.1}", nodes)).allocation.share == {"scan": 0.1}


def test_a_finished_run_with_a_share_of_one_domain_alone_can_be_read() -> None:
    assert resolve(given("allocation.share={scan: 0.1}"), finished=True).allocation.share == {"scan": 0.1}


# --- evaluate.bn ------------------------------------------------------------------------------------------

BATCHNORM = "model.name=cnn_bn"


@pytest.mark.parametrize("nodes", ["counts={scan: 2, texture: 1}", "held_out=[street,sketch]"])
def test_own_statistics_are_no_first_score_where_a_domain_has_no_node(nodes: str) -> None:
    message = refusal(BATCHNORM, "evaluate.bn=[own,averaged]", f"allocation.{nodes}")
    assert "evaluate.bn=[own,averaged]" in message
    assert "no node has training images of street, sketch; put another first" in message
    resolve(given(BATCHNORM, "evaluate.bn=[averaged,own]", f"allocation.{nodes}"))
    resolve(
        given(BATCHNORM, "evaluate.bn=[own,averaged]", "allocation.counts={scan: 2, texture: 1, street: 1, sketch: 1}")
    )


@pytest.mark.parametrize(("first", "kept"), [("averaged", "retaken"), ("retaken", "averaged"), ("own", "averaged")])
def test_a_round_is_chosen_by_the_model_that_is_kept(first: str, kept: str) -> None:
    others = [BATCHNORM, f"model.bn_keep={kept}", "allocation.validation_fraction=0.2"]
    message = refusal(*others, f"evaluate.bn=[{first},{kept}]", "keep=best-validation")
    assert f"keep=best-validation goes by the first entry of evaluate.bn=[{first},{kept}]" in message
    assert f"model.bn_keep={kept}: put {kept} first" in message
    for free in ("keep=last", "evaluate.patience=2"):
        resolve(given(*others, f"evaluate.bn=[{first},{kept}]", free))
    resolve(given(*others, f"evaluate.bn=[{kept},{first}]", "keep=best-validation"))
    resolve(given(*others, f"evaluate.bn=[{first},{kept}]", "keep=best-validation"), finished=True)  # rescored

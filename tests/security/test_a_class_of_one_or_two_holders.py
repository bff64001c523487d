"""A prototype that one node alone has is in the server's sum as it is; of two, each has the other's."""

from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from secure_sites import FOUR, LAST_LOST, MakeSites
from support import listening

from fedshift_app.config import registry
from fedshift_app.features.secure_sums.server import SecureSums
from fedshift_core.errors import FederationError
from fedshift_core.secure.layout import BY_CLASS, UNDIVIDED, has_rows

#: bar is held by all, cross by two, disc by one.
HELD = {"north": ("bar",), "south": ("bar",), "west": ("bar", "cross")}
SETTINGS: Any = {
    "fedpac": {"combine_heads": False}, "i2pfl": {"inter_proto": "average"}, "fedproto": {"share_weights": True},
    "fedsa": {"share_weights": True}, "fedseproto": {"schedule": "joint"},
}  # fmt: skip
EQUAL = "aggregation.weights=equal"
SHARED = f"{EQUAL} method.share_weights=true"


def by_class() -> list[str]:
    """Return the methods that fit secure sums and send rows of single classes."""
    found = []
    for method in registry.listed():
        strategy = method.strategy_class()
        known = method.params_class().model_fields
        given = {key: value for key, value in method.defaults.items() if key in known}
        params = method.checked_params(given | SETTINGS.get(method.name, {}))
        if not strategy.needs_single(params) and not method.numbers:
            sums = strategy.sums(params)
            rows = {sums[name] for name in strategy.contributes if name in sums} & {*BY_CLASS}
            if rows and not rows & {*UNDIVIDED}:  # those go on as if nobody had the class; of others see below
                found.append(method.name)
    return found


METHODS = by_class()


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[] if name in ("fedproto", "fedproc") else [pytest.mark.long]) for name in METHODS],
)
def test_rows_of_a_class_that_too_few_hold_are_in_no_sum(
    method: str, sites: MakeSites, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert {"fedmlp", "fedpac", "fedproc", "fedproto", "fedsa", "fedseproto", "i2pfl"} <= {*METHODS}
    caplog.set_level("INFO", "fedshift")
    seen: Any = []
    update = SecureSums._update

    def spy(self: SecureSums, sums: Any, arrived: Any, *more: Any) -> Any:
        counts = np.array([node.class_counts for node in arrived])
        assert has_rows(self._sums) and ((counts > 0).sum(axis=0) == [4, 2, 1]).all()  # bar, cross, disc
        made = update(self, sums, arrived, *more)
        seen.append(made.knowledge)
        return made

    monkeypatch.setattr(SecureSums, "_update", spy)
    words = [f"method.{key}={value}" for key, value in SETTINGS.get(method, {}).items()]
    sites(FOUR, HELD).run(2, method=method, more=" ".join([EQUAL, *words]))
    assert len(seen) == 2
    for name, array in [item for arrays in seen for item in arrays.items()]:
        if registry.get(method).strategy_class().contributes[name][:1] == ("C",):
            assert array[0].any() and not array[1:].any(), name
    assert "rows of cross, disc are in no sum" in caplog.text


def test_a_run_in_which_no_class_may_be_summed_is_refused_before_training(sites: MakeSites) -> None:
    three = sites(held={"north": ("bar",), "south": ("cross",), "west": ("disc",)})
    kinds: Any = []
    with pytest.raises(FederationError, match="each class is held by fewer than 3 nodes of the round"):
        three.run(1, base=listening(before=lambda message: kinds.append(message.metadata.message_type)), more=SHARED)
    assert MessageType.TRAIN not in kinds
    assert three.run(1, method="fedavg", more=EQUAL).rounds[0]["secure_sums"]["nodes"] == 3


def test_a_lost_node_that_leaves_a_class_with_two_holders_ends_the_round(sites: MakeSites) -> None:
    """The nodes that arrived help with no share."""
    four = sites(FOUR, {"north": ("bar",)}, sums="nodes: 3, least: 2")
    with pytest.raises(FederationError, match=r"(?s)0 nodes gave a right share.*class 1 of the sum is held by 2 nodes"):
        four.run(1, base=LAST_LOST, more=f"{SHARED} federation.secure_sums_least=2")

"""A prototype that one node alone has is in the server's sum as it is; of two, each has the other's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MessageType
from own_sites import CLASSES
from secure_sites import FOUR, Sites, real_nodes
from support import InlineRun, ListeningGrid

from fedshift_app.config import registry
from fedshift_app.features.secure_sums.server import SecureSums
from fedshift_core.errors import FederationError
from fedshift_core.secure.layout import BY_CLASS, UNDIVIDED, has_rows
from fedshift_core.wire import names

#: bar is held by all, cross by two, disc by one.
HELD = {"north": ("bar",), "south": ("bar",), "west": ("bar", "cross")}
SETTINGS = {
    "fedpac": "method.combine_heads=false", "i2pfl": "method.inter_proto=average",
    "fedproto": "method.share_weights=true", "fedsa": "method.share_weights=true",
    "fedseproto": "method.schedule=joint",
}  # fmt: skip
EQUAL = "aggregation.weights=equal"


def by_class() -> list[str]:
    """Return the methods that fit secure sums and send rows of single classes."""
    found = []
    for method in registry.listed():
        strategy = method.strategy_class()
        given = {key: value for key, value in method.defaults.items() if key in method.params_class().model_fields}
        words = dict(word.removeprefix("method.").split("=") for word in SETTINGS.get(method.name, "").split())
        switches = {key: value == "true" if value in ("true", "false") else value for key, value in words.items()}
        params = method.checked_params(given | switches)
        if not strategy.needs_single(params) and not method.numbers:
            sums = strategy.sums(params)
            rows = {sums[name] for name in strategy.contributes if name in sums} & {*BY_CLASS}
            if rows and not rows & {*UNDIVIDED}:  # those go on as if nobody had the class; of others see below
                found.append(method.name)
    return found


METHODS = by_class()


def test_all_methods_with_rows_by_class_are_tried() -> None:
    assert {"fedmlp", "fedpac", "fedproc", "fedproto", "fedsa", "fedseproto", "i2pfl"} <= {*METHODS}


@pytest.mark.parametrize(
    "method",
    [pytest.param(name, marks=[] if name in ("fedproto", "fedproc") else [pytest.mark.long]) for name in METHODS],
)
def test_rows_of_a_class_that_too_few_hold_are_in_no_sum(
    method: str, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level("INFO", "fedshift")
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, FOUR, HELD)
    seen: list[dict[str, Any]] = []
    update = SecureSums._update

    def spy(self: SecureSums, sums: Any, arrived: Any, *more: Any) -> Any:
        assert has_rows(self._sums)
        counts = np.array([node.class_counts for node in arrived])
        assert ((counts > 0).sum(axis=0) == [4, 2, 1]).all()  # bar, cross, disc
        made = update(self, sums, arrived, *more)
        seen.append(made.knowledge)
        return made

    monkeypatch.setattr(SecureSums, "_update", spy)
    run = sites.run(2, method=method, more=f"{EQUAL} {SETTINGS.get(method, '')}")
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2, 3]] * 2 and len(seen) == 2
    for arrays in seen:
        for name, array in arrays.items():
            if registry.get(method).strategy_class().contributes[name][:1] == ("C",):
                assert not array[1:].any(), (name, CLASSES[1:])
                assert array[0].any()
    assert "rows of cross, disc are in no sum: fewer than 3 nodes of the round hold them" in caplog.text


def test_a_run_in_which_no_class_may_be_summed_is_refused_before_training(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, held={"north": ("bar",), "south": ("cross",), "west": ("disc",)})
    trained: list[int] = []

    class Grid(ListeningGrid):
        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            requests = list(messages)
            trained.extend(1 for message in requests if message.metadata.message_type == MessageType.TRAIN)
            return super().send_and_receive(requests, timeout=timeout)

    with pytest.raises(FederationError) as caught:
        sites.run(1, base=Grid, more=f"{EQUAL} method.share_weights=true")
    assert "each class is held by fewer than 3 nodes of the round" in str(caught.value) and not trained
    assert sites.run(1, method="fedavg", more=EQUAL).rounds[0]["secure_sums"]["nodes"] == 3


def test_a_lost_node_that_leaves_a_class_with_two_holders_ends_the_round(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The nodes that arrived help with no share."""
    real_nodes(monkeypatch, tmp_path)
    sites = Sites(tmp_path, run_inline, FOUR, {"north": ("bar",)}, sums="nodes: 3, least: 2")

    class Loses(ListeningGrid):
        def pass_on(self, message: Any, reply: Any) -> Any:
            config = message.content.config_records["config"]
            trains = message.metadata.message_type == MessageType.TRAIN
            return None if trains and config[names.NODE_INDEX] == 3 else reply

    with pytest.raises(FederationError) as caught:
        sites.run(1, base=Loses, more=f"{EQUAL} method.share_weights=true federation.secure_sums_least=2")
    text = str(caught.value)
    assert "class 1 of the sum is held by 2 nodes of those that arrived, 3 must hide each other" in text
    assert "node 3 (east)" in text and "0 nodes gave a right share" in text

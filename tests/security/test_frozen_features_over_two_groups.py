"""A server has features of one frozen encoder summed over four nodes, then over three, under another seed or head.

No weight that it sends is the same again: a node must know its own sums.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from secure_sites import FOUR, LAST_LOST, MakeSites
from support import InlineRun
from traffic import changing, lost

from fedshift_clients.models import cnn
from fedshift_core.errors import FederationError

SHORT = "dataset.domains=[scan,sketch] model.freeze=encoder allocation.share=0.15 evaluate.figures=false"
ALIKE = "aggregation.weights=equal allocation.validation_fraction=0 model.freeze=encoder"
REFUSED = "refused: the same sums of this node's images were summed over other nodes before"
#: Each contributes features of the encoder, or sums of them.
METHODS = {
    "fed3r": "", "fedcgs": "", "fedproto": "method.share_weights=true", "fedthe": "",
}  # fmt: skip
SELDOM = ("fedcgs", "fedthe")  # their sums are made as fed3r's


@pytest.fixture
def frozen(tmp_path: Path) -> str:
    """Return the keys of an encoder that is the same under each seed."""
    file = tmp_path / "encoder.safetensors"
    save_file({f"encoder.{name}": array.numpy() for name, array in cnn.cnn(3, 32).encoder.state_dict().items()}, file)
    return f"{ALIKE} model.weights={file}"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fed3r", "fedcgs"),
        *(pytest.param(name, name, marks=[pytest.mark.long] * (name in SELDOM)) for name in METHODS),
    ],
)
def test_a_second_run_of_other_nodes_is_refused_under_each_seed(
    first: str, second: str, sites: MakeSites, frozen: str
) -> None:
    four = sites(FOUR)
    four.run(1, method=first, more=f"{frozen} {METHODS[first]}")
    with pytest.raises(FederationError, match=f"(?s)^round 1: .*{REFUSED}"):
        four.run(1, method=second, more=f"{frozen} {METHODS[second]}", sites=FOUR[1:], seed=1)
    again = four.run(1, method=second, more=f"{frozen} {METHODS[second]}", seed=1)  # all nodes of then
    assert again.rounds[0]["nodes"] == [0, 1, 2, 3]


def test_the_difference_is_what_a_node_alone_has(run_inline: InlineRun) -> None:
    """Of two simulated runs, whose nodes remember nothing of each other."""
    alone = run_inline(f"method=fed3r rounds=1 {SHORT}").folder / "nodes" / "00003.safetensors"
    words = f"{SHORT} federation.secure_sums=on"
    whole = run_inline(f"rounds=1 method=fed3r {words}").kept("state")
    part = run_inline(f"rounds=1 method=fed3r {words}", grid=LAST_LOST).kept("state")
    for name, array in load_file(alone).items():
        assert array.any() and np.array_equal(whole[name] - part[name], array)


def test_a_round_of_one_node_less_is_refused(run_inline: InlineRun) -> None:
    """The head is another one in round 2, and with it the weights that are sent."""
    words = f"{SHORT} federation.secure_sums=on"
    whole = run_inline(f"method=fed3r rounds=2 {words}")
    assert [line["nodes"] for line in whole.rounds] == [[0, 1, 2, 3]] * 2
    with pytest.raises(FederationError, match=f"(?s)^round 2: .*{REFUSED}"):
        run_inline(f"method=fed3r rounds=2 {words}", grid=changing(lost, "train", [3], [2]))


def test_statistics_of_a_layer_that_no_weight_has_moved_are_refused(run_inline: InlineRun) -> None:
    """All before the first BatchNorm does not move, its own running statistics and scores do."""
    words = (
        "model.name=cnn_bn train.epochs=1 train.lr=1e-30 train.weight_decay=0 allocation.share=0.15 "
        "evaluate.figures=false evaluate.bn=[averaged,retaken] evaluate.bn_images=40 federation.secure_sums=on "
        "aggregation.weights=equal dataset.domains=[scan,sketch]"
    )
    with pytest.raises(FederationError, match=f"(?s)^round 2: .*{REFUSED}"):
        run_inline(f"method=fedavg rounds=2 {words}", grid=changing(lost, "evaluate", [3], [2]))

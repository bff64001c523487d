"""Settings of single methods: limits of gradients, forms of I2PFL, what feature maps are sent."""

import math
from typing import Any

import pytest
from flwr.app import Message, MessageType
from support import InlineRun, ListeningGrid

from fedshift_app.config.resolving import resolve

# --- What the authors' own files cut gradients at is part of their method, and what FDSE needs to train a ---


@pytest.mark.parametrize(("method", "norm"), [("fdse", 10.0), ("feddyn", 10.0), ("fedrcl", 10.0), ("fedgh", 50.0)])
def test_gradients_are_cut_where_the_authors_cut_them(method: str, norm: float) -> None:
    assert resolve({"experiment": "handwritten", "method": method}).train.clip == norm
    assert resolve({"experiment": "handwritten", "method": method, "set": "train.clip=null"}).train.clip is None
    assert resolve({"experiment": "handwritten", "method": "fedavg"}).train.clip is None


def test_fdse_trains_with_its_own_defaults_and_one_local_epoch(run_inline: InlineRun) -> None:
    """Statistics of so few steps make its term thousands large in round 2: uncut, both nodes diverge."""
    run = run_inline(
        method="fdse", nodes=2, rounds=2, seed=1,
        set="train.epochs=1 allocation.share=0.3 allocation.held_out=[street,sketch]",
    )  # fmt: skip
    assert [line["nodes"] for line in run.rounds] == [[0, 1], [0, 1]]
    assert all(math.isfinite(value) for line in run.rounds for value in line["losses"].values())
    assert run.rounds[-1]["left_out"] == []


# --- I2PFL's recovered form of Eq. 9 does not train with the paper's lambda1; its class set alone does ---


CLASS_SET = "method.augproto_scope=class_set"
RECOVERED = f"{CLASS_SET} method.apa_level=class_mean method.apa_reduction=class_sum"

pytestmark = pytest.mark.long


def test_the_recovered_form_diverges_in_the_first_round(run_inline: InlineRun) -> None:
    run = run_inline(method="i2pfl", nodes=4, rounds=2, set=f"train.precision=float32 {RECOVERED}")
    assert run.rounds[0]["left_out"]
    assert all("not finite" in line or "allowed are numbers" in line for line in run.rounds[0]["left_out"])
    for line in run.rounds:
        assert set(line["accuracy"].values()) == {10.0}  # of ten classes, each as often in a test set


def test_the_class_set_alone_learns(run_inline: InlineRun) -> None:
    run = run_inline(method="i2pfl", nodes=4, rounds=4, set=f"train.precision=float32 {CLASS_SET}")
    assert all("left_out" not in line or not line["left_out"] for line in run.rounds)
    assert sum(run.rounds[-1]["accuracy"].values()) / 4 > 40


# --- FedPall in whole runs: what travels in bytes. Engines: test_engines.py; kills: run/test_resume.py ---


NODES, C, D, H = 2, 10, 64, 16
HEADER = 128  # of each array, as it travels
SHORT = f"train.epochs=1 allocation.share=0.08 train.batch_size=16 method.hidden={H}"


def test_what_travels_in_bytes(run_inline: InlineRun) -> None:
    """Up: prototypes, counts, a feature and a label of each image. Down: classifier, amplifier; then prototypes."""
    images: list[int] = []

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            if message.metadata.message_type == MessageType.TRAIN:
                number: Any = reply.content.metric_records["metrics"]["num-examples"]
                images.append(int(number))
            return reply

    run = run_inline(nodes=NODES, method="fedpall", rounds=2, set=SHORT, grid=Grid)
    per_round = sum(images) // 2
    up = NODES * (4 * C * D + 8 * C + 4 * HEADER) + per_round * (4 * D + 8)
    networks = [4 * C * D, 4 * C, 4 * H * D, 4 * H * H, 4 * NODES * H, *[4 * H] * 4]
    down = NODES * sum(size + HEADER for size in networks)
    prototypes = NODES * (4 * C * D + 8 * C + 2 * HEADER)
    assert [line["bytes_up"] for line in run.rounds] == [up, up]
    assert [line["bytes_down"] for line in run.rounds] == [down, down + prototypes]

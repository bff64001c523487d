"""FedPall in whole runs: what travels in bytes. Engines: test_engines.py; kills: run/test_resume.py."""

from typing import Any

from flwr.app import Message, MessageType
from support import InlineRun, ListeningGrid

NODES, C, D, H = 2, 10, 64, 16
HEADER = 128  # of each array, as it travels
SHORT = f"train.epochs=1 allocation.share=0.08 train.batch_size=16 method.hidden={H}"


def test_what_travels_in_bytes(run_inline: InlineRun) -> None:
    """Up: prototypes, counts, a feature and a label of each image. Down: classifier, amplifier; then prototypes."""
    images: list[int] = []

    class Grid(ListeningGrid):
        def pass_on(self, asked: Message, reply: Message) -> Message:
            if asked.metadata.message_type == MessageType.TRAIN:
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

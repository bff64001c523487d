"""FedPLVM, FedRCL, FedMLP and FedDAP in whole runs: what travels in bytes, kills. Engines: test_engines.py."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message, MessageType
from killing import KillAt, outcome, resume, start
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid

SHORT = "train.epochs=1 allocation.share=0.2 train.batch_size=16"
NODES, C, D = 2, 10, 64
HEADER = 128  # of each array, as it travels


def test_what_travels_next_to_the_weights_in_bytes(run_inline: InlineRun) -> None:
    """Of FedPLVM each node's own number of prototypes, and the clusters of them; of others one of a class."""
    numbers: list[int] = []

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            if message.metadata.message_type == MessageType.TRAIN:
                numbers.append(len(reply.content.array_records["knowledge"]["labels"].numpy()))
            return reply

    runs = {m: run_inline(nodes=NODES, method=m, rounds=2, set=SHORT) for m in ("fedavg", "fedrcl", "fedmlp", "feddap")}
    message = f"{SHORT} method.lambda_proto=1"
    runs["fedplvm"] = run_inline(nodes=NODES, method="fedplvm", rounds=2, set=message, grid=Grid)
    clusters = load_file(runs["fedplvm"].folder / "checkpoint" / "knowledge-00001.safetensors")
    per_class = np.bincount(clusters["labels"], minlength=C)
    assert len(set(numbers)) > 1 and min(numbers) > C < len(clusters["labels"]) < sum(numbers[:NODES])
    assert len(set(per_class.tolist())) > 1 and per_class.min() >= 1
    one_each = [NODES * (4 * C * D + 8 * C + 2 * HEADER)] * 2
    extra = {
        "feddap": (one_each, NODES * (NODES * C * (4 * D + 8 + 8) + 3 * HEADER)),  # each node has a domain of its own
        "fedrcl": ([0] * 2, 0),
        "fedmlp": (one_each, one_each[0]),
        "fedplvm": (
            [sum(4 * p * D + 8 * p + 8 * p + 3 * HEADER for p in round_) for round_ in (numbers[:2], numbers[2:])],
            NODES * (len(clusters["labels"]) * (4 * D + 8) + 2 * HEADER),
        ),
    }
    for method, (up, down) in extra.items():
        lines = zip(runs[method].rounds, runs["fedavg"].rounds, strict=True)
        more = [
            (line["bytes_up"] - plain["bytes_up"], line["bytes_down"] - plain["bytes_down"]) for line, plain in lines
        ]
        assert more == [(up[0], 0), (up[1], down)], method


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedplvm", "fedrcl", "fedmlp", "feddap"])
def test_killed_and_resumed_the_numbers_are_the_same(method: str, tmp_path: Path, kill_at: KillAt) -> None:
    settings = f"{SHORT} allocation.share=0.08 federation.participation=0.75"
    whole = start(tmp_path / "whole", method=method, set=settings)
    with kill_at("weights-00002", "half"):
        start(tmp_path / "runs", method=method, set=settings)
    with kill_at("metrics.jsonl:3", "half"):
        resume(tmp_path / "runs")
    assert outcome(resume(tmp_path / "runs")) == outcome(whole)

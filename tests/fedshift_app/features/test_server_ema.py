"""A moving average of the merged weights: against loops, in a run and a resumed one, and what it does not fit."""

import numpy as np
import pytest
from flwr.app import Message, MessageType
from refusals import refused
from safetensors.numpy import load_file
from support import InlineRun, ListeningGrid, Run

from fedshift_app.config.resolving import resolve
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.wire.records import decode

SHORT = "train.epochs=1 allocation.share=0.05 train.precision=float32 model.name=cnn_bn"
ALL = f"nodes=2 dataset.domains=[scan,sketch] {SHORT} keep_rounds=[1,2,3]"
D = 0.75


def slow(rounds: list[Arrays], decay: float) -> Arrays:
    """Return the average after these rounds, of each weight in float64."""
    average = dict(rounds[0])
    for weights in rounds[1:]:
        for name, array in weights.items():
            mixed = decay * average[name].astype(np.float64) + (1 - decay) * array
            average[name] = (mixed if array.dtype.kind == "f" else array).astype(array.dtype)
    return average


def arrays_of(run: Run, kind: str, number: int) -> Arrays:
    return load_file(run.folder / "checkpoint" / f"{kind}-{number:05d}.safetensors")


def test_a_run_trains_on_the_weights_and_scores_and_keeps_the_average(run_inline: InlineRun) -> None:
    scored: list[Arrays] = []

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            if message.metadata.message_type == MessageType.EVALUATE:
                scored.append(decode(message.content.array_records["arrays"]))
            return reply

    plain = run_inline(f"rounds=3 {ALL}")
    run = run_inline(f"rounds=3 {ALL} server.ema={D}", grid=Grid)
    assert [line["losses"] for line in run.rounds] == [line["losses"] for line in plain.rounds]
    trained = [arrays_of(plain, "weights", number) for number in (1, 2, 3)]
    per_round = len(scored) // 3
    for number in (1, 2, 3):
        for name, array in arrays_of(run, "averaged", number).items():  # with which training went on
            assert np.array_equal(array, trained[number - 1][name])
        kept, wanted = arrays_of(run, "weights", number), slow(trained[:number], D)
        for name, array in scored[(number - 1) * per_round].items():
            np.testing.assert_allclose(kept[name], wanted[name], rtol=1e-5, atol=1e-6)
            assert np.array_equal(kept[name], array) and array.dtype == wanted[name].dtype
    assert any(not np.array_equal(array, trained[2][name]) for name, array in kept.items())


@pytest.mark.parametrize(
    ("method", "value"),
    [("feddyn", 0.5), ("fedheal", 0.5), ("fedproto", 0.5), ("local", 0.5), ("fedavg", 1)],
)
def test_what_leaves_no_averaged_global_model_is_refused(method: str, value: float) -> None:
    with refused(ConfigError, "server.ema", value, *(() if value == 1 else (method, "fedavg"))):
        resolve({"method": method, "set": f"server.ema={value}"})

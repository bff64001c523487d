"""The arithmetic that trains fastest: chosen by an injected clock, in bounded time, without a trace in a run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedshift_clients.training import autotune, precision
from fedshift_clients.training.autotune import Work
from fedshift_clients.training.settings import TrainConfig
from fedshift_core.params import ARITHMETICS, Arithmetic

CPU = torch.device("cpu")
LAST, NCHW, BF16, BF16_NCHW = ARITHMETICS


class Machine:
    """A clock and steps that take so many seconds for an image."""

    def __init__(self, seconds: dict[Arithmetic, float]) -> None:
        self.seconds, self.now, self.done = seconds, 0.0, 0

    def step(self, name: Arithmetic, images: int) -> Callable[[], None]:
        def run() -> None:
            self.done += 1
            self.now += self.seconds[name] * images

        return run


def chosen(machine: Machine) -> autotune.Found:
    return autotune.choose(machine.step, 64, list(machine.seconds), lambda: machine.now)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({LAST: 0.001, NCHW: 0.0005}, NCHW),
        ({LAST: 0.001, NCHW: 0.00095}, LAST),  # faster, but not clearly
        ({BF16: 0.00141, LAST: 0.001, NCHW: 0.00106, BF16_NCHW: 0.002}, LAST),  # AVX512-BF16 without AMX, as measured
        ({BF16: 0.001, LAST: 0.0032, NCHW: 0.004, BF16_NCHW: 0.002}, BF16),  # AMX
    ],
)
def test_the_faster_is_chosen_where_it_is_clearly_faster(seconds: dict[Arithmetic, float], expected: str) -> None:
    result = chosen(Machine(seconds))
    assert result.choice == expected
    assert result.milliseconds == pytest.approx({name: 1000 * one * result.images for name, one in seconds.items()})


@pytest.mark.parametrize("second", [1e-6, 1e-3, 0.1, 10.0])
def test_the_time_is_bounded_whatever_the_network(second: float) -> None:
    machine = Machine({LAST: second, NCHW: second / 3})
    result = chosen(machine)
    if second >= 0.2:  # two steps of four images alone take longer than there is time
        assert (result.choice, result.milliseconds, machine.done) == (LAST, {}, 2)
    else:
        assert result.choice == NCHW and machine.now <= 2.0 and autotune.SMALLEST <= result.images <= 64
    assert result.images == 64 or second > 1e-4


@pytest.mark.parametrize(("bf16", "first", "number"), [(False, LAST, 2), (True, BF16, 4)])
def test_emulated_bfloat16_is_not_even_measured(
    bf16: bool, first: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: bf16)
    result = autotune.candidates(CPU)
    assert (result[0], len(set(result))) == (first, number)
    assert bf16 or not any(name.startswith("bf16") for name in result)


def test_a_real_measurement_leaves_threads_and_random_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "SECONDS", 0.2)
    monkeypatch.setattr(precision, "has_bf16", lambda device: True)  # all four are measured
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    result = autotune.measure(Work("cnn_bn", 2, "none", 32, 6), CPU)
    assert result.choice in ARITHMETICS and result.images <= 6
    assert not result.milliseconds or result.milliseconds.keys() == set(ARITHMETICS)
    assert torch.get_num_threads() == threads and torch.equal(torch.get_rng_state(), state)


def train(**given: Any) -> TrainConfig:
    return TrainConfig(epochs=1, batch_size=2, lr=0.1, **given)


@pytest.mark.parametrize("name", ["float32", "bf16"])
def test_a_precision_by_name_means_channels_last_whatever_the_machine(name: str) -> None:
    assert precision.arithmetic(train(precision=name), CPU) == f"{name}/channels_last"
    with pytest.raises(ValueError, match="arithmetic=float32/nchw"):
        train(precision=name, arithmetic=NCHW)


@pytest.mark.parametrize(("bf16", "expected"), [(True, BF16), (False, LAST)])
def test_auto_follows_what_the_run_says_and_else_the_hardware(
    bf16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda device: bf16)
    found = {name: precision.arithmetic(train(arithmetic=name), CPU) for name in ("", "hardware", *ARITHMETICS)}
    assert found == {"": expected, "hardware": expected} | {name: name for name in ARITHMETICS}

"""The arithmetic that trains fastest: chosen by an injected clock, in bounded time, without a trace in a run."""

from collections.abc import Callable

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

    def __init__(self, seconds: dict[Arithmetic, float], most: int = 64) -> None:
        self.seconds, self.most, self.now = seconds, most, 0.0
        self.done: list[tuple[Arithmetic, int]] = []

    def step(self, name: Arithmetic, images: int) -> Callable[[], None]:
        def run() -> None:
            self.done.append((name, images))
            self.now += self.seconds[name] * images

        return run

    def clock(self) -> float:
        return self.now


def chosen(machine: Machine, *names: Arithmetic) -> autotune.Found:
    return autotune.choose(machine, names, machine.clock)


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
    result = chosen(Machine(seconds), *seconds)
    assert result.choice == expected
    assert result.milliseconds == pytest.approx({name: 1000 * one * result.images for name, one in seconds.items()})


@pytest.mark.parametrize("second", [1e-6, 1e-3, 0.1, 10.0])
def test_the_time_is_bounded_whatever_the_network(second: float) -> None:
    machine = Machine({LAST: second, NCHW: second / 3})
    result = chosen(machine, LAST, NCHW)
    if second >= 0.2:  # two steps of four images alone take longer than there is time
        assert (result.choice, result.milliseconds) == (LAST, {})
        assert len(machine.done) == 2
    else:
        assert result.choice == NCHW
        assert machine.now <= 2.0
        assert autotune.SMALLEST <= result.images <= 64
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
    assert result.choice in ARITHMETICS
    assert result.images <= 6
    assert not result.milliseconds or result.milliseconds.keys() == set(ARITHMETICS)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("precision_", ["float32", "bf16"])
def test_a_precision_by_name_means_channels_last_whatever_the_machine(precision_: str) -> None:
    train = TrainConfig(epochs=1, batch_size=2, lr=0.1, precision=precision_)
    assert precision.arithmetic(train, CPU) == f"{precision_}/channels_last"
    with pytest.raises(ValueError, match="arithmetic=float32/nchw"):
        TrainConfig(epochs=1, batch_size=2, lr=0.1, precision=precision_, arithmetic=NCHW)


def test_auto_follows_what_the_run_says_and_else_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    for bf16, expected in ((True, BF16), (False, LAST)):
        monkeypatch.setattr(precision, "has_bf16", lambda device, bf16=bf16: bf16)
        for result in ("", "hardware"):
            assert precision.arithmetic(TrainConfig(epochs=1, batch_size=2, lr=0.1, arithmetic=result), CPU) == expected
        for name in ARITHMETICS:
            assert precision.arithmetic(TrainConfig(epochs=1, batch_size=2, lr=0.1, arithmetic=name), CPU) == name

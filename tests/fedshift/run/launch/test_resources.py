"""The resources of a client in simulation are refused before anything starts where Ray could give none."""

import pytest
from support import refusal_of

from fedshift.run.launch import runner
from fedshift_app.config import resolving
from fedshift_core.errors import ConfigError


@pytest.fixture
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.usefixtures("_two_cores")
def test_a_client_that_fits_no_machine_is_refused() -> None:
    config = resolving.resolve({"experiment": "handwritten"})
    text = refusal_of(ConfigError, runner.resources, config, 4, 3, None, None)
    assert text == "cpus-per-client: expected at most 2, the cores of this machine, found 3"
    text = refusal_of(ConfigError, runner.resources, config, 4, None, 0.5, None)
    assert text == "gpus-per-client: PyTorch can use no GPU of this machine, found 0.5; leave it out"


@pytest.mark.usefixtures("_two_cores")
def test_threads_take_no_more_cores_than_there_are_and_actors_are_told_to_ray() -> None:
    config = resolving.resolve({"experiment": "handwritten", "set": "train.threads=8"})
    assert runner.resources(config, 4, None, None, None) == runner.Resources(2, 0.0)
    assert runner.resources(config, 4, None, 0.0, 1) == runner.Resources(8, 0.0, 1)
    assert "init-args-num-cpus=6" in runner.resources(config, 4, 3, None, 2).federation_config(4)

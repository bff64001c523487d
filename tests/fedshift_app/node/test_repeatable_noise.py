"""Noise that a server could take off again is for simulations alone."""

from pathlib import Path

import pytest
from support import InlineRun, refusal_of

from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.run import build as run_build
from fedshift_core.errors import ConfigError
from fedshift_core.params import NoiseParams

SWITCH = "method.repeatable_noise=true"
#: Methods that draw noise or masks to protect what a node sends.
PROTECTING = ("feddap", "fedpall", "i2pfl")
SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 evaluate.every=2"


def test_the_methods_that_draw_such_noise_have_the_switch() -> None:
    methods = registry.METHODS
    names = {name for name in methods if issubclass(methods[name].params_class(), NoiseParams)}
    assert names == set(PROTECTING)


@pytest.mark.parametrize("method", PROTECTING)
def test_a_deployment_refuses_the_switch(method: str) -> None:
    config = resolve({"method": method, "set": SWITCH})
    run_build.prepare(config, "simulation")
    run_build.prepare(resolve({"method": method}), "deployment")
    line = refusal_of(ConfigError, run_build.prepare, config, "deployment")
    assert line == (
        "method.repeatable_noise=true serves in simulation only: noise that is drawn from the run's seed can be taken "
        "off again by the server; a deployment needs method.repeatable_noise=false"
    )


@pytest.mark.parametrize(("method", "noise"), [("fedpall", ""), ("i2pfl", "method.dp=add")])
def test_only_with_the_switch_a_run_repeats(method: str, noise: str, run_inline: InlineRun) -> None:

    def knowledge(more: str, rounds: int) -> bytes:
        run = run_inline(method=method, rounds=rounds, nodes=2, set=f"{SHORT} {noise} {more}")
        kept: Path = run.folder / "checkpoint" / f"knowledge-{rounds:05d}.safetensors"
        return kept.read_bytes()

    assert knowledge(SWITCH, 2) == knowledge(SWITCH, 2)
    assert knowledge("", 1) != knowledge("", 1)

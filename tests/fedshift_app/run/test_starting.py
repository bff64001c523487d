"""What the strategy knows of a run."""

import pytest

from fedshift_app.config.resolving import resolve
from fedshift_app.run import build as run_build


@pytest.mark.parametrize(
    ("engine", "settings", "waits"),
    [("deployment", 7, 7), ("simulation", 7, run_build.SIMULATED_TIMEOUT), ("simulation", 9000, 9000)],
)
def test_a_busy_machine_does_not_make_simulated_nodes_absent(engine: str, settings: int, waits: float) -> None:
    config = resolve({"method": "fedavg", "set": f"federation.node_timeout={settings}"})
    assert run_build.prepare(config, engine)[1].engine.node_timeout == waits

"""Nodes with different networks: dealt in simulation, named by the node itself in a deployment."""

from pathlib import Path
from typing import Any

import pytest
from support import InlineRun
from words import config as config_of

from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup
from fedshift_core.errors import ConfigError

TWO = "model.name=cnn3 model.per_node=[cnn3,cnn2] train.epochs=2 allocation.share=0.05"


def config(text: str = TWO) -> RunConfig:
    return config_of(f"method=fedseproto rounds=2 {text}")


def own_name(cfg: RunConfig, **given: Any) -> str:
    """Return the network of a real node that was started with this configuration."""
    started = {"domain": "scan", "data-dir": str(Path.cwd())} | given
    return setup.own_network(cfg, setup.place(cfg, make_context(1, started, {}), setup.DEPLOYMENT)).name


def test_simulated_nodes_are_dealt_networks_in_turn() -> None:
    cfg = config()
    places = [
        setup.place(cfg, make_context(1, {"partition-id": i, "num-partitions": 4}, {}), setup.SIMULATION)
        for i in range(4)
    ]  # fmt: skip
    assert [setup.own_network(cfg, where).name for where in places] == ["cnn3", "cnn2", "cnn3", "cnn2"]


def test_a_real_node_may_name_its_own() -> None:
    assert own_name(config(), **{"partition-id": 0}) == "cnn3"
    assert own_name(config(), **{"partition-id": 1}) == "cnn2"
    assert own_name(config(), **{"partition-id": 0, "model": "cnn2"}) == "cnn2"
    with pytest.raises(
        ConfigError, match=r"started without one: give it 'partition-id=N', or 'model=\"NAME\"' with one of cnn3, cnn2"
    ):
        own_name(config())
    assert own_name(config(TWO.replace("[cnn3,cnn2]", "[cnn3,cnn3]"))) == "cnn3"


def test_what_a_node_may_not_name() -> None:
    with pytest.raises(ConfigError, match="unknown model 'big'; there are cnn, "):
        own_name(config(), model="big")
    alike = config("model.name=cnn3 train.epochs=2")
    with pytest.raises(
        ConfigError, match=r"model='cnn2', but this run has one network for all, 'cnn3'.*model.per_node"
    ):
        own_name(alike, model="cnn2")
    assert own_name(alike, model="cnn3") == "cnn3"


def test_only_prototypes_travel(run_inline: InlineRun) -> None:
    settings = f"{TWO} evaluate.client_models=last dataset.domains=[scan,sketch]"
    run = run_inline(f"method=fedseproto nodes=4 rounds=2 {settings}")
    assert run.results["num_parameters"] == 0
    assert run.results["evaluated"] == "personal models"
    header = 128  # of an array in NumPy's format
    assert run.rounds[0]["bytes_up"] == 4 * (10 * 512 * 4 + 10 * 8 + 2 * header)  # each node's prototypes and counts
    matrix = run.results["client_models"]["matrix"]
    assert len(matrix) == 4
    for domain, mean in run.results["client_models"]["by_domain"].items():
        assert mean == pytest.approx(sum(result[domain] for result in matrix.values()) / 4)

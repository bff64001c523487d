"""A node's owner puts its personal parts on: from its state store, onto what the server gave."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import refusal_of

from fedshift.export import on_node, opening, saved, saving, scorer
from fedshift.export.saved import Origin
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import state_folder, state_store
from fedshift_app.node.data import Place
from fedshift_clients.training.node import MODEL_PART
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.wire.messages import RunHeader
from fedshift_datasets.base import Source

RUN = "0123456789abcdef" * 2


def origin(server_round: int = 3, resumed_after: tuple[int, ...] = ()) -> Origin:
    return Origin(
        experiment="e", dataset="handwritten", server_round=server_round, rounds=3, nodes=2, seed=0,
        engine="deployment", run_id=RUN, resumed_after=resumed_after, versions={},
    )  # fmt: skip


def weights(config: RunConfig, names: list[str], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    state = scorer.bare_client(config, config.model).model.state_dict()
    return {
        name: rng.random(tuple(state[name].shape)).astype(np.float32) if state[name].ndim else state[name].numpy()
        for name in names
    }


def shared_model(config: RunConfig, arrays: Arrays, folder: Path, of: Origin) -> Path:
    fields = {"parts": "shared", "node": "", "site": "", "before": "", "measured": None, "origin": of}
    saving.write(folder, config, arrays, "safetensors", fields)
    return folder


def remember(memory: Arrays, server_round: int, number: int = 0, run: str = RUN, resumes: tuple[int, ...] = ()) -> None:
    """Keep something as a SuperNode does in a round."""
    where = Place("scan", number, -1, Source(Path("/data/scan")), False, 0)
    header = RunHeader("deployment", "{}", run_id=run, resumed_after=resumes)
    state_store.store_for(header, where).remember(server_round, memory)


@pytest.fixture
def fedbn() -> tuple[RunConfig, Arrays, list[str]]:
    """A run's configuration, what it shares, and what a node keeps."""
    config = resolve({"method": "fedbn", "set": "model.name=cnn_bn"})
    client = scorer.bare_client(config, config.model)
    own = [name for name in client.model.state_dict() if name not in client.shared_names]
    return config, weights(config, client.shared_names, 1), own


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    return tmp_path / "state"


def test_personal_parts_are_put_on(fedbn: tuple[RunConfig, Arrays, list[str]], tmp_path: Path) -> None:
    config, shared, own = fedbn
    model = shared_model(config, shared, tmp_path / "shared", origin())
    parts = weights(config, own, 2)
    remember({MODEL_PART + name: array for name, array in parts.items()}, 3)
    remember({MODEL_PART + name: array for name, array in weights(config, own, 3).items()}, 3, run="f" * 32)
    folder, result = on_node.save(model, "safetensors")
    assert folder == tmp_path / "shared-node"
    assert (result.parts, result.node) == ("node", "node-0")
    kept = load_file(folder / "model.safetensors")
    assert kept.keys() == shared.keys() | parts.keys()
    assert all(np.array_equal(array, (shared | parts)[name]) for name, array in kept.items())
    opening.program_of(*saved.read(folder))


def test_of_the_rounds_that_the_weights_have_seen(fedbn: tuple[RunConfig, Arrays, list[str]], tmp_path: Path) -> None:
    """The run went on to round 4, was resumed after round 2, and these are the weights after the new round 3."""
    config, shared, own = fedbn
    for server_round, resumes, seed in ((2, (), 2), (3, (), 3), (3, (2,), 4), (4, (2,), 5)):
        remember({MODEL_PART + name: array for name, array in weights(config, own, seed).items()}, server_round,
                 resumes=resumes)  # fmt: skip
    model = shared_model(config, shared, tmp_path / "shared", origin(3, (2,)))
    folder, _ = on_node.save(model, "safetensors")
    kept, wanted = load_file(folder / "model.safetensors"), weights(config, own, 4)
    assert all(np.array_equal(kept[name], array) for name, array in wanted.items())


def test_a_node_with_a_network_of_its_own(tmp_path: Path) -> None:
    config = resolve({"method": "local", "set": 'model.name=cnn2 model.per_node=["cnn2","cnn3"]'})
    model = shared_model(config, {}, tmp_path / "shared", origin())
    third = saving.with_network(config, config.model.model_copy(update={"name": "cnn3"}))
    names = list(scorer.bare_client(third, third.model).model.state_dict())
    remember({MODEL_PART + name: array for name, array in weights(third, names, 1).items()}, 3, number=1)
    _, result = on_node.save(model, "safetensors")  # node-1 has the second
    assert result.network == "cnn3"
    with pytest.raises(FedShiftError, match=r"lacks personal parts|has shape"):
        on_node.save(model, "safetensors", network="cnn2", output=tmp_path / "other")


def test_what_cannot_be_put_together(fedbn: tuple[RunConfig, Arrays, list[str]], state: Path, tmp_path: Path) -> None:
    config, shared, own = fedbn
    model = shared_model(config, shared, tmp_path / "shared", origin())

    def message_of(**asked: Any) -> str:
        return refusal_of(ConfigError, on_node.save, **{"shared": model, "form": "safetensors"} | asked)

    assert f"there is no folder {state}" in message_of()
    remember({"previous/x": np.zeros(1, np.float32)}, 3)
    assert "the node lacks personal parts" in message_of()
    remember({MODEL_PART + name: array for name, array in weights(config, own, 2).items()}, 3, number=1)
    assert "several nodes of this run are here; name one: node-0, node-1" in message_of()
    assert "'node-7' has no personal parts of this run; node-0, node-1 have" in message_of(node="node-7")
    assert "one network for all, cnn_bn" in message_of(node="node-1", network="cnn")
    assert "personal parts of the run" in message_of(state=tmp_path)
    whole, _ = on_node.save(model, "safetensors", node="node-1")
    assert "is a complete model (node)" in message_of(shared=whole)
    assert "exists already" in message_of(node="node-1")


def test_a_damaged_store_is_named(fedbn: tuple[RunConfig, Arrays, list[str]], state: Path, tmp_path: Path) -> None:
    config, shared, own = fedbn
    model = shared_model(config, shared, tmp_path / "shared", origin())
    remember({MODEL_PART + name: array for name, array in weights(config, own, 2).items()}, 3)
    (file,) = state.glob("node-0/run-*/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    assert "it is not what was written" in refusal_of(FedShiftError, on_node.save, model, "safetensors")

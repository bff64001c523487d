"""A node's owner puts its personal parts on: from its state store, onto what the server gave."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from safetensors.numpy import load_file

from fedshift.export import on_node, opening, saved, saving, scorer
from fedshift.export.saved import Origin
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import state_folder, state_store
from fedshift_app.node.data import Place
from fedshift_clients.training.node import MODEL_PART
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import FedShiftError
from fedshift_core.wire.messages import RunHeader
from fedshift_datasets.base import Source

RUN = "0123456789abcdef" * 2


ORIGIN: Any = {"experiment": "e", "dataset": "handwritten", "engine": "deployment", "run_id": RUN, "versions": {}}
ORIGIN |= {"server_round": 3, "rounds": 3, "nodes": 2, "seed": 0}


def weights(config: RunConfig, names: list[str], seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    state = scorer.bare_client(config).model.state_dict()
    return {name: np.asarray(state[name].numpy() + rng.random(), state[name].numpy().dtype) for name in names}


class Kept:
    """A run of FedBN on real nodes: what it shares, as a saved model, and what a node keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = resolve({"method": "fedbn", "set": "model.name=cnn_bn"})
        client = scorer.bare_client(self.config)
        self.shared = weights(self.config, client.shared_names, 1)
        self.own = [name for name in client.model.state_dict() if name not in client.shared_names]

    def parts(self, seed: int) -> Arrays:
        return weights(self.config, self.own, seed)

    def remember(self, seed: int, server_round: int = 3, **more: Any) -> None:
        remember(self.parts(seed), server_round, **more)

    def model(self, **of: Any) -> Path:
        return shared_model(self.config, self.shared, self.folder / "shared", **of)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def shared_model(config: RunConfig, arrays: Arrays, folder: Path, **of: Any) -> Path:
    fields = dict.fromkeys(("node", "site", "before"), "") | {"parts": "shared", "measured": None}
    fields["origin"] = Origin(**ORIGIN | of)
    saving.write(folder, config, arrays, "safetensors", fields)
    return folder


def remember(own: Arrays, server_round: int, number: int = 0, run: str = RUN, resumes: tuple[int, ...] = ()) -> None:
    """Keep personal parts as a SuperNode does in a round."""
    where = Place("scan", number, -1, Source(Path("/data/scan")), False, 0)
    header = RunHeader("deployment", "{}", run_id=run, resumed_after=resumes)
    memory = {MODEL_PART + name: array for name, array in own.items()}
    state_store.store_for(header, where).remember(server_round, memory)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    return tmp_path / "state"


def test_personal_parts_are_put_on(kept: Kept) -> None:
    kept.remember(2)
    kept.remember(3, run="f" * 32)
    folder, result = on_node.save(kept.model(), "safetensors")
    assert (folder, result.parts, result.node) == (kept.folder / "shared-node", "node", "node-0")
    assert digest(load_file(folder / "model.safetensors")) == digest(kept.shared | kept.parts(2))
    opening.program_of(*saved.read(folder))


def test_a_node_with_a_network_of_its_own(tmp_path: Path) -> None:
    config = resolve({"method": "local", "set": 'model.name=cnn2 model.per_node=["cnn2","cnn3"]'})
    model = shared_model(config, {}, tmp_path / "shared")
    third = saving.with_network(config, -1, "cnn3")
    remember(weights(third, list(scorer.bare_client(third).model.state_dict()), 1), 3, number=1)
    assert on_node.save(model, "safetensors")[1].network == "cnn3"  # node-1 has the second
    with pytest.raises(FedShiftError, match=r"lacks personal parts|has shape"):
        on_node.save(model, "safetensors", network="cnn2", output=tmp_path / "other")


def test_what_cannot_be_put_together(kept: Kept, state: Path, tmp_path: Path) -> None:
    model = kept.model()

    def fails(*named: object, **asked: Any) -> None:
        with refused(FedShiftError, *named):
            on_node.save(**{"shared": model, "form": "safetensors"} | asked)

    fails(state)
    remember({"x": np.zeros(1, np.float32)}, 3)
    fails("personal parts")
    kept.remember(2, number=1)
    fails("node-0, node-1")
    fails("node-7", "node-0, node-1", node="node-7")
    fails("cnn_bn", node="node-1", network="cnn")
    fails("none is there", state=tmp_path)
    whole, _ = on_node.save(model, "safetensors", node="node-1")
    fails("(node)", shared=whole)
    fails("exists", node="node-1")
    (file,) = state.glob("node-1/run-*/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    fails(node="node-1", output=tmp_path / "other")

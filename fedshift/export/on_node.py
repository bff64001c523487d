"""``fedshift save-node``: completes the shared weights with a node's personal parts.

It runs on the node and reads the node's own state (``fedshift_app.node.state_store``); the server is not involved.
"""

import re
from pathlib import Path

from fedshift.export import programs, saved, saving, scorer
from fedshift.export.forms import Form
from fedshift.export.opening import configuration_of
from fedshift.export.saved import SavedModel
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup, state_folder
from fedshift_app.node.data import Place
from fedshift_app.node.state_store import StateStore
from fedshift_clients.base import RoundInputs
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_datasets.base import Source

_NUMBERED = re.compile(r"node-(\d{1,7})")


def save(
    shared: Path,
    form: Form,
    *,
    state: Path | None = None,
    node: str = "",
    network: str = "",
    output: Path | None = None,
) -> tuple[Path, SavedModel]:
    """Write the node's complete model.

    Args:
        shared: The folder of the shared weights.
        form: The form of the complete model.
        state: Where the node keeps what it remembers; None for ``$FEDSHIFT_STATE`` or its default.
        node: The name of the node's folder there; empty where there is but one with this run.
        network: The network that the node was started with; empty if it named none.
        output: The folder to make; None for one next to the shared weights.

    Raises:
        FedShiftError: If the shared weights are none, the node has kept nothing of their run, or the two do not fit.
    """
    model, file = saved.read(shared)
    if model.parts != "shared":
        raise ConfigError(f"save-node: {shown(shared)} is a complete model ({model.parts}); nothing can be added")
    if not model.origin.run_id:
        raise ConfigError(f"save-node: {shown(shared)} does not name its run (origin.run_id)")
    output = output or shared.with_name(f"{shared.name}-node")
    saved.check_free(output)
    programs.check_form(form)
    folder = _state_folder(state or state_folder.state_dir(), node, model.origin.run_id)
    name = folder.parent.name
    config = _with_network(configuration_of(model, shared), name, network)
    arrays = saved.weights_of(file)
    client = scorer.bare_client(config, config.model)
    client.prepare(RoundInputs(scorer.knowledge_in(arrays)))
    missing = [weight for weight in scorer.needs(client).weights if weight not in arrays]
    # The state after the rounds of the shared weights: the run may have continued since.
    seen = (*model.origin.resumed_after, model.origin.server_round)
    _, memory = StateStore(folder, seen).recall()
    complete = arrays | saving.personal_parts(memory, missing, f"{shown(folder)}: the node")
    return output, saving.write(output, config, complete, form, {
        "parts": "node", "node": name, "site": "", "before": model.before, "measured": model.measured,
        "origin": model.origin, "run": model.run,
    })  # fmt: skip


def _state_folder(state: Path, node: str, run_id: str) -> Path:
    """Return the folder of a node's state of a run.

    Raises:
        ConfigError: If there is none, or there are several and ``node`` names none.
    """
    if not state.is_dir():
        raise ConfigError(f"--state: there is no folder {shown(state)}; nodes keep their personal parts there")
    folders = {path.parent.name: path for path in sorted(state.glob(f"*/run-{run_id}")) if path.is_dir()}
    names = shown(", ".join(folders))
    if not folders:
        raise ConfigError(f"--state: no node has personal parts of the run {run_id} in {shown(state)}")
    if node and node not in folders:
        raise ConfigError(f"--node: {as_found(node)} has no personal parts of this run; {names} have")
    if not node and len(folders) > 1:
        raise ConfigError(f"--node: several nodes of this run are here; name one: {names}")
    return folders[node or next(iter(folders))]


def _with_network(config: RunConfig, name: str, network: str) -> RunConfig:
    """Return the configuration with the node's own network."""
    if not config.model.per_node:
        if network and network != config.model.name:
            raise ConfigError(f"--network: this run has one network for all, {config.model.name}")
        return config
    if network:
        NETWORKS.named(network, "--network")
    numbered = _NUMBERED.fullmatch(name)
    number = int(numbered[1]) if numbered else -1
    if not network and number < 0 and len(set(config.model.per_node)) > 1:
        names = ", ".join(dict.fromkeys(config.model.per_node))
        raise ConfigError(f"--network: nodes of this run have networks of their own, name this one's: {names}")
    where = Place("", number, -1, Source(), False, 0, network)
    return saving.with_network(config, setup.own_network(config, where))

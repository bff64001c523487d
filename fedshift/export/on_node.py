"""``fedshift save-node``: completes the shared weights with a node's personal parts.

It runs on the node and reads the node's own state (``fedshift_app.node.state_store``); the server is not involved.
"""

import re
from pathlib import Path

from fedshift.export import programs, saved, saving, scorer
from fedshift.export.forms import Form
from fedshift.export.opening import configuration_of
from fedshift.export.saved import SavedModel
from fedshift.run import arguments
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import state_folder
from fedshift_app.node.state_store import StateStore
from fedshift_clients.models.catalog import NETWORKS
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown

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
    state, run = state or state_folder.state_dir(), f"run-{model.origin.run_id}"
    here = {path.parent.name: path for path in sorted(state.glob(f"*/{run}")) if path.is_dir()}
    folder = arguments.one_of("--node", node, here, f"{shown(state)}/*/{run}, the personal parts of this run's nodes")
    name = folder.parent.name
    config = _with_network(configuration_of(model, shared), name, network)
    arrays = saved.weights_of(file)
    needed = scorer.needs_of(config, scorer.knowledge_in(arrays)).weights
    missing = [weight for weight in needed if weight not in arrays]
    # The state after the rounds of the shared weights: the run may have continued since.
    seen = (*model.origin.resumed_after, model.origin.server_round)
    _, memory = StateStore(folder, seen).recall()
    complete = arrays | saving.personal_parts(memory, missing, f"{shown(folder)}: the node")
    return output, saving.write(
        output,
        config,
        complete,
        form,
        {
            "parts": "node",
            "node": name,
            "before": model.before,
            "measured": model.measured,
            "origin": model.origin,
            "run": model.run,
        },
    )


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
    return saving.with_network(config, number, network)

"""What ``train.precision=auto`` stands for in a run: decided before round 1 by what the nodes tell, then kept."""

from collections import Counter
from collections.abc import Mapping

from clients.training import precision
from fedshift_app.config.sections import RunConfig
from fedshift_app.run.folder import Past
from fedshift_core.params import ARITHMETICS, Arithmetic

EMULATED = "; this machine has no instructions for bfloat16 and computes it slowly"


def settle(
    config: RunConfig, told: Mapping[int, Arithmetic], past: Past | None, *, here: bool
) -> tuple[RunConfig, str]:
    """Return the configuration that says how nodes compute, and a line for the log.

    Args:
        config: The run's; of one that goes on with what its folder keeps.
        told: By node, what trains fastest on its machine.
        past: What is continued, None for a new run.
        here: The nodes are on this machine.

    Returns:
        The configuration, and the line, empty where the precision is asked for by name.
    """
    train = config.train
    if train.precision != "auto":
        return config, ""
    if not train.arithmetic and not told:
        return _with(config, "hardware"), "train.precision=auto: by each node's hardware, no node tells what is fastest"
    if not train.arithmetic:
        chosen, votes = agreed(told)
        number = len(told)
        who = f"{votes} of {number} nodes" if votes < number else "the node" if number == 1 else f"all {number} nodes"
        return _with(config, chosen), f"train.precision=auto: {chosen}, which trains fastest on the machines of {who}"
    if train.arithmetic == "hardware":
        meaning = f" ({precision.by_hardware(precision.default_device())} here)" if here else ""
        return config, f"train.precision=auto: by each node's hardware{meaning}, as runs of earlier versions had it"
    why = "as when the run began" if past is not None else "as the configuration or the run that is repeated says"
    slow = here and train.arithmetic.startswith("bf16") and not precision.has_bf16(precision.default_device())
    return config, f"train.precision=auto: {train.arithmetic}, {why}; nothing is measured" + (EMULATED if slow else "")


def agreed(told: Mapping[int, Arithmetic]) -> tuple[Arithmetic, int]:
    """Return what most nodes tell, and how many do; of as many, what stands first in ``ARITHMETICS``."""
    count = Counter(told.values())
    chosen = max(ARITHMETICS, key=lambda name: count[name])
    return chosen, count[chosen]


def _with(config: RunConfig, arithmetic: str) -> RunConfig:
    return config.model_copy(update={"train": config.train.model_copy(update={"arithmetic": arithmetic})})

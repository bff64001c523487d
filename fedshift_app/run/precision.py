"""Decides the meaning of ``train.precision=auto`` before round 1 from the nodes' measurements, and keeps it."""

from collections import Counter
from collections.abc import Mapping

from fedshift_app.config.sections import RunConfig
from fedshift_app.run.checkpoints import Past
from fedshift_clients.training import precision
from fedshift_core.params import ARITHMETICS, Arithmetic
from fedshift_core.plural import plural

EMULATED = "; this machine has no instructions for bfloat16 and computes it slowly"


def settle(
    config: RunConfig, fastest: Mapping[int, Arithmetic], past: Past | None, *, here: bool
) -> tuple[RunConfig, str]:
    """Return the configuration with the nodes' number format, and a line for the log.

    Args:
        config: The run's configuration; for a continued run with what its folder keeps.
        fastest: The fastest number format of each node's machine.
        past: The run to continue; None for a new run.
        here: The nodes are on this machine.

    Returns:
        The configuration, and the line, which is empty if the precision was given by name.
    """
    train = config.train
    if train.precision != "auto":
        return config, ""
    chosen, device = train.arithmetic, precision.default_device()
    if not chosen and fastest:
        chosen, votes = agreed(fastest)
        text = f"{chosen}, which trains fastest on the machines of {votes} of {plural(len(fastest), 'node')}"
    elif chosen in ("", "hardware"):
        chosen = "hardware"
        text = f"by each node's hardware{f' ({precision.by_hardware(device)} here)' if here else ''}"
    else:
        reason = "at the beginning of the run" if past is not None else "in the configuration or the repeated run"
        slow = here and chosen.startswith("bf16") and not precision.has_bf16(device)
        text = f"{chosen}, as {reason}; nothing is measured{EMULATED if slow else ''}"
    settled = config.model_copy(update={"train": train.model_copy(update={"arithmetic": chosen})})
    return settled, f"train.precision=auto: {text}"


def agreed(fastest: Mapping[int, Arithmetic]) -> tuple[Arithmetic, int]:
    """Return the number format of most nodes and their number; ``ARITHMETICS`` decides a tie."""
    count = Counter(fastest.values())
    chosen = max(ARITHMETICS, key=lambda name: count[name])
    return chosen, count[chosen]

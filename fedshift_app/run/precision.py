"""Decides the meaning of ``train.precision=auto`` before round 1 from the nodes' measurements, and keeps it."""

from collections import Counter
from collections.abc import Mapping

from fedshift_app.config.sections import RunConfig
from fedshift_app.run.checkpoints import Past
from fedshift_core.params import ARITHMETICS, Arithmetic
from fedshift_core.plural import plural


def settle(config: RunConfig, fastest: Mapping[int, Arithmetic], past: Past | None) -> tuple[RunConfig, str]:
    """Return the configuration with the nodes' number format, and a line for the log.

    Args:
        config: The run's configuration; for a continued run with what its folder keeps.
        fastest: The fastest number format of each node's machine.
        past: The run to continue; None for a new run.

    Returns:
        The configuration, and the line, which is empty if the precision was given by name.
    """
    train = config.train
    if train.precision != "auto":
        return config, ""
    chosen = train.arithmetic
    if not chosen and fastest:
        chosen, votes = agreed(fastest)
        text = f"{chosen}, which trains fastest on the machines of {votes} of {plural(len(fastest), 'node')}"
    elif chosen in ("", "hardware"):
        chosen = "hardware"
        text = "by each node's hardware"
    else:
        reason = "at the beginning of the run" if past is not None else "in the configuration or the repeated run"
        text = f"{chosen}, as {reason}; nothing is measured"
    return config.with_values("train", arithmetic=chosen), f"train.precision=auto: {text}"


def agreed(fastest: Mapping[int, Arithmetic]) -> tuple[Arithmetic, int]:
    """Return the number format of most nodes and their number; ``ARITHMETICS`` decides a tie."""
    count = Counter(fastest.values())
    chosen = max(ARITHMETICS, key=lambda name: count[name])
    return chosen, count[chosen]

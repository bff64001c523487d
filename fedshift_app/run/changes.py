"""Holds the settings with which a run goes on against those of its last round, which the checkpoint has recorded."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedshift_app.config import plugins
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import sections_of_run, validate
from fedshift_app.run import agreement
from fedshift_app.run.checkpoints import Past
from fedshift_app.run.files import CONFIG_FILE, changed_text
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_LINE, as_found

log = logging.getLogger("fedshift")

ALLOW_CHANGED = "allow-changed"
#: Settings that may change between two rounds; the network, its images and its number format may not.
CHANGEABLE = (
    "train.", "method.", "evaluate.every", "evaluate.fraction", "evaluate.last", "evaluate.patience", "federation.",
)  # fmt: skip
FIXED = ("method.name", "train.precision", "train.arithmetic", "federation.secure_sums")


def as_trained(recorded: Mapping[str, Any], config: RunConfig) -> RunConfig:
    """Return the configuration that a checkpoint has recorded, or ``config.yaml`` of a run without one.

    Raises:
        ConfigError: If the run's own Python files are not those of ``config``, with which it goes on.
    """
    files = [file for file in config.plugins if Path(file).suffix == ".py"]
    if (before := plugins.code(recorded)) and before != [plugins.sha256(Path(file)) for file in files]:
        raise ConfigError(
            f"resume: plugins are {as_found(list(recorded['resolved']['plugins']))} there with other code than "
            f"{as_found(files)} have; a run goes on with the code that it began with"
        )
    return validate(sections_of_run(recorded) | {"plugins": list(config.plugins)})


def noted(past: Past, changes: Mapping[str, Sequence[Any]]) -> Past:
    """Return the run with the settings that are changed from its next round on, and say them where it goes on."""
    checkpoint = past.checkpoint
    if past.lock is not None and checkpoint is not None and not checkpoint.config:
        log.warning(
            "round %d was trained by an earlier version, which kept no configuration with it: that of %s counts",
            past.completed, past.path / CONFIG_FILE,
        )  # fmt: skip
    before = tuple(checkpoint.changed) if checkpoint is not None else ()
    if not changes:
        return replace(past, changed=before)
    changed = (*before, {"from_round": past.completed + 1, "settings": dict(changes)})
    if past.lock is not None:
        log.warning("%s", changed_text(changed), extra={"event": "changed"})
    return replace(past, changed=changed)


def found(path: Path, kept: RunConfig, config: RunConfig, *, allowed: bool) -> dict[str, list[Any]]:
    """Return the settings that are not those of the last round, by key.

    Raises:
        ConfigError: If they are not ``allowed`` to differ, or one must not: what is trained would be another network
            on other images, or a promise of privacy be about neither part of the run.
    """
    changes = agreement.differences(*(each.model_dump(mode="json") for each in (kept, config)))
    if not changes:
        return {}
    private = kept.privacy.name != "none"
    fixed = [key for key in changes if private or not key.startswith(CHANGEABLE) or key in FIXED]
    if allowed and not fixed:
        return changes
    named = fixed if allowed else list(changes)
    texts = [f"{key} is {as_found(changes[key][0])} there, requested is {as_found(changes[key][1])}" for key in named]
    texts.sort(key=lambda text: (not text.startswith("method.name "), len(text)))  # short ones first, to fit many
    line = f"resume: the run in {path} has other settings: {texts[0]}"
    for i, text in enumerate(texts[1:], start=1):
        if len(line) + len(text) > MOST_LINE - len("; ; and 99 more"):
            line += f"; and {len(texts) - i} more"
            break
        line += f"; {text}"
    if fixed:
        raise ConfigError(line, f"within a run these cannot change: start a new one, or restore {CONFIG_FILE}")
    raise ConfigError(
        line,
        "to go on with the new values, which its results then name: --allow-changed, "
        f"or {ALLOW_CHANGED}=true in the --run-config of flwr run",
    )

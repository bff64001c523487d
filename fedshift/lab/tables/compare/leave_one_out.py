"""Leave-one-out runs as one: each domain counts where no node held it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.errors import ConfigError

#: Note about the columns.
NOTE = "each domain as the run scored it in which no node held it; AVG, STD and WORST are over these runs"
#: Prefixes of settings by domain; a run has no such setting for its held-out domain.
COUNTS, SHARE = "allocation.counts.", "allocation.share."


def folds(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Return runs of which the held-out domains alone count, alike in what follows from these; and all such domains.

    Raises:
        ConfigError: If a run holds no domain out, or two hold another number of nodes or images of a third one.
    """
    for run in runs:
        if not run.config[HELD_OUT]:
            raise ConfigError(f"--unseen: {run.name} holds no domain out (allocation.held_out=[DOMAIN])")
    held_out = {domain for run in runs for domain in run.config[HELD_OUT]}
    named = dict.fromkeys(domain for run in runs for domain in run.results.domains)  # in the order of the data set
    domains = [domain for domain in named if domain in held_out]
    alike = {HELD_OUT: domains, **_by_domain(runs, domains)}
    one_by_one = [
        replace(run, only=tuple(d for d in domains if d in run.config[HELD_OUT]), instead={**run.instead, **alike})
        for run in runs
    ]
    return sorted(one_by_one, key=lambda run: [domains.index(domain) for domain in run.only]), domains


def foldable(differences: Collection[str]) -> bool:
    """Return whether these settings, by dotted key, differ only because of the held-out domain."""
    return HELD_OUT in differences and all(map(follows, differences))


def follows(key: str) -> bool:
    """Return whether a setting, by dotted key, is the held-out domain or what follows from it."""
    return key in (HELD_OUT, NODES) or key.startswith((COUNTS, SHARE))


def _by_domain(runs: Sequence[Run], domains: Sequence[str]) -> dict[str, Any]:
    """Return the settings by domain, as the runs have them that hold it, and the number of nodes."""
    first_values: dict[str, tuple[Any, Run]] = {}
    for run in runs:
        for key, value in run.config.items():
            domain = key.removeprefix(COUNTS).removeprefix(SHARE)
            if domain == key or domain not in domains or domain in run.config[HELD_OUT]:
                continue
            before, first = first_values.setdefault(key, (value, run))
            if before != value:
                raise ConfigError(
                    f"--unseen: {key} is {before} in {first.name} and {value} in {run.name}; compare them apart"
                )
    nodes = " or ".join(map(str, sorted({run.config[NODES] for run in runs})))
    counted = any(key.startswith(COUNTS) for key in first_values)
    return {key: value for key, (value, _) in first_values.items()} | ({NODES: nodes} if counted else {})

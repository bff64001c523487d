"""Joins leave-one-out runs: each domain is scored by the run whose nodes did not hold it."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedshift.lab.tables.papers.deviations import HELD_OUT
from fedshift.lab.tables.results import contents, grouping, row_names
from fedshift.lab.tables.results.loading import Run
from fedshift.lab.tables.results.results_file import Chosen, Results
from fedshift.lab.tables.results.settings import NODES
from fedshift_core.errors import ConfigError

#: Note about the columns.
NOTE = "each domain as the run scored it in which no node held it; AVG, STD and WORST are over these runs"
#: Prefixes of settings by domain; a run has no such setting for its held-out domain.
COUNTS, SHARE = "allocation.counts.", "allocation.share."


def folded(runs: Sequence[Run]) -> tuple[list[Run], list[str], list[Run]]:
    """Join the runs of a method and seed that hold out one domain after the other.

    Args:
        runs: Runs, each of which holds out a domain or several.

    Returns:
        One run for each method, its parameters and seed, with the scores of held-out domains alone (None for a domain
        that it never held out), notes about runs that repeat others with the same numbers, and these joined likewise:
        they show what changes no number.

    Raises:
        ConfigError: If a run holds no domain out, a domain was held out twice with different numbers or others, or the
            nodes of a domain are not the same in all runs that have it.
    """
    for run in runs:
        if not run.config[HELD_OUT]:
            raise ConfigError(f"--unseen: {run.name} holds no domain out (allocation.held_out=[DOMAIN])")
    held_out = {domain for run in runs for domain in run.results.domains if _holds_out(run, domain)}
    named = dict.fromkeys(domain for run in runs for domain in run.results.domains)  # in the order of the data set
    domains = [domain for domain in named if domain in held_out]
    runs = sorted(runs, key=lambda run: [domains.index(domain) for domain in domains if _holds_out(run, domain)])
    by_domain = _by_domain(runs, domains)
    members: dict[str, list[Run]] = {}
    for run in runs:
        settings = run.row_settings | run.group_settings | {"seed": run.results.seed, "tuned": run.tuned}
        alike = {key: value for key, value in settings.items() if key != HELD_OUT and key not in by_domain}
        members.setdefault(repr(sorted(alike.items())), []).append(run)
    notes: list[str] = []
    joined: list[Run] = []
    repetitions: list[Run] = []
    for same in members.values():
        once = _each_once(same, notes)
        joined.append(_joined(once, domains, by_domain))
        others = [run for run in same if not any(run is part for part in once)]
        if {domain for run in others for domain in run.config[HELD_OUT]} == set(domains):
            repetitions.append(_joined(others, domains, by_domain))
    return joined, notes, repetitions


def foldable(differences: Collection[str]) -> bool:
    """Return whether these settings, by dotted key, differ only because of the held-out domain."""
    return HELD_OUT in differences and all(map(follows, differences))


def follows(key: str) -> bool:
    """Return whether a setting, by dotted key, is the held-out domain or what follows from it."""
    return key in (HELD_OUT, NODES) or key.startswith((COUNTS, SHARE))


def _by_domain(runs: Sequence[Run], domains: Sequence[str]) -> dict[str, Any]:
    """Return the settings by domain: the number of nodes and the share of images.

    Returns:
        Values by dotted key, with the total numbers of nodes if these follow from the settings.
    """
    first_values: dict[str, tuple[Any, Run]] = {}
    for run in runs:
        for key, value in run.config.items():
            domain = key.removeprefix(COUNTS).removeprefix(SHARE)
            if domain != key and domain in domains and not _holds_out(run, domain):
                before, first = first_values.setdefault(key, (value, run))
                if before != value:
                    raise ConfigError(
                        f"--unseen: {key} is {before} in {first.name} and {value} in {run.name}; compare them apart"
                    )
    nodes = " or ".join(map(str, sorted({run.config[NODES] for run in runs})))
    settings = {key: value for key, (value, _) in first_values.items()}
    return settings | ({NODES: nodes} if any(key.startswith(COUNTS) for key in first_values) else {})


def _holds_out(run: Run, domain: str) -> bool:
    return domain in run.config[HELD_OUT]


def _each_once(same: Sequence[Run], notes: list[str]) -> list[Run]:
    """Return one run for each held-out domain.

    A repetition with the same numbers adds a note; one with different numbers is refused.
    """
    kept: dict[str, Run] = {}
    for run in same:
        for domain in run.config[HELD_OUT]:
            first = kept.setdefault(domain, run)
            if first is run:
                continue
            both = f"{row_names.Naming().label(run)}, seed {run.results.seed}: {domain} is held out twice"
            if sorted(first.config[HELD_OUT]) != sorted(run.config[HELD_OUT]):
                raise ConfigError(f"{both}, with other domains: {first.name} and {run.name}")
            earlier, later = first.results, run.results
            if (earlier.weights_sha256, earlier.domains) != (later.weights_sha256, later.domains):
                raise grouping.other_numbers(both, first, run, "compare without that folder")
            if contents.unlike([first, run]):
                raise ConfigError(f"{both}, with other images: {first.name} and {run.name}")
            note = f"{run.name} repeats {first.name} with the same numbers and counts once"
            if note not in notes:
                notes.append(note)
    return [run for run in same if any(run is unique for unique in kept.values())]


def _joined(parts: Sequence[Run], domains: Sequence[str], settings: Mapping[str, Any]) -> Run:
    """Return one run with the scores of several leave-one-out runs.

    Args:
        parts: The leave-one-out runs.
        domains: All held-out domains.
        settings: The settings of the joined run that replace theirs (``_by_domain``).
    """
    first = parts[0]
    allocation = first.resolved.allocation.model_copy(update={"held_out": tuple(domains)})
    return replace(
        first,
        results=_results(parts, domains),
        config={**first.config, **settings, HELD_OUT: list(domains)},
        resolved=first.resolved.model_copy(update={"allocation": allocation}),
        parts=tuple(parts),
    )


def _results(parts: Sequence[Run], domains: Sequence[str]) -> Results:
    """Return the results of leave-one-out runs as those of one: of each domain what the run has that held it out."""
    first = parts[0].results
    by_domain = {domain: run.results for run in parts for domain in run.config[HELD_OUT]}

    def of(take: Any) -> dict[str, float | None]:
        return {domain: take(by_domain[domain]).get(domain) if domain in by_domain else None for domain in domains}

    names = set.intersection(*(set(run.results.others) for run in parts))
    others = {name: of(lambda scores, name=name: scores.others[name]) for name in sorted(names)}
    validated = all(run.results.best_validation is not None for run in parts)
    drawn = all(run.results.figures is not None for run in parts)
    return first.model_copy(
        update={
            "domains": of(lambda scores: scores.domains),
            "final": of(lambda scores: scores.final),
            "best_test": _chosen(first.best_test, of(lambda scores: scores.best_test.domains)),
            "best_validation": (
                _chosen(first.best_validation, of(lambda scores: scores.best_validation.domains))
                if validated else None
            ),
            "client_models": None,  # these measures are over all domains of a run
            "others": {name: values for name, values in others.items() if any(v is not None for v in values.values())},
            "spread_over_nodes": {
                domain: scores.spread_over_nodes[domain] for domain, scores in by_domain.items()
                if domain in scores.spread_over_nodes
            },
            "figures": (
                first.figures.model_copy(
                    update={"domains": of(lambda scores: scores.figures.domains), "overall": None}
                ) if drawn and first.figures is not None else None
            ),
            "unscored": {name: rounds for name, scores in by_domain.items() if (rounds := scores.unscored.get(name))},
            "lost": _by_round([run.results.lost for run in parts]),
            "averaged_rounds": max(run.results.averaged_rounds for run in parts),
            "nodes": tuple(node for run in parts for node in run.results.nodes),
            "weights_sha256": hashlib.sha256(
                "".join(by_domain[domain].weights_sha256 for domain in domains if domain in by_domain).encode()
            ).hexdigest(),
            "curve": {},
        }
    )  # fmt: skip


def _chosen(first: Chosen | None, domains: Mapping[str, float | None]) -> Chosen | None:
    return None if first is None else first.model_copy(update={"domains": dict(domains)})


def _by_round(parts: Sequence[Mapping[str, list[int]]]) -> dict[str, list[int]]:
    """Return the indices of nodes by round over all parts."""
    joined: dict[str, list[int]] = {}
    for by_round in parts:
        for number, nodes in by_round.items():
            joined[number] = sorted({*joined.get(number, []), *nodes})
    return joined

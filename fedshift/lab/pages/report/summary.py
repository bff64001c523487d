"""The parts of the page from a run's text files: accuracy, losses, costs, configuration."""

import json
from typing import Any

from fedshift.lab.pages.report import curves, maps
from fedshift.run.html import drawing
from fedshift.run.html.sections import Section
from fedshift.run.reading import Record
from fedshift_app.config import registry
from fedshift_app.config.keys import NONE, as_requested, flat
from fedshift_app.run import shown
from fedshift_app.run.shown import Final
from fedshift_core.accuracies import percent
from fedshift_core.limits import plain
from fedshift_core.losses import Losses
from fedshift_core.plural import capital, plural
from fedshift_core.registry import Method
from fedshift_core.shown import History
from fedshift_core.yaml_files import as_yaml

EVENTS = 30  # number of events that the page lists; the rest is counted
MOST_EVENT = 700  # characters of an event: a node and its reason of at most ``MOST_TEXT``


def content(record: Record) -> dict[str, Any]:
    """Return the content of the page that needs no images or weights."""
    return _head(record) | _results(record) | _settings(record)


def _head(record: Record) -> dict[str, Any]:
    config, results, lines = record.config, record.results, record.lines
    done = lines[-1]["round"] if lines else 0
    if record.finished:
        state = f"Finished: {done} round{'' if done == 1 else 's'}."
        if not config.rounds:
            state = "Finished: nothing was trained (rounds=0), these are the scores of the initial model."
    elif done:
        state = (
            f"Not finished: {done} of {plural(config.rounds, 'round is', 'rounds are')} complete, and are shown here."
        )
    else:
        state = f"Not finished: none of {plural(config.rounds, 'round')} is complete."
    if record.resumed_after:
        state += f" Resumed after round {', '.join(map(str, record.resumed_after))}."
    facts = [("rounds", f"{done} of {config.rounds}")]
    if results is not None:
        overall = Losses.of(results).overall(results["domains"])
        worst = overall.worst_domain
        facts = [
            ("AVG", percent(overall.avg)),
            *([] if overall.std is None else [("STD over domains", percent(overall.std))]),
            *([] if worst is None else [("weakest domain", f"{worst} {percent(overall.worst)}")]),
            *facts,
        ]
    facts.append(("time", f"{sum(line['seconds'] for line in lines):.0f} s"))
    return {
        "title": f"{registry.label(config.method['name'])} on {config.dataset.name}",
        "state": f"{config.experiment}, seed {config.seed}, engine {record.engine}. {state}",
        "finished": record.finished,
        "facts": facts,
    }


def _results(record: Record) -> dict[str, Any]:
    results, lines, domains = record.results, record.lines, record.config.dataset.domains
    accuracy, training = Section("accuracy", "Accuracy"), Section("training", "Training")
    final = None
    if results is not None:
        final = shown.final(History(record.config, results=results), lines)
        accuracy.notes = notes_of(record, final)
        accuracy.figures = [figure for figure in [curves.bars(results)] if figure]
    if lines:
        accuracy.figures += [figure for figure in [curves.accuracy(lines, domains)] if figure]
        drawn = [curves.losses(lines), curves.test_loss(lines, domains), curves.costs(lines)]
        training.figures = [figure for figure in drawn if figure]
    else:
        training.notes = ["There is no full round."]
    return {
        "final": final,
        "colours": drawing.DOMAINS,
        "accuracy": accuracy,
        "training": training,
        "events": _events(lines),
        "nodes": _nodes(record),
        "federation": _federation(record),
    }


def notes_of(record: Record, final: Final) -> list[str]:
    """Return what stands under the table of results."""
    results = record.results or {}
    notes = [f"Warning: {record.contradiction}."] if record.contradiction else []
    notes += [f"Top-1 accuracy (%) of the {results['evaluated']}."] if "evaluated" in results else []
    notes += [f"{capital(line)}." for line in final.notes]
    if chosen := results.get("chosen_round"):
        notes.append(f"The model of round {chosen['round']} is kept, and is the one that this page looks at.")
    return [*notes, *(f"{capital(fact)}." for fact in final.facts)]


def _events(lines: list[dict[str, Any]]) -> list[tuple[Any, str]]:
    """Return, by round, the nodes that were left out or started again."""
    events: list[tuple[Any, str]] = []
    for line in lines:
        events += [(line["round"], f"left out: {who}") for who in line["left_out"]]
        events += [(line["round"], f"started without its private parts: {who}") for who in line.get("started_anew", [])]
    more = len(events) - EVENTS
    listed = [(number, plain(what, MOST_EVENT)) for number, what in events[:EVENTS]]
    return [*listed, ("", f"and {more} more, see metrics.jsonl")] if more > 0 else listed


def _nodes(record: Record) -> list[tuple[str, int, int, str]]:
    """Return for each domain the number of nodes, of their training images, and of the images of each node."""
    rows = []
    for domain in record.config.dataset.domains if record.nodes else ():
        sizes = [node.num_examples for node in record.nodes if node.domain == domain]
        each = " to ".join(map(str, sorted({min(sizes), max(sizes)}))) if sizes else "held by no node"
        rows.append((domain, len(sizes), sum(sizes), each))
    return rows


def _federation(record: Record) -> Section:
    """Return the section with the class counts of the nodes that reported them."""
    known = record.classes
    nodes = [node for node in record.nodes if len(node.class_counts) == len(known)]
    figures = [maps.class_counts(nodes, record.config.dataset.domains, known)] if nodes else []
    return Section("federation", "Federation", figures=figures)


def _settings(record: Record) -> dict[str, Any]:
    config, recorded = record.config, record.config_file
    method = registry.known(config.method["name"])
    settings = as_requested(flat(config.model_dump(mode="json")))
    own = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    params = ", ".join(f"{key}={_word(value)}" for key, value in own.items() if key != "name")
    extras = {key: settings[key] for key in ("modules", "adapt.name") if settings.get(key, NONE) != NONE}
    networks = ", ".join(config.model.per_node) or config.model.name
    rows = [
        *_method(method, config.method["name"]),
        ("parameters", params or "none"),
        *extras.items(),
        ("data", f"{config.dataset.name}: {', '.join(config.dataset.domains)}"),
        ("model", f"{networks}, BatchNorm {config.model.bn}"),
        (
            "training",
            f"{plural(config.rounds, 'round')} of {plural(config.train.epochs, 'local epoch')}, batches of "
            f"{config.train.batch_size}, lr {config.train.lr}",
        ),
        *(
            []
            if method is None
            else [("sent in addition to weights", registry.travels(method)), ("stays on the node", method.private)]
        ),
        ("command", str(recorded.get("command", "unknown"))),
        ("started", str(recorded.get("started", "unknown"))),
        ("versions", ", ".join(f"{name} {number}" for name, number in recorded.get("versions", {}).items())),
        ("folder", record.folder.name),
    ]
    return {"settings": rows, "config": as_yaml(recorded)}


def _method(method: Method | None, name: str) -> list[tuple[str, str]]:
    """Return the description of the method; only its name if its code is not installed."""
    if method is None:
        return [("method", f"{name} (its code is not here)")]
    approximation = [("approximation", method.approximation)] if method.approximation else []
    return [("method", f"{method.label}: {method.title} ({method.venue})"), *approximation]


def _word(value: Any) -> str:
    """Return a value as it is written in a configuration."""
    return value if isinstance(value, str) else json.dumps(value)

"""The parts of the page from a run's text files: accuracy, losses, costs, nodes, configuration."""

from collections.abc import Iterator
from typing import Any

from fedshift.lab.pages.report import curves, maps
from fedshift.run.html.sections import Section, Table
from fedshift.run.reading import Record
from fedshift_app.config import registry
from fedshift_app.run import shown
from fedshift_app.run.shown import Final
from fedshift_core.accuracies import percent
from fedshift_core.limits import plain
from fedshift_core.losses import Losses
from fedshift_core.plural import capital, plural
from fedshift_core.shown import History
from fedshift_core.yaml_files import as_yaml

EVENTS = 30  # number of events that the page lists; the rest is counted
MOST_EVENT = 700  # characters of an event: a node and its reason of at most ``MOST_TEXT``
NARROW = 4  # columns of a table of results that fits next to a figure


def head(record: Record) -> dict[str, Any]:
    """Return what stands above the sections, and the whole configuration."""
    config, lines = record.config, record.lines
    done = lines[-1]["round"] if lines else 0
    if not record.finished:
        of = f"{done} of {plural(config.rounds, 'round is', 'rounds are')}"
        state = f"Not finished: {of if done else f'none of {config.rounds} rounds is'} complete."
    elif config.rounds:
        state = f"Finished: {plural(done, 'round')}."
    else:
        state = "Finished: nothing was trained (rounds=0), these are the scores of the initial model."
    if record.resumed_after:
        state += f" Resumed after round {', '.join(map(str, record.resumed_after))}."
    facts = []
    if record.results is not None:
        overall = Losses.of(record.results).overall(record.results["domains"])
        worst = overall.worst_domain and f"{overall.worst_domain} {percent(overall.worst)}"
        std = overall.std and percent(overall.std)
        facts = [("AVG", percent(overall.avg)), ("STD over domains", std), ("weakest domain", worst)]
    facts += [("rounds", f"{done} of {config.rounds}"), ("time", f"{sum(line['seconds'] for line in lines):.0f} s")]
    return {
        "title": f"{registry.label(config.method['name'])} on {config.dataset.name}",
        "state": f"{config.experiment}, seed {config.seed}, engine {record.engine}. {state}",
        "finished": record.finished,
        "facts": [fact for fact in facts if fact[1] is not None],
        "config": as_yaml(record.config_file),
    }


def sections(record: Record) -> list[Section]:
    """Return accuracy, training, federation and configuration."""
    return [_accuracy(record), _training(record), _federation(record), _configuration(record)]


def _accuracy(record: Record) -> Section:
    results, domains, score = record.results, record.config.dataset.domains, record.task.score
    part = Section("accuracy", capital(score))
    if results is None:
        part.notes = ["No round has been scored on all test images."]
    else:
        final = shown.final(History(record.config, results=results))
        rows = [list(row) for row in final.rows]
        for row in rows:
            if (mark := final.marks.get(str(row[0]))) and isinstance(row[1], float):
                row[1] = f"{row[1]:.1f} ({mark})"
        beside = len(final.heads) <= NARROW
        part.tables = [Table("results", ["domain", *final.heads], rows, beside=beside, kind="domains")]
        part.tables += [
            Table(f"features-{place}", table.head, table.rows, notes=table.notes)
            for place, table in enumerate(final.tables, 1)
        ]
        part.notes = notes_of(record, final)
    part.figures = [figure for figure in [curves.by_domain(record.lines, domains, "accuracy", score)] if figure]
    return part


def notes_of(record: Record, final: Final) -> list[str]:
    """Return what stands under the table of results."""
    results = record.results or {}
    notes = [f"Warning: {record.contradiction}."] if record.contradiction else []
    notes += [f"{capital(record.task.score)} (%) of the {results['evaluated']}."] if "evaluated" in results else []
    notes += [f"{capital(line)}." for line in final.notes]
    if chosen := results.get("chosen_round"):
        notes.append(f"The model of round {chosen['round']} is kept, and is the one that this page looks at.")
    return [*notes, *(f"{capital(fact)}." for fact in final.facts)]


def _training(record: Record) -> Section:
    lines = record.lines
    if not lines:
        return Section("training", "Training", notes=["There is no full round."])
    drawn = [
        curves.losses(lines),
        curves.by_domain(lines, record.config.dataset.domains, "test_loss", record.task.score),
        curves.costs(lines),
    ]
    events = list(_events(lines))
    rows = [(number, plain(what, MOST_EVENT)) for number, what in events[:EVENTS]]
    if (more := len(events) - EVENTS) > 0:
        rows.append(("", f"and {more} more, see metrics.jsonl"))
    table = Table("events", ["round", "what went wrong"], rows, kind="words")
    return Section(
        "training", "Training", figures=[figure for figure in drawn if figure], tables=[table] if rows else []
    )


def _events(lines: list[dict[str, Any]]) -> Iterator[tuple[Any, str]]:
    """Yield, by round, the nodes that were left out or started again."""
    for line in lines:
        yield from ((line["round"], f"left out: {who}") for who in line["left_out"])
        yield from (
            (line["round"], f"started without its private parts: {who}") for who in line.get("started_anew", [])
        )


def _federation(record: Record) -> Section:
    """Return which nodes held which domains, and the class counts of those that reported them."""
    part, domains = Section("federation", "Federation"), record.config.dataset.domains
    if not record.nodes:
        part.notes = ["No full round: the folder does not say which nodes there were."]
        return part
    rows = []
    for domain in domains:
        sizes = [node.num_examples for node in record.nodes if node.domain == domain]
        each = " to ".join(map(str, sorted({min(sizes), max(sizes)}))) if sizes else "held by no node"
        rows.append((domain, len(sizes), sum(sizes), each))
    part.tables = [Table("nodes", ["domain", "nodes", "training images", "of each node"], rows, beside=True)]
    if nodes := [node for node in record.nodes if len(node.class_counts) == len(record.classes)]:
        part.figures = [maps.class_counts(nodes, domains, record.classes)]
    return part


def _configuration(record: Record) -> Section:
    recorded, name = record.config_file, record.config.method["name"]
    method = registry.known(name)
    rows = {"method": f"{name} (its code is not here)"}
    if method is not None:
        rows["method"] = f"{method.label}: {method.title} ({method.venue})"
        rows |= {"approximation": method.approximation} if method.approximation else {}
        rows |= {"sent in addition to weights": registry.travels(method), "stays on the node": method.private}
    rows |= {key: str(recorded.get(key, "unknown")) for key in ("command", "started")}
    rows["versions"] = ", ".join(f"{package} {number}" for package, number in recorded.get("versions", {}).items())
    rows["folder"] = record.folder.name
    return Section("configuration", "Configuration", tables=[Table("settings", [], list(rows.items()), kind="words")])

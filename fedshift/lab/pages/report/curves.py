"""Figures of the metrics of a run: accuracy, losses, seconds and bytes, by round and by domain."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedshift.run.html.drawing import (
    GRID,
    NAMED_DOMAINS,
    TEXT,
    Plot,
    canvas,
    domain_colour,
    domain_dash,
    domain_marker,
    legend_above,
    shown_rounds,
)
from fedshift_core.accuracies import average
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain
from fedshift_core.plural import capital, plural
from fedshift_core.rounds import round_name
from fedshift_core.wire.names import LOSS_TERM

Lines = Sequence[Mapping[str, Any]]
MARKED_ROUNDS = 15  # up to this number, each round has a marker
MEGABYTE = 1e6
#: By key of a line, the label of its axis, and its caption.
OF_DOMAINS = {
    "accuracy": ("{score} (%)", "{Score} by domain; dashed: their mean."),
    "test_loss": ("test loss", "Test loss by domain. It rises while the {score} stays where a model is too sure."),
}


def by_domain(lines: Lines, domains: Sequence[str], key: str, score: str) -> Plot | None:
    """Draw the score or the test loss of each domain over the rounds; None if no round has one."""
    scored = [line for line in lines if line.get(key)]
    if not scored:
        return None
    notes: list[str] = []
    label, caption = (text.format(score=score, Score=capital(score)) for text in OF_DOMAINS[key])
    figure, (axes,) = canvas(3.2)
    rounds = [line["round"] for line in scored]
    _plot_domains(axes, rounds, {d: np.array([line[key].get(d) for line in scored], float) for d in domains})
    if key == "accuracy":
        averages = np.array([average(line[key]) for line in scored], float)
        axes.plot(rounds, averages, color=TEXT, linestyle="--", marker=_marker(scored), label="AVG")
        notes = _gaps(lines, scored, averages)
    axes.set_ylabel(label)
    axes.grid(axis="y")
    shown_rounds(axes, lines[-1]["round"])
    legend_above(figure, axes)
    if lacking := [domain for domain, value in scored[-1][key].items() if value is None]:
        notes.append(f"Missing in {round_name(rounds[-1])}: {', '.join(lacking)}.")
    return Plot(figure, key, " ".join([caption, *notes]))


def _plot_domains(axes: Axes, rounds: Sequence[int], values: Mapping[str, Any]) -> None:
    """Draw a line for each domain; very many have one colour and no name."""
    many = len(values) > NAMED_DOMAINS
    for i, (domain, of) in enumerate(values.items()):
        marker = domain_marker(i) if len(rounds) <= MARKED_ROUNDS or np.isnan(of).any() else ""  # between two gaps
        look = {"color": GRID} if many else {"color": domain_colour(i), "linestyle": domain_dash(i), "label": domain}
        axes.plot(rounds, of, marker=marker, **look)


def _gaps(lines: Lines, scored: Lines, averages: Any) -> list[str]:
    """Return which rounds were not scored, or only in part."""
    notes = []
    if len(scored) < len(lines):
        notes.append(f"{len(scored)} of {plural(len(lines), 'round was', 'rounds were')} scored.")
    if partly := sum(line.get("evaluated_share", 1) < 1 for line in scored):
        notes.append(f"{partly} of them on a part of the test images only.")
    if np.isnan(averages).any():
        notes.append("A gap: no node could answer for the domain; AVG is missing then.")
    return notes


def losses(lines: Lines) -> Plot | None:
    """Draw up to ``MOST_SHOWN`` loss terms over the rounds, each in its own axes; None without losses."""
    terms = dict.fromkeys(name for line in lines for name in line["losses"])
    names = {name: plain(name.removeprefix(LOSS_TERM), MOST_NAME) for name in list(terms)[:MOST_SHOWN]}
    if not names:
        return None
    columns = 2 if len(names) > 1 else 1
    rows, rounds = -(-len(names) // columns), [line["round"] for line in lines]
    figure, axes = canvas(0.3 + 1.45 * rows, rows, columns, sharex=True)
    for place, (name, term) in zip(axes, names.items(), strict=False):
        values = np.array([line["losses"].get(name) for line in lines], float)
        place.plot(rounds, values, color=domain_colour(0), marker=_marker(lines))
        place.set_title(term, loc="left")
        place.grid(axis="y")
        place.locator_params(axis="y", nbins=4)
    shown_rounds(axes[0], rounds[-1])
    axes[0].set_xlabel("")
    for place in axes[len(names) :]:
        place.set_visible(False)
    for place in axes[max(0, len(names) - columns) : len(names)]:
        place.set_xlabel("round")
        place.tick_params(labelbottom=True)
    more = f" {len(terms) - len(names)} more are in metrics.jsonl." if len(terms) > len(names) else ""
    terms_text = ", ".join(names.values())
    return Plot(
        figure, "losses", f"Training loss and its weighted terms, means over a round's nodes: {terms_text}.{more}"
    )


def costs(lines: Lines) -> Plot:
    """Draw seconds and bytes of each round."""
    figure, (seconds, sent) = canvas(2.9, 2, 1, sharex=True)
    rounds = [line["round"] for line in lines]
    spent, up, down = ([line[key] for line in lines] for key in ("seconds", "bytes_up", "bytes_down"))
    up, down = ([size / MEGABYTE for size in sizes] for sizes in (up, down))
    seconds.plot(rounds, spent, color=domain_colour(0), marker=_marker(lines))
    seconds.set_ylabel("seconds")
    # The numbers are often equal: the wide line stays visible on both sides of the other.
    sent.plot(rounds, down, color=domain_colour(1), alpha=0.55, linewidth=5.5, label="to the nodes")
    sent.plot(rounds, up, color=domain_colour(2), marker=_marker(lines), label="from the nodes")
    sent.set_ylabel("MB")
    for axes in (seconds, sent):
        axes.grid(axis="y")
        axes.set_ylim(0)
        axes.locator_params(axis="y", nbins=4)
    legend_above(figure, sent)
    shown_rounds(sent, rounds[-1])
    title = (
        f"Seconds and megabytes by round: {sum(spent):.1f} s in {plural(len(lines), 'round')}, {sum(up):.1f} MB from "
        f"the nodes, {sum(down):.1f} MB to them."
    )
    return Plot(figure, "costs", f"{title} Bytes are those of weights and knowledge of training messages.")


def _marker(lines: Lines) -> str:
    return "." if len(lines) <= MARKED_ROUNDS else ""

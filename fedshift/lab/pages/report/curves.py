"""Figures of the metrics of a run: accuracy, losses, seconds and bytes, by round and by domain."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedshift.run.html.drawing import (
    GRID,
    NAMED_DOMAINS,
    ROW_NAME,
    TEXT,
    Plot,
    canvas,
    domain_colour,
    domain_dash,
    domain_marker,
    legend_above,
    short,
    shown_rounds,
)
from fedshift_core.accuracies import average, percent
from fedshift_core.features import score_name
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain
from fedshift_core.losses import Losses
from fedshift_core.plural import capital, plural
from fedshift_core.rounds import last_rounds, round_name
from fedshift_core.wire.names import LOSS_TERM

Lines = Sequence[Mapping[str, Any]]
MARKED_ROUNDS = 15  # up to this number, each round has a marker
MEGABYTE = 1e6
ACCURACY = score_name("classification")
#: By key of a line, the label of its axis, and its caption.
OF_DOMAINS = {
    "accuracy": ("{score} (%)", "{Score} by domain; dashed: their mean."),
    "test_loss": ("test loss", "Test loss by domain. It rises while the {score} stays where a model is too sure."),
}  # fmt: skip


def by_domain(lines: Lines, domains: Sequence[str], key: str, score: str = ACCURACY) -> Plot | None:
    """Draw the score or the test loss of each domain over the rounds; None if no round has one."""
    scored = [line for line in lines if line.get(key)]
    if not scored:
        return None
    label, caption = (text.format(score=score, Score=capital(score)) for text in OF_DOMAINS[key])
    figure, (axes,) = canvas(3.2)
    rounds = [line["round"] for line in scored]
    notes = _plot_domains(axes, rounds, {d: np.array([line[key].get(d) for line in scored], float) for d in domains})
    if key == "accuracy":
        averages = np.array([average(line[key]) for line in scored], float)
        axes.plot(rounds, averages, color=TEXT, linestyle="--", marker=_marker(scored), label="AVG")
        notes += _gaps(lines, scored, averages)
    axes.set_ylabel(label)
    axes.grid(axis="y")
    shown_rounds(axes, lines[-1]["round"])
    legend_above(figure, axes)
    if lacking := [domain for domain, value in scored[-1][key].items() if value is None]:
        notes.append(f"Missing in {round_name(rounds[-1])}: {', '.join(lacking)}.")
    return Plot(figure, key, " ".join([caption, *notes]))


def _plot_domains(axes: Axes, rounds: Sequence[int], values: Mapping[str, Any]) -> list[str]:
    """Draw a line for each domain; of very many, their range and the lines of the last round's extremes.

    Returns:
        What the caption must say of it.
    """
    notes: list[str] = []
    known = {domain: of[-1] for domain, of in values.items() if not np.isnan(of[-1])}
    if len(values) > NAMED_DOMAINS and known:
        each = np.ma.masked_invalid(list(values.values()))
        axes.fill_between(rounds, each.min(axis=0), each.max(axis=0), color=GRID, alpha=0.3, linewidth=0)
        values = {
            domain: values[domain] for domain in (min(known, key=known.__getitem__), max(known, key=known.__getitem__))
        }
        notes = [f"The band holds all {plural(len(each), 'domain')}; named are the lowest and the highest at the end."]
    for i, (domain, of) in enumerate(values.items()):
        marker = domain_marker(i) if len(rounds) <= MARKED_ROUNDS or np.isnan(of).any() else ""  # between two gaps
        axes.plot(rounds, of, color=domain_colour(i), linestyle=domain_dash(i), marker=marker, label=domain)
    return notes


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


def bars(results: Mapping[str, Any], score: str = ACCURACY) -> Plot | None:
    """Draw the summary's score of each domain, with AVG and STD unless they are missing; None without a number."""
    domains, overall = results["domains"], Losses.of(results).overall(results["domains"])
    avg, std, count = overall.avg, overall.std, len(domains)
    if not any(value is not None for value in domains.values()):
        return None
    figure, (axes,) = canvas(0.7 + 0.3 * (count + 1))
    for i, value in enumerate(domains.values()):
        axes.barh(i, value or 0.0, height=0.68, color=domain_colour(i))
        axes.text((value or 0.0) + 1, i, percent(value), va="center")
    length, half = avg or 0.0, std or 0.0
    reach = None if std is None else [[min(std, length)], [min(std, 100 - length)]]  # accuracies are within 0 and 100
    axes.barh(count, length, height=0.68, color=GRID, xerr=reach, ecolor=TEXT, capsize=4)
    spread = "" if std is None else f" ± {std:.1f}"
    axes.text(min(length + half, 100) + 2.5, count, percent(avg) + spread, va="center")
    axes.set_yticks(range(count + 1), [short(name, ROW_NAME) for name in (*domains, "AVG")])
    axes.invert_yaxis()
    axes.set_xlim(0, 125)  # room for the numbers
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(f"{score} (%)")
    axes.tick_params(axis="y", length=0)
    rounds = last_rounds(results["averaged_rounds"], "scored ")
    over = " AVG ± STD: over the domains (ddof = 1)." if spread else ""
    return Plot(figure, "bars", f"Mean {score} of the {rounds}.{over}")


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

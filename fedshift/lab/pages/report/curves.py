"""Figures of the metrics of a run: accuracy, losses, seconds and bytes, by round and by domain."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from fedshift.run.html.drawing import (
    GRID,
    NAMED_DOMAINS,
    ROW_NAME,
    TEXT,
    Drawing,
    canvas,
    domain_colour,
    domain_dash,
    domain_marker,
    finish,
    legend_above,
    short,
    shown_rounds,
)  # fmt: skip
from fedshift_core.accuracies import average, percent
from fedshift_core.limits import MOST_NAME, MOST_SHOWN, plain
from fedshift_core.losses import Losses
from fedshift_core.plural import plural
from fedshift_core.rounds import INITIAL_MODEL, last_rounds
from fedshift_core.wire.names import LOSS_TERM

Lines = Sequence[Mapping[str, Any]]
MARKED_ROUNDS = 15  # up to this number, each round has a marker
MEGABYTE = 1e6


def accuracy(lines: Lines, domains: Sequence[str]) -> Drawing | None:
    """Draw top-1 accuracy of each domain and their mean over the rounds; None without scores."""
    scored = [line for line in lines if line["accuracy"]]
    if not scored:
        return None
    figure, (axes,) = canvas(3.2)
    rounds = [line["round"] for line in scored]
    several = len(scored) <= MARKED_ROUNDS
    band = _by_domain(axes, scored, "accuracy", domains)
    averages = [_number(average(line["accuracy"])) for line in scored]
    axes.plot(rounds, averages, color=TEXT, linestyle="--", marker="." if several else "", label="AVG")
    partly = [line["round"] for line in scored if line.get("evaluated_share", 1) < 1]
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y")
    shown_rounds(axes, lines[-1]["round"])
    legend_above(figure, axes)
    last = ", ".join(f"{name} {percent(value)}" for name, value in scored[-1]["accuracy"].items())
    when = f"over {plural(len(lines), 'round')}; in round {rounds[-1]}" if rounds[-1] else f"of the {INITIAL_MODEL}"
    title = f"Top-1 accuracy by domain {when}: {last}."
    notes = band
    if len(scored) < len(lines):
        notes.append(f"{len(scored)} of {plural(len(lines), 'round was', 'rounds were')} scored.")
    if partly:
        notes.append(f"{len(partly)} of them on a part of the test images only.")
    if any(math.isnan(value) for value in averages) or any(None in line["accuracy"].values() for line in scored):
        notes.append("A gap: no node could answer for the domain; AVG is missing then.")
    return finish(figure, "accuracy", title, " ".join(["Top-1 accuracy by domain; dashed: their mean.", *notes]))


def test_loss(lines: Lines, domains: Sequence[str]) -> Drawing | None:
    """Draw the test loss of each domain over the rounds; None if no round has one."""
    scored = [line for line in lines if line.get("test_loss")]
    if not scored:
        return None
    figure, (axes,) = canvas(3.2)
    band = _by_domain(axes, scored, "test_loss", domains)
    axes.set_ylabel("test loss")
    axes.grid(axis="y")
    shown_rounds(axes, lines[-1]["round"])
    legend_above(figure, axes)
    last = scored[-1]
    text = ", ".join(f"{name} {value:.3g}" for name in domains if (value := last["test_loss"].get(name)) is not None)
    when = f"over the rounds; in round {last['round']}" if last["round"] else f"of the {INITIAL_MODEL}"
    title = f"Test loss by domain {when}: {text or 'missing'}."
    caption = (
        "Mean cross-entropy on the test images by domain. It rises while accuracy stays where a model is too sure."
    )
    return finish(figure, "test-loss", title, " ".join([caption, *band]))


def _by_domain(axes: Axes, scored: Lines, key: str, domains: Sequence[str]) -> list[str]:
    """Draw a line for each domain; of very many, their range and the lines of the last round's extremes.

    Returns:
        What the caption must say of it.
    """
    rounds = [line["round"] for line in scored]
    known = {domain: value for domain in domains if (value := scored[-1][key].get(domain)) is not None}
    notes: list[str] = []
    if len(domains) > NAMED_DOMAINS and known:
        each = [[value for domain in domains if (value := line[key].get(domain)) is not None] for line in scored]
        low, high = ([pick(values, default=math.nan) for values in each] for pick in (min, max))
        axes.fill_between(rounds, low, high, color=GRID, alpha=0.3, linewidth=0)
        domains = list(dict.fromkeys((min(known, key=known.__getitem__), max(known, key=known.__getitem__))))
        number = plural(len(each[-1]), "domain")
        notes = [f"The band holds all {number}; named are the lowest and the highest at the end."]
    for i, domain in enumerate(domains):
        values = [_number(line[key].get(domain)) for line in scored]
        # A value between two gaps has no line.
        marker = domain_marker(i) if len(scored) <= MARKED_ROUNDS or any(map(math.isnan, values)) else ""
        axes.plot(rounds, values, color=domain_colour(i), linestyle=domain_dash(i), marker=marker, label=domain)
    return notes


def bars(results: Mapping[str, Any]) -> Drawing | None:
    """Draw the summary's accuracy of each domain, with AVG and STD unless they are missing; None without a number."""
    domains, overall = results["domains"], Losses.of(results).overall(results["domains"])
    avg, std = overall.avg, overall.std
    if not any(value is not None for value in domains.values()):
        return None
    count = len(domains)
    figure, (axes,) = canvas(0.7 + 0.3 * (count + 1))
    names = [*domains, "AVG"]
    for i, value in enumerate(domains.values()):
        axes.barh(i, value or 0.0, height=0.68, color=domain_colour(i))
        axes.text((value or 0.0) + 1, i, percent(value), va="center")
    length, half = avg or 0.0, std or 0.0
    reach = None if std is None else [[min(std, length)], [min(std, 100 - length)]]  # accuracies are within 0 and 100
    axes.barh(count, length, height=0.68, color=GRID, xerr=reach, ecolor=TEXT, capsize=4)
    shown = percent(avg) if std is None else f"{percent(avg)} ± {std:.1f}"
    axes.text(min(length + half, 100) + 2.5, count, shown, va="center")
    axes.set_yticks(range(count + 1), [short(name, ROW_NAME) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 125)  # room for the numbers
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("accuracy (%)")
    axes.tick_params(axis="y", length=0)
    text = ", ".join(f"{name} {percent(value)}" for name, value in domains.items())
    rounds = last_rounds(results["averaged_rounds"], "scored ")
    also = "" if std is None else f", STD {std:.1f}"
    title = f"Mean accuracy of the {rounds}: {text}; AVG {percent(avg)}{also}."
    over = "" if std is None else " AVG ± STD: over the domains (ddof = 1)."
    caption = f"Mean of the {rounds}.{over}"
    return finish(figure, "bars", title, caption)


def losses(lines: Lines) -> Drawing | None:
    """Draw up to ``MOST_SHOWN`` loss terms over the rounds, each in its own axes; None without losses."""
    terms = dict.fromkeys(name for line in lines for name in line["losses"])
    names = list(terms)[:MOST_SHOWN]  # a run of an earlier version accepted any number from its nodes
    if not names:
        return None
    columns = 2 if len(names) > 1 else 1
    rows = -(-len(names) // columns)
    figure, axes = canvas(0.3 + 1.45 * rows, rows, columns, sharex=True)
    marker = "." if len(lines) <= MARKED_ROUNDS else ""
    rounds = [line["round"] for line in lines]
    for place, name in zip(axes, names, strict=False):
        values = [_number(line["losses"].get(name)) for line in lines]
        place.plot(rounds, values, color=domain_colour(0), marker=marker)
        place.set_title(_term(name), loc="left")
        place.grid(axis="y")
        shown_rounds(place, rounds[-1])
        place.set_xlabel("")
        place.locator_params(axis="y", nbins=4)
    for place in axes[len(names) :]:
        place.set_visible(False)
    for place in axes[max(0, len(names) - columns) : len(names)]:
        place.set_xlabel("round")
        place.tick_params(labelbottom=True)
    last = lines[-1]["losses"]
    ended = ", ".join(f"{_term(name)} {last[name]:.3g}" for name in last if name in names and last[name] is not None)
    title = f"Training loss and its terms over the rounds; in the last round: {ended}."
    caption = "Training loss and its weighted terms, means over the nodes of a round."
    more = f" {len(terms) - len(names)} more are in metrics.jsonl." if len(terms) > len(names) else ""
    return finish(figure, "losses", title, caption + more)


def _term(name: str) -> str:
    return plain(name.removeprefix(LOSS_TERM), MOST_NAME)


def costs(lines: Lines) -> Drawing:
    """Draw seconds and bytes of each round."""
    figure, (seconds, sent) = canvas(2.9, 2, 1, sharex=True)
    rounds = [line["round"] for line in lines]
    marker = "." if len(lines) <= MARKED_ROUNDS else ""
    seconds.plot(rounds, [line["seconds"] for line in lines], color=domain_colour(0), marker=marker)
    seconds.set_ylabel("seconds")
    up, down = ([line[key] / MEGABYTE for line in lines] for key in ("bytes_up", "bytes_down"))
    # The numbers are often equal: the wide line stays visible on both sides of the other.
    sent.plot(rounds, down, color=domain_colour(1), alpha=0.55, linewidth=5.5, label="to the nodes")
    sent.plot(rounds, up, color=domain_colour(2), marker=marker, label="from the nodes")
    sent.set_ylabel("MB")
    for axes in (seconds, sent):
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=4)
    sent.margins(y=0.25)
    sent.set_ylim(0, max(*up, *down, 1e-9) * 1.5)  # room for the legend
    sent.legend(loc="upper left", ncols=2, handlelength=1.6)
    shown_rounds(sent, rounds[-1])
    spent = sum(line["seconds"] for line in lines)
    title = (
        f"Seconds and megabytes by round: {spent:.1f} s in {plural(len(lines), 'round')}, {sum(up):.1f} MB from "
        f"the nodes, {sum(down):.1f} MB to them."
    )
    return finish(figure, "costs", title, f"{title} Bytes are those of weights and knowledge of training messages.")


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)

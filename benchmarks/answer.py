"""Draws the pictures of docs/results: accuracy in-domain and held out by method, with intervals, and what each costs.

    python benchmarks/answer.py              # docs/images: answer-pacs.png, answer-digits.png, costs-pretrained.png
    python benchmarks/answer.py --in-domain DIR... --held-out DIR... --costs FILE --output PICTURE.png

A folder holds finished runs, or what is kept of them. A row of both comparisons with two seeds or more is drawn: its
mean and the 95 % interval by Student's t over seeds; hollow where each node's own model is scored. Costs are multiples
of FedAvg's, from ``fedshift costs --json``.
"""

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from fedshift.lab.tables.compare import compare
from fedshift.run.html.drawing import domain_colour, style
from fedshift_core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
COSTS = "costs-pretrained.png"  # the first question's accuracy against seconds
BASELINE, FEWEST_SEEDS, CONFIDENCE = "fedavg", 2, 0.95
WIDTH, LINE, AROUND, DPI = 8.0, 0.27, 1.1, 200  # inches: of the picture, of a row, of title and axes; dots an inch
BAR, ROOM = 0.36, 0.6  # of rows: height of a bar of costs, of which a row has two; room of the key below the bars


@dataclass(frozen=True)
class Question:
    """A picture: folders under docs/results and the file that is drawn."""

    in_domain: tuple[str, ...]
    held_out: tuple[str, ...]
    costs: str
    output: str


QUESTIONS = (
    Question(
        ("pacs-pretrained", "pacs-pretrained-field", "pacs-pretrained-today"),
        ("pacs-pretrained-out", "pacs-pretrained-out-today", "pacs-pretrained-out-own"),
        "costs-pacs-pretrained.json",
        "answer-pacs.png",
    ),
    Question(
        ("digits-cnn", "digits-cnn-field"), ("out-digits-cnn",), "costs-digits-small-cnn.json", "answer-digits.png"
    ),
)


@dataclass(frozen=True)
class Accuracy:
    """Average accuracy of a row by seed, and if it is of the nodes' own models."""

    seeds: tuple[float, ...]
    personal: bool


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes of a local round."""

    seconds: float
    sent: float


def accuracies(folders: Sequence[Path], *, held_out: bool) -> dict[str, Accuracy]:
    """Return the accuracy of each row."""
    table = json.loads(compare(folders, held_out=held_out).json())["rows"]
    seeds = {row["row"]: tuple(each["AVG"] for each in row["by_seed"].values()) for row in table}
    return {row["row"]: Accuracy(seeds[row["row"]], row["scored"] != "global") for row in table}


def costs(file: Path) -> dict[str, Cost]:
    """Return what a round of each method costs, by method; of several forms of a method the first."""
    result: dict[str, Cost] = {}
    for cost in json.loads(file.read_text(encoding="utf-8"))["costs"]:
        result.setdefault(cost["label"].split()[0], Cost(cost["seconds"], cost["bytes_down"] + cost["bytes_up"]))
    return result


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval."""
    error = stats.sem(values)
    return float(sum(values) / len(values)), float(error * stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))


def rows(tables: Sequence[Mapping[str, Accuracy]]) -> list[str]:
    """Return the rows that every table has with enough seeds, the most accurate of the first table first."""
    first = tables[0]
    shared = [row for row in first if all(row in table for table in tables)]
    enough = [row for row in shared if all(len(table[row].seeds) >= FEWEST_SEEDS for table in tables)]
    return sorted(enough, key=lambda row: -interval(first[row].seeds)[0])


def draw(tables: Mapping[str, Mapping[str, Accuracy]], paid: Mapping[str, Cost]) -> Figure:
    """Return the picture: a panel for each table, and one of costs."""
    names = rows(list(tables.values()))
    with style():
        figure = Figure(figsize=(WIDTH, AROUND + LINE * len(names)))
        panels = figure.subplots(1, len(tables) + 1, sharey=True)
        for index, (title, table) in enumerate(tables.items()):
            _points(panels[index], title, [table[name] for name in names], table[BASELINE])
        _bars(panels[-1], [paid.get(name.split()[0]) for name in names], paid[BASELINE])
        panels[0].set_yticks(range(len(names)), [name.split()[0] for name in names])
        panels[0].set_ylim(len(names) + ROOM, -0.5)
        figure.canvas.draw()  # settles the layout in this style
    return figure


def _points(panel: Axes, title: str, values: Sequence[Accuracy], baseline: Accuracy) -> None:
    """Draw the mean and interval of each row, and a line through FedAvg's mean."""
    panel.axvline(interval(baseline.seeds)[0], color=domain_colour(1), linestyle=":", zorder=0)
    for place, value in enumerate(values):
        mean, half = interval(value.seeds)
        fill = "white" if value.personal else domain_colour(0)
        panel.errorbar(mean, place, xerr=half, fmt="o", color=domain_colour(0), mfc=fill, markersize=6, capsize=3)
    panel.set_title(title)
    panel.set_xlabel("accuracy, %")
    panel.grid(axis="x")


def _bars(panel: Axes, paid: Sequence[Cost | None], baseline: Cost) -> None:
    """Draw seconds and bytes of each row as multiples of FedAvg's."""
    for label, colour, shift, part in (("seconds", 2, -BAR / 2, "seconds"), ("bytes", 3, BAR / 2, "sent")):
        shares = [getattr(cost, part) / getattr(baseline, part) if cost else 0.0 for cost in paid]
        places = [index + shift for index in range(len(paid))]
        panel.barh(places, shares, BAR, color=domain_colour(colour), label=label)
    panel.axvline(1, color=domain_colour(1), linestyle=":", zorder=0)
    panel.set_title("cost of a round")
    panel.set_xlabel("times FedAvg's")
    panel.legend(loc="lower right", ncols=2, columnspacing=1, handlelength=1, frameon=True, framealpha=1, edgecolor="w")
    panel.grid(axis="x")
    panel.set_axisbelow(True)


def write(in_domain: Sequence[Path], held_out: Sequence[Path], paid: Path, picture: Path) -> None:
    """Draw one picture into a file."""
    tables = {
        "in-domain": accuracies(in_domain, held_out=False),
        "domain held out": accuracies(held_out, held_out=True),
    }
    save(draw(tables, costs(paid)), picture)


def save(figure: Figure, picture: Path) -> None:
    """Write a picture on white, which both themes of a page show."""
    with style():
        figure.savefig(picture, dpi=DPI, facecolor="white")
    with Image.open(picture) as drawn:  # few colours: a third of the bytes
        small = drawn.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)
    print(picture)


def main(words: Sequence[str] | None = None) -> None:
    """Draw the pictures of docs/results, or one of the folders that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-domain", type=Path, nargs="+", help="folders of runs whose test domains have nodes")
    parser.add_argument("--held-out", type=Path, nargs="+", help="folders of runs that leave out one domain each")
    parser.add_argument("--costs", type=Path, help="what `fedshift costs ... --json` printed")
    parser.add_argument("--output", type=Path, help="picture to write")
    given = vars(parser.parse_args(words))
    if all(given.values()):
        try:
            write(*given.values())
        except ConfigError as error:
            parser.error(str(error))
    elif any(given.values()):
        parser.error("give all four options, or none")
    else:
        os.chdir(ROOT)  # names of runs in messages begin with docs/results
        for question in QUESTIONS:
            write(*_paths(question))
        in_domain, _, paid, picture = _paths(QUESTIONS[0])
        save(compare(in_domain, scored="global", costs=paid).figure("tradeoff-seconds"), picture.with_name(COSTS))


def _paths(question: Question) -> tuple[Any, ...]:
    """Return the arguments of :func:`write` for a picture of docs/results."""
    results, images = Path("docs", "results"), Path("docs", "images")
    folders = [[results / name for name in names] for names in (question.in_domain, question.held_out)]
    return *folders, results / question.costs, images / question.output


if __name__ == "__main__":
    main()

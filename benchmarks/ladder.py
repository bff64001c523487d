"""Draws the ladder of docs/results: accuracy against seconds of one core, by method and frozen network.

    python benchmarks/ladder.py [--output docs/images/ladder-pacs.png]

Seconds: features of all training images, once, and the local rounds of all nodes one after the other. A bar is the 95 %
interval by Student's t over seeds. Lines follow the rounds of three methods, where all domains have nodes.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import alone  # noqa: F401  # lets a checkout that is not installed run
import answer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedshift.run.html.drawing import domain_colour, style

RESULTS = answer.ROOT / "docs" / "results"
IN_DOMAIN = [
    "pacs-pretrained",
    "pacs-pretrained-today",
    "pacs-pretrained-closed",
    "pacs-pretrained-20-t3a",
    "pacs-pretrained-closed-t3a",
    "pacs-lite1",
    "pacs-lite1-20",
    "pacs-lite1-20-t3a",
    "pacs-lite1-t3a",
    "pacs-lite2",
    "pacs-lite2-20",
    "pacs-lite2-20-t3a",
    "pacs-lite2-t3a",
]
HELD_OUT = [
    "pacs-pretrained-out",
    "pacs-pretrained-out-today",
    "pacs-pretrained-out-own",
    "pacs-pretrained-out-closed",
    "pacs-pretrained-out-20-t3a",
    "pacs-pretrained-out-t3a",
    "pacs-pretrained-out-closed-t3a",
    "pacs-lite1-out",
    "pacs-lite1-out-20",
    "pacs-lite1-out-20-t3a",
    "pacs-lite1-out-t3a",
    "pacs-lite2-out",
    "pacs-lite2-out-20",
    "pacs-lite2-out-20-t3a",
    "pacs-lite2-out-t3a",
]
COSTS = RESULTS / "costs-pacs-pretrained.json"
#: Methods in the order of the key, and networks with their markers.
METHODS = ("fedavg", "scaffold", "ggeur", "i2pfl", "local", "fed3r", "fedcgs")
LINES = ("fedavg", "scaffold", "ggeur")
NETWORKS = {"lite0": "o", "lite1": "^", "lite2": "s"}
#: Processor seconds of an image: python benchmarks/frozen.py --parts features --lite lite2
ENCODER = {"lite0": 0.0038, "lite1": 0.0049, "lite2": 0.0052}
WIDTH, HEIGHT = 8.0, 3.6  # inches
TICKS = (20, 50, 100, 200, 400)  # seconds
ALL, HELD = "every domain has nodes", "domain held out"


@dataclass
class Point:
    """A method on a network.

    Attributes:
        by_seed: Accuracies by seed; of a held-out domain's runs one of each.
        seconds: Of each run.
        encoder: Seconds of them that the features of a run take.
        curves: Accuracy by round, of each run.
    """

    by_seed: dict[int, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    seconds: list[float] = field(default_factory=list)
    encoder: float = 0.0
    curves: list[dict[str, float]] = field(default_factory=list)

    def accuracies(self) -> list[float]:
        """Return the average accuracy of each seed that has every domain."""
        most = max(map(len, self.by_seed.values()))
        return [sum(each.values()) / most for each in self.by_seed.values() if len(each) == most]


Points = dict[tuple[str, str, bool], Point]


def points(folders: Iterable[str], paid: Mapping[str, answer.Cost]) -> Points:
    """Return what kept runs come to, by method, network, and whether T3A adapts to test images."""
    found: Points = defaultdict(Point)
    for file in sorted(path for folder in folders for path in (RESULTS / folder).glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        resolved = run["config"]["resolved"]
        method, adapted = run["method"], resolved["adapt"]["name"] == "t3a"
        if method not in METHODS or adapted < (resolved["adapt"]["name"] != "none"):
            continue
        _add(found[method, resolved["model"]["name"][-5:], adapted], run, paid[method].seconds)
    return found


def _add(point: Point, run: Mapping[str, Any], local: float) -> None:
    """Add a run, a local round of which takes so many seconds."""
    resolved = run["config"]["resolved"]
    held = resolved["allocation"]["held_out"]
    point.by_seed[run["seed"]][held[0] if held else ""] = run["domains"][held[0]] if held else run["avg"]
    images = sum(node["num_examples"] for node in run["nodes"])
    point.encoder = ENCODER[resolved["model"]["name"][-5:]] * images
    point.seconds.append(point.encoder + run["rounds"] * len(run["nodes"]) * local)
    point.curves.append(run["curve"])


def draw(tables: Mapping[str, Points]) -> Figure:
    """Return the picture, a panel for each table."""
    with style():
        figure = Figure(figsize=(WIDTH, HEIGHT))
        panels = figure.subplots(1, len(tables))
        for panel, (title, table) in zip(panels, tables.items(), strict=True):
            for (method, network, adapted), point in table.items():
                _place(panel, method, network, point, adapted=adapted)
            if title == ALL:  # the kept curve of a held-out domain's run is of all domains
                for method in LINES:
                    _line(panel, method, table[method, "lite0", False])
            panel.set_xscale("log")
            panel.set_xticks(TICKS, [str(seconds) for seconds in TICKS])
            panel.minorticks_off()
            panel.set_xlim(15, 450)
            panel.set_title(title)
            panel.set_xlabel("seconds of one core")
            panel.grid(axis="both")
        panels[0].set_ylabel("accuracy, %")
        networks = {network for table in tables.values() for _, network, _ in table}
        figure.legend(handles=_key(panels[0], networks), loc="outside right center", handlelength=1)
        figure.canvas.draw()
    return figure


def _place(panel: Axes, method: str, network: str, point: Point, *, adapted: bool) -> None:
    """Draw a point with its interval, hollow where T3A adapts."""
    colour, values = domain_colour(METHODS.index(method)), point.accuracies()
    mean, half = answer.interval(values) if len(values) >= answer.FEWEST_SEEDS else (values[0], 0.0)
    seconds = sum(point.seconds) / len(point.seconds)
    fill = "white" if adapted else colour
    panel.errorbar(seconds, mean, yerr=half or None, fmt=NETWORKS[network], color=colour, mfc=fill, markersize=5, lw=1)


def _line(panel: Axes, method: str, point: Point) -> None:
    """Draw the mean accuracy of runs by their seconds so far; the features come before the first round."""
    shared = [number for number in point.curves[0] if all(number in curve for curve in point.curves)]
    means = [sum(curve[number] for curve in point.curves) / len(point.curves) for number in shared]
    whole = sum(point.seconds) / len(point.seconds)
    rounds = [int(number) / int(shared[-1]) for number in shared]
    panel.plot(
        [point.encoder + (whole - point.encoder) * part for part in rounds],
        means,
        color=domain_colour(METHODS.index(method)),
    )


def _key(panel: Axes, networks: Collection[str]) -> list[Any]:
    """Return the entries of the key: methods by colour, the networks that are there by marker, T3A hollow."""
    named = [(name, "o", domain_colour(at), None) for at, name in enumerate(METHODS)]
    named += [(name, marker, "grey", None) for name, marker in NETWORKS.items() if name in networks]
    named += [("with T3A", "o", "grey", "white")]
    return [
        panel.plot([], [], marker, color=colour, mfc=fill or colour, markersize=7, label=name)[0]
        for name, marker, colour, fill in named
    ]


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=answer.ROOT / "docs" / "images" / "ladder-pacs.png")
    given = parser.parse_args()
    paid = answer.costs(COSTS)
    answer.save(draw({ALL: points(IN_DOMAIN, paid), HELD: points(HELD_OUT, paid)}), given.output)


if __name__ == "__main__":
    main()

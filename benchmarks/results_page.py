"""Writes the tables of docs/results again from the kept runs, in place.

    python benchmarks/results_page.py              # all pages, and the sentences of docs/methods
    python benchmarks/results_page.py in-domain    # docs/results/in-domain.md alone

``docs/results/sources.yaml`` lists the tables of each page: the command whose rows and fields they show, the columns
and the rows. The first line of a table on a page says which one it is; the lines below it are written. A page prints
the command of each table. ``costs NAME`` stands for the file ``costs-NAME.json`` there, as multiples of FedAvg's, and
``rounds FOLDER...`` for the kept accuracies after a round.

The pages of docs/methods repeat a method's row of the digits in a sentence ("Three seeds on real digits"), which the
script writes too.
"""

import functools
import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from fedshift import cli

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SOURCES: dict[str, dict[str, Any]] = yaml.safe_load((RESULTS / "sources.yaml").read_text(encoding="utf-8"))
P_VALUES, SMALLEST_P = ("p", "p (Holm)"), 0.001
DIFFERENCES = ("difference", "there", "here")  # fields that have a sign
#: Commands whose rows the pages of methods repeat, and the sentence that does so, without its numbers.
REPEATED = (
    "compare digits-cnn digits-cnn-field --scored global",
    "compare digits-cnn digits-cnn-field --scored personal",
)
SENTENCE = re.compile(
    r"^(Three seeds on real digits \(`digits-small-cnn`, 40 rounds\): )[^\[\n]*"
    r"(\[results\]\(\.\./results/in-domain\.md#digits\))",
    re.M,
)

Rows = Mapping[str, Mapping[str, Any]]


@functools.cache
def rows(command: str) -> Rows:
    """Return the rows of a command's JSON by name; a folder may leave out ``docs/results/``.

    Raises:
        SystemExit: If the command fails, with its message.
    """
    name, *words = shlex.split(command)
    if name == "costs":
        return _costs(RESULTS / f"costs-{words[0]}.json")
    if name == "rounds":
        return _rounds(words)
    folders = [f"docs/results/{word}" if (RESULTS / word).is_dir() else word for word in words] or ["docs/results"]
    done = CliRunner().invoke(cli.app, [name, *folders, "--json"])
    if done.exit_code:
        raise SystemExit(f"fedshift {command}:\n{done.output}")
    content = json.loads(done.stdout)
    if name == "claims":
        claims = (row | {"here std": row["here_std"]} for row in content["claims"])
        return {f"{row['table']} {row['runs'].removesuffix(' †')}": row for row in claims}
    return {row["row"] + (f" [{row['group']}]" if row["group"] else ""): row for row in content["rows"]}


def _costs(file: Path) -> Rows:
    """Return seconds and bytes of a local round as multiples of FedAvg's, and seconds of all nodes in all rounds.

    Of two rows of a name it is the first.
    """
    paid: dict[str, tuple[float, float, float]] = {}
    for row in json.loads(file.read_text(encoding="utf-8"))["costs"]:
        run = row["seconds"] * row["nodes"] * max(row["rounds"])
        paid.setdefault(row["label"], (row["seconds"], row["bytes_down"] + row["bytes_up"], run))
    seconds, sent, _ = paid["fedavg"]
    return {
        name: {"seconds": own / seconds, "bytes": moved / sent, "MB": moved / 1e6, "run": run}
        for name, (own, moved, run) in paid.items()
    }


def _rounds(folders: Sequence[str]) -> Rows:
    """Return the average accuracy after each round that every seed has, by method; a seed counts once."""
    by_seed: dict[str, dict[int, dict[str, float]]] = {}
    for file in sorted(path for folder in folders for path in (RESULTS / folder).glob("*.json")):
        run = json.loads(file.read_text(encoding="utf-8"))
        by_seed.setdefault(run["method"], {}).setdefault(run["seed"], run["curve"])
    result: dict[str, dict[str, float]] = {}
    for method, curves in by_seed.items():
        after = {number: [curve.get(number) for curve in curves.values()] for number in next(iter(curves.values()))}
        whole = {number: each for number, each in after.items() if None not in each}
        result[method] = {number: statistics.mean(each) for number, each in whole.items()}
        result[method] |= {f"{number} std": statistics.stdev(each) for number, each in whole.items() if len(each) > 1}
    return result


def shown(row: Mapping[str, Any], field: str, digits: int = 1) -> str:
    """Return a number of a row as a table has it: with its spread, with a sign where it is a difference."""
    value, spread = row.get(field), row.get(f"{field} std")
    if value is None or isinstance(value, str):
        return value or ""
    if field in P_VALUES:
        return f"<{SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"
    mean = f"{value:{'+' if field in DIFFERENCES else ''}.{digits}f}"
    return mean if spread is None else f"{mean} ± {spread:.{digits}f}"


def head(table: Mapping[str, Any]) -> str:
    """Return the first line of a table."""
    return f"| {' | '.join((table['of'], *table['columns']))} |"


def made(table: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table."""
    lines = [head(table), f"|---|{'--:|' * len(table['columns'])}"]
    for label, names in table["rows"].items():
        cells = [_cell(table, column, names) for column in table["columns"]]
        lines.append(f"| {' | '.join((str(label), *cells))} |")
    return lines


def _cell(table: Mapping[str, Any], column: str, names: str | Mapping[str, str]) -> str:
    """Return a cell; a row that has other names in other columns lists them by column."""
    source = table["columns"][column]
    field, command = (source, table["command"]) if isinstance(source, str) else (source["field"], source["command"])
    name = names if isinstance(names, str) else names.get(column)
    return "" if name is None else shown(rows(command)[name], field, table.get("digits", 1))


def refreshed(page: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the text of a page with its tables as the kept runs give them now.

    Raises:
        SystemExit: If the page has not each table once.
    """
    for table in tables:
        place = re.compile(rf"^{re.escape(head(table))}\n(?:\|[^\n]*\n)*", re.M)
        if len(place.findall(page)) != 1:
            raise SystemExit(f"not once on the page: {head(table)}")
        lines = "\n".join(made(table)) + "\n"
        page = place.sub(lambda _, lines=lines: lines, page)  # type: ignore[misc]
    return page


def method_pages() -> list[Path]:
    """Return the pages of methods that repeat a row."""
    methods = sorted((ROOT / "docs" / "methods").glob("*.md"))
    return [page for page in methods if SENTENCE.search(page.read_text(encoding="utf-8"))]


def repeated(method: str, page: str, tables: Sequence[Rows]) -> str:
    """Return the text of a method's page with its row of the tables in a sentence.

    Raises:
        SystemExit: If the method has not one row there.
    """
    own = [row for table in tables for row in table.values() if row["method"] == method]
    if len(own) != 1:
        raise SystemExit(f"docs/methods/{method}.md: {len(own)} rows")
    average, difference, p, holm = (shown(own[0], field, 2) for field in ("AVG", "difference", "p", "p (Holm)"))
    fedavg = shown(tables[0]["fedavg"], "AVG", 2)
    words = f"{average}, FedAvg {fedavg}, difference {difference} (p = {p}, by Holm {holm}): "
    return SENTENCE.sub(lambda match: match[1] + words + match[2], page)


def main(names: Sequence[str]) -> None:
    """Write the named pages again, or all."""
    for name in [f"{name}.md" for name in names] or SOURCES:
        page, tables = RESULTS / name, SOURCES[name].get("tables", [])
        page.write_text(refreshed(page.read_text(encoding="utf-8"), tables), encoding="utf-8")
        print(f"{name}: {len(tables)} tables", flush=True)
    for page in [] if names else method_pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(repeated(page.stem, text, [rows(command) for command in REPEATED]), encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)  # the commands name docs/results
    main(sys.argv[1:])

"""docs/results: tables and prose have the numbers of the kept runs, each kept run a command, the pictures their rows.

docs/results/sources.yaml says where the numbers come from.
"""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT, load_benchmark

pytestmark = pytest.mark.usefixtures("kept_runs_once")

SCRIPT = load_benchmark("results_page")
RESULTS = ROOT / "docs" / "results"
KEPT = sorted(RESULTS.glob("*/*.json"))
#: Folders that the commands on the pages read.
FOLDER = re.compile(r"docs/results/([\w-]+)(?=[\s`]|$)")
#: A number with its spread; not a part of a name such as ResNet-10 or T3A.
NUMBER = re.compile(r"(?<![\w.+-])([+-]?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?(?![\w-])")
WORDS = ("no", "one", "two", "three", "four")
CONDITION = re.compile(r"(\w+(?: \(Holm\))?)(!=|=|<)(.*?)(?= \w+(?: \(Holm\))?(?:!=|=|<)|$)")


def folders(text: str) -> set[str]:
    """Return the folders of kept runs that a page's commands read."""
    commands = re.findall(r"(?m)^ {4,}fedshift ((?:compare|claims) .*)$", text)
    return {name for command in commands for name in FOLDER.findall(command) if (RESULTS / name).is_dir()}


def blocks(page: str, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paragraphs, items and rows of tables of a page: no commands, no tables that the script writes."""
    for table in tables:
        page = re.sub(rf"(?m)^{re.escape(SCRIPT.head(table))}\n(?:\|[^\n]*\n)+", "", page)
    page = re.sub(r"(?m)^ {4,}(?:fedshift|python) .*$|`[^`]*`", "", page)
    parts = re.split(r"\n\s*\n|\n(?=\||- |\d+\. )", page)
    return [re.sub(r"^\d+\. ", "", " ".join(part.split())) for part in parts if part.strip()]


def in_prose(block: str) -> str:
    """Return a block without the addresses of its links."""
    return re.sub(r"\]\([^)]*\)", "]", block)


def meets(row: Mapping[str, Any], condition: tuple[str, str, str]) -> bool:
    """Return whether a row meets a condition of ``count``."""
    key, sign, right = condition
    value = row.get(key)
    if sign == "<":
        return value is not None and abs(value) < float(right)
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return (text == right) is (sign == "=")


def values(command: str, source: str) -> tuple[float, float | None]:
    """Return the number that a source stands for, and its spread."""
    table = SCRIPT.rows(command)
    if source.startswith("max "):
        return max(row[source[4:]] for row in table.values() if row.get(source[4:]) is not None), None
    if source.startswith("count "):
        conditions = CONDITION.findall(source[6:])
        assert conditions, source
        return sum(all(meets(row, each) for each in conditions) for row in table.values()), None
    name, _, field = source.partition(" | ")
    assert name in table, f"{command}: no row {name}; there are {', '.join(table)}"
    return table[name][field or "AVG"], table[name].get(f"{field or 'AVG'} std")


def as_printed(words: str, value: float, spread: float | None) -> str:
    """Return words with the number that they should have, to as many digits, with a sign where they have one."""

    def number(match: re.Match[str]) -> str:
        digits = len(match[1].partition(".")[2])
        mean = f"{value:{'+' if match[1][0] in '+-' else ''}.{digits}f}"
        return mean if match[2] is None else f"{mean} ± {spread:.{digits}f}"

    if NUMBER.search(words):
        return NUMBER.sub(number, words, count=1)
    return re.sub(rf"\b({'|'.join(WORDS)})\b", lambda _: WORDS[int(value)], words, count=1)


def unsourced(left: list[str], sources: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is wrong: words that no block has, numbers that are not those of the runs or without a source."""
    for source in sources:
        (place,) = [i for i, block in enumerate(left) if source["text"] in block] or [None]
        if place is None:
            yield f"no part of the page has {source['text']}"
            continue
        for words, query in source.get("numbers", {}).items():
            right = as_printed(words, *values(source["command"], query))
            if words != right:
                yield f"{words}: {source['command']} has {right} ({query})"
            if words not in left[place]:
                yield f"{source['text']}: does not have: {words}"
            left[place] = left[place].replace(words, "", 1)
        for words in source.get("plain", ()):
            if words not in left[place]:
                yield f"{source['text']}: does not have: {words}"
            left[place] = left[place].replace(words, "", 1)
    yield from (
        f"no source of {match[0]}: {block}" for block in map(in_prose, left) for match in NUMBER.finditer(block)
    )


@pytest.mark.parametrize("name", SCRIPT.SOURCES)
def test_the_numbers_of_a_page_are_those_of_the_kept_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page, tables = (RESULTS / name).read_text(encoding="utf-8"), SCRIPT.SOURCES[name]["tables"]
    assert list(unsourced(blocks(page, tables), SCRIPT.SOURCES[name]["prose"])) == []
    bare = page
    for table in tables:  # a page whose tables have their first line alone gets them
        head = re.escape(SCRIPT.head(table))
        bare = re.sub(rf"(?m)^({head}\n)(?:\|[^\n]*\n)+", r"\1", bare)
    assert bare != page or not tables
    assert SCRIPT.refreshed(bare, tables) == SCRIPT.refreshed(page, tables) == page, (
        "run: python benchmarks/results_page.py"
    )


@pytest.mark.parametrize("page", SCRIPT.method_pages(), ids=lambda page: page.stem)
def test_a_page_of_a_method_repeats_its_row(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = page.read_text(encoding="utf-8")
    tables = [SCRIPT.rows(command) for command in SCRIPT.REPEATED]
    assert SCRIPT.repeated(page.stem, text, tables) == text, "run: python benchmarks/results_page.py"


def test_a_row_by_hand() -> None:
    table = yaml.safe_load("""
fedavg: {method: fedavg, AVG: 93.05, AVG std: 0.2}
ga: {method: ga, AVG: 92.91, AVG std: 0.23, difference: -0.14, difference std: 0.29, p: 0.475, p (Holm): 1.0}
""")
    begin = "Three seeds on real digits (`digits-small-cnn`, 40 rounds): "
    end = "[results](../results/in-domain.md#digits)"
    assert SCRIPT.repeated("ga", f"{begin}old: {end}, more", [table]) == (
        f"{begin}92.91 ± 0.23, FedAvg 93.05 ± 0.20, difference -0.14 ± 0.29 (p = 0.475, by Holm 1.000): {end}, more"
    )
    with pytest.raises(SystemExit, match=r"moon\.md: 0 rows"):
        SCRIPT.repeated("moon", f"{begin}: {end}", [table])


def test_every_committed_run_has_its_commands() -> None:
    runs = (RESULTS / "runs.md").read_text(encoding="utf-8")
    assert folders(runs) == {file.parent.name for file in KEPT} != set()


def test_a_committed_run_tells_its_state_of_the_source_and_no_path() -> None:
    for file in KEPT:
        text = file.read_text(encoding="utf-8")
        kept = json.loads(text)
        assert re.fullmatch("[0-9a-f]{12,40}", kept["config"]["git"]), file
        assert not re.search(r'"/\w', text) and kept["missing"] == [], file


def test_a_picture_has_the_rows_of_both_tables_and_their_intervals(tmp_path: Path) -> None:
    answer = load_benchmark("answer")
    given = answer.Accuracy((80.0, 82.0, 84.0), personal=False)
    higher, single = answer.Accuracy((90.0, 90.0), personal=True), answer.Accuracy((99.0,), personal=False)
    tables = {"in": {"fedavg": given, "t3a": higher, "moon": single}, "out": {"t3a": higher, "fedavg": given}}
    assert answer.rows(list(tables.values())) == ["t3a", "fedavg"]  # moon has one seed, and none held out
    mean, half = answer.interval(given.seeds)
    assert mean == 82.0
    assert half == pytest.approx(4.303 * 2.0 / 3**0.5, abs=1e-3)  # t of 2 degrees of freedom, deviation, seeds
    figure = answer.draw(tables, {"fedavg": answer.Cost(2.0, 10.0), "t3a": answer.Cost(3.0, 10.0)})
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["t3a", "fedavg"]
    widths = [bar.get_width() for bar in figure.axes[-1].patches]
    assert widths == [1.5, 1.0, 1.0, 1.0]  # seconds of both rows, then bytes, as multiples of FedAvg's
    figure.savefig(tmp_path / "picture.png")


def test_the_ladder_has_the_averages_of_the_table_and_seconds_of_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    ladder = load_benchmark("ladder")
    found = ladder.points(
        ("pacs-pretrained-out-closed",), {name: ladder.answer.Cost(2.0, 0.0) for name in ladder.METHODS}
    )
    point = found["fed3r", "lite0", False]
    mean, spread = values("compare pacs-pretrained-out-closed --unseen", "fed3r")
    assert (statistics.mean(point.accuracies()), statistics.stdev(point.accuracies())) == pytest.approx((mean, spread))
    local = sorted(seconds - 0.0038 * images for seconds, images in zip(point.seconds, _images("fed3r"), strict=True))
    assert local == pytest.approx([14.0] * 6 + [16.0] * 6)  # 7 or 8 nodes, one round, 2 s each


def _images(method: str) -> list[int]:
    """Return the training images of each kept run of a held-out domain, in the order of the files' names."""
    files = sorted((RESULTS / "pacs-pretrained-out-closed").glob(f"*-{method}-*.json"))
    return [sum(node["num_examples"] for node in json.loads(file.read_text("utf-8"))["nodes"]) for file in files]

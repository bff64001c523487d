"""docs/results/prose.yaml: each number in prose of the pages of results is what the kept runs give, or was chosen."""

import functools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from support import ROOT
from typer.testing import CliRunner

from fedshift import cli

pytestmark = pytest.mark.usefixtures("kept_runs_once")

RESULTS = ROOT / "docs" / "results"
SOURCES: dict[str, list[dict[str, Any]]] = yaml.safe_load((RESULTS / "prose.yaml").read_text(encoding="utf-8"))
#: A number with its spread; not a part of a name such as ResNet-10 or T3A.
NUMBER = re.compile(r"(?<![\w.+-])([+-]?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?(?![\w-])")
WORDS = ("no", "one", "two", "three", "four")
CONDITION = re.compile(r"(\w+(?: \(Holm\))?)(!=|=|<)(.*?)(?= \w+(?: \(Holm\))?(?:!=|=|<)|$)")


def blocks(page: str) -> list[str]:
    """Return the paragraphs, items and rows of tables of a page: no commands, footnotes or tables of a command."""
    page = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    page = re.sub(r"(?m)^\*\*[^\n]*\*\*\n\n(?:\|[^\n]*\n)+", "", page)
    page = re.sub(r"(?m)^(?:    |        )fedshift .*$|`[^`]*`", "", page)
    parts = re.split(r"\n\s*\n|\n(?=\||- |\d+\. )", page)
    return [re.sub(r"^\d+\. ", "", " ".join(part.split())) for part in parts if part.strip()]


def in_prose(block: str) -> str:
    """Return a block without the addresses of its links."""
    return re.sub(r"\]\([^)]*\)", "]", block)


@functools.cache
def rows(command: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the rows of a command's JSON by name."""
    name, *words = shlex.split(command)
    given = [f"docs/results/{word}" if (RESULTS / word).is_dir() else word for word in words] or ["docs/results"]
    done = CliRunner().invoke(cli.app, [name, *given, "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    if name == "claims":
        return {f"{row['table']} {row['runs'].removesuffix(' †')}": row | {"here std": row["here_std"]}
                for row in content["claims"]}  # fmt: skip
    return {row["row"] + (f" [{row['group']}]" if row["group"] else ""): row for row in content["rows"]}


def meets(row: Mapping[str, Any], condition: tuple[str, str, str]) -> bool:
    key, sign, wanted = condition
    value = row.get(key)
    if sign == "<":
        return value is not None and abs(value) < float(wanted)
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return (text == wanted) is (sign == "=")


def values(command: str, source: str) -> tuple[float, float | None]:
    """Return the number that a source stands for, and its spread."""
    table = rows(command)
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


def unsourced(page: str, sources: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wrong: words that the page lacks, numbers that are not those of the runs or without a source."""
    left = blocks(page)
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
            left[place] = left[place].replace(words, "")
    yield from (
        f"no source of {match[0]}: {block}" for block in map(in_prose, left) for match in NUMBER.finditer(block)
    )


@pytest.mark.parametrize("name", SOURCES)
def test_each_number_in_prose_is_what_the_kept_runs_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert list(unsourced((RESULTS / name).read_text(encoding="utf-8"), SOURCES[name])) == []


def test_a_number_that_is_wrong_or_has_no_source_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    page = (
        "# 2 Results\n\nIn `8` rounds of ResNet-10\n[pages](10.md) has FedProto 90.2 ± 0.1, Local 87.8, others 89.8;"
        " two rows.\n\n    fedshift run seed=1\n\n| a | 7 |\n| b | 9 |\n"
    )
    numbers = {
        "FedProto 90.2 ± 0.1": "fedproto", "Local 87.8": "local", "FedSeProto 89.8": "fedseproto",
        "two rows": "count AVG<90.5",
    }  # fmt: skip
    sources = [
        {"text": "FedProto", "command": "compare digits-heterogeneous", "numbers": numbers},
        {"text": "| a |", "plain": ["7"]}, {"text": "not there", "plain": ["1"]},
    ]  # fmt: skip
    assert [line.partition(" (")[0] for line in unsourced(page, sources)] == [
        "Local 87.8: compare digits-heterogeneous has Local 87.9", "FedProto: does not have: FedSeProto 89.8",
        "two rows: compare digits-heterogeneous has three rows", "no part of the page has not there",
        "no source of 2: # 2 Results", "no source of 89.8: In rounds of ResNet-10 [pages] has , , others 89.8; .",
        "no source of 9: | b | 9 |",
    ]  # fmt: skip

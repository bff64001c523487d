"""Print the tables of docs/results again from the committed runs, in place.

    python benchmarks/results_page.py              # all pages
    python benchmarks/results_page.py digits-cnn   # docs/results/digits-cnn.md alone

A page of docs/results holds commands ``fedshift compare docs/results/... --markdown`` and ``fedshift claims ...``.
Below each command stands what it prints: the caption in bold, the table, and the footnotes, folded. The script replaces
that part and leaves the rest of the page. A new table needs its command alone.

The pages of docs/methods repeat a method's row of docs/results/digits-cnn.md in a sentence ("Three seeds on real
digits"), which the script writes too.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from typer.testing import CliRunner

from fedshift import cli

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
#: A command, and below it the table of its last run; nothing where there is none yet.
SHOWN = re.compile(
    r"^    fedshift ((?:compare|claims) docs/results/[^\n]*--markdown)\n+"
    r"(\*\*[^\n]*\*\*\n\n(?:\|[^\n]*\n)+\n<details[^\n]*\n\n(?:- [^\n]*\n)+\n</details>\n*)?",
    re.M,
)
#: The page whose rows the pages of methods repeat, and the sentence that does so, without its numbers.
REPEATED = "digits-cnn"
SENTENCE = re.compile(
    r"^(Three seeds on real digits \(`digits-small-cnn`, 40 rounds\): )[^\[\n]*"
    r"(\[results\]\(\.\./results/digits-cnn\.md\))",
    re.M,
)


def pages() -> list[Path]:
    """Return the pages that hold such commands, by name."""
    return [page for page in sorted(RESULTS.glob("*.md")) if SHOWN.search(page.read_text(encoding="utf-8"))]


def printed(command: str) -> str:
    """Return what ``fedshift COMMAND`` prints. Raises SystemExit with its message if it fails."""
    done = CliRunner().invoke(cli.app, shlex.split(command))
    if done.exit_code:
        raise SystemExit(f"fedshift {command}:\n{done.output}")
    return done.stdout.strip()


def folded(table: str) -> str:
    """Return a printed table as a page shows it, with its footnotes folded."""
    shown, _, footnotes = table.strip().partition("\n- ")
    return f'{shown}\n<details markdown="1"><summary>Footnotes</summary>\n\n- {footnotes}\n\n</details>'


def refreshed(page: str, run: Callable[[str], str] = printed) -> str:
    """Return the text of a page with each table as its command prints it now."""
    return SHOWN.sub(partial(_block, run), page).rstrip("\n") + "\n"


def _block(run: Callable[[str], str], shown: re.Match[str]) -> str:
    return f"    fedshift {shown[1]}\n\n{folded(run(shown[1]))}\n\n"


def method_pages() -> list[Path]:
    """Return the pages of methods that repeat a row."""
    methods = sorted((ROOT / "docs" / "methods").glob("*.md"))
    return [page for page in methods if SENTENCE.search(page.read_text(encoding="utf-8"))]


def repeated(method: str, page: str, results: str) -> str:
    """Return the text of a method's page with its row of ``results``, the text of the page ``REPEATED``, in a sentence.

    Raises:
        SystemExit: If the method has not one row there.
    """
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in results.splitlines() if line[:2] == "| "]
    own = [row for row in rows if row[0].removesuffix(" (approximation)") == method]
    if len(own) != 1:
        raise SystemExit(f"docs/methods/{method}.md: {REPEATED} has {len(own)} rows of it")
    fedavg = next(row for row in rows if row[0] == "fedavg")
    average, difference, p, holm = fedavg[-6], *own[0][-3:]
    said = f"{own[0][-6]}, FedAvg {average}, difference {difference} (p = {p}, by Holm {holm})".replace("*", "")
    return SENTENCE.sub(lambda match: f"{match[1]}{said}: {match[2]}", page)


def main(names: list[str]) -> None:
    """Write the named pages again, or all."""
    for page in [RESULTS / f"{name}.md" for name in names] or pages():
        text = page.read_text(encoding="utf-8")
        new = refreshed(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
        print(
            f"{page.name}: {len(SHOWN.findall(text))} tables, {'written' if new != text else 'unchanged'}", flush=True
        )
    results = (RESULTS / f"{REPEATED}.md").read_text(encoding="utf-8")
    for page in [] if names else method_pages():
        text = page.read_text(encoding="utf-8")
        page.write_text(repeated(page.stem, text, results), encoding="utf-8")


if __name__ == "__main__":
    os.chdir(ROOT)  # the commands name docs/results
    main(sys.argv[1:])

"""The page of a comparison: figures, table, notes and links to the runs' reports in one file."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined

from fedshift.compare import figures, formats
from fedshift.compare.rows import Row, named
from fedshift.compare.table import Numbers
from fedshift.html.theme import STYLE
from fedshift.report.command import REPORT_FILE
from fedshift.results.loading import NODES, Run
from fedshift_app.run.figures import total_images_text
from fedshift_core.limits import MOST_NAME, plain

OPEN = 30  # the list of runs is open up to this number
MOST_VALUES = 3  # values shown of a fact in which runs differ
LONG = 16  # characters of a part of a name without a line break

_STYLE = (
    STYLE
    + """
table { font-size: .88rem }
th, td { padding: .25rem .42rem }
td:first-child { white-space: pre }
/* A cell breaks before its spread, and names in their middle, rather than that the last columns are out of sight. */
@media (min-width: 46rem) {
  #numbers td { white-space: normal }
  #numbers td:first-child { white-space: pre-wrap; min-width: 5rem }
  #numbers th, #numbers td { padding: .25rem .35rem }
}
tr.aside td { color: var(--muted) }
.hint { display: none; color: var(--muted); font-size: .85rem; margin: .3rem 0 0 }
.scroll:focus-visible { outline: 2px solid var(--link) }
@media (max-width: 46rem) {
  .hint { display: block }
  th:first-child, td:first-child { white-space: pre-wrap; min-width: 7.5rem; max-width: 9rem; overflow-wrap: anywhere }
}
.kept { display: inline-block; white-space: nowrap }
#each th:last-child, #each td:last-child { text-align: left }
ul { padding-left: 1.2rem; color: var(--muted); font-size: .9rem; overflow-wrap: anywhere }
"""
)

_TEMPLATE = """
{%- macro scrolled(name) -%}
<p class="hint">Wider than the screen: swipe it sideways.</p>
<div class="scroll" tabindex="0" role="region" aria-label="{{ name }}">{{ caller() }}</div>
{%- endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% for warning in warnings %}<p class="warn">{{ warning }}</p>
{% endfor %}
<dl class="facts">
{% for name, value in facts %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>
{% call scrolled('the table') %}
<table id="numbers">
<thead><tr>{% for name in head %}<th scope="col">{{ name | breakable | safe }}</th>{% endfor %}</tr></thead>
<tbody>
{% for line in lines %}
<tr{% if line.aside %} class="aside"{% endif %}>
{%- for cell in line.cells -%}
<td>{% if loop.index0 in line.best %}<strong>{{ cell | breakable | safe }}</strong>
{%- else %}{{ cell | breakable | safe }}{% endif %}</td>
{%- endfor -%}
</tr>
{% endfor %}
</tbody>
</table>
{% endcall %}

<h2 id="figures">Figures</h2>
{% for why in lacking %}<p class="note">{{ why }}</p>
{% endfor %}
{% for group in groups %}
<div class="figures">
{% for figure, size in group %}
<figure class="{{ size }}">
{{ figure.svg | safe }}
<figcaption>{{ figure.caption }}</figcaption>
</figure>
{% endfor %}
</div>
{% endfor %}

<h2 id="notes">What to know of the numbers</h2>
<ul>
{% for note in notes %}<li>{{ note }}</li>
{% endfor %}
</ul>

<h2 id="runs">Runs</h2>
<details{{ ' open' if runs | length <= most else '' }}><summary>{{ runs | length }} runs</summary>
{% call scrolled('the runs') %}
<table id="each">
<thead><tr><th scope="col">row</th><th scope="col">seed</th><th scope="col">{{ headline }}</th>
<th scope="col">run</th></tr></thead>
<tbody>
{% for run in runs %}
<tr><td>{{ run.row }}</td><td>{{ run.seed }}</td><td>{{ run.value }}</td>
<td>{% if run.href %}<a href="{{ run.href }}">{{ run.name }}</a>{% else %}{{ run.name }}{% endif %}</td></tr>
{% endfor %}
</tbody>
</table>
{% endcall %}
<p class="note">{{ reports }}</p>
</details>
</main>
</body>
</html>
"""


def page(numbers: Numbers, where: Path | None = None) -> str:
    """Return the page as HTML; all text is escaped.

    Args:
        numbers: The comparison.
        where: The file to which the page will be written, for relative links to reports; None for no links.
    """
    head, lines = formats.grid(numbers)
    drawn = figures.draw(numbers)
    # Difference and curves are large. The figures of columns have one size, so that they can be compared.
    large = drawn.overall if len(drawn.overall) > 1 else []
    small = drawn.columns if large else drawn.overall + drawn.columns
    thirds = [[(figure, "third") for figure in some] for some in (small, drawn.prices)]
    groups = [group for group in ([(figure, "half") for figure in large], *thirds) if group]
    runs = [_run(numbers, row, run, where) for row in numbers.rows for run in row.runs]
    linked = sum(bool(run["href"]) for run in runs)
    reports = (
        f"{linked} of {len(runs)} have a report, which their names lead to" if linked else "None has a report here"
    ) + "; `fedshift report RUN` makes one. A page that is moved away from its runs leads nowhere."
    known = facts([run for row in numbers.rows for run in row.runs])
    content = {
        "title": numbers.title, "warnings": numbers.warnings, "facts": known,
        "head": head, "lines": lines, "groups": groups, "lacking": drawn.lacking,
        "notes": numbers.notes, "runs": runs, "headline": numbers.headline, "most": OPEN, "reports": reports,
    }  # fmt: skip
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    return environment.from_string(_TEMPLATE).render(content, style=_STYLE) + "\n"


def breakable(text: str) -> str:
    """Return a cell as HTML that breaks before its spread and within long words."""
    words = re.split(r"(?<!±) ", text)  # the sign stays with its number
    return " ".join(_kept(word) if "±" in word else "".join(_broken(word)) for word in words)


def _broken(word: str) -> list[str]:
    if len(word) <= LONG:
        return [escape(word)]
    parts = re.split(r"(?<=[-_/=,])", word)
    return [_kept(part[i : i + LONG]) for part in parts for i in range(0, len(part), LONG)]


def _kept(part: str) -> str:
    return f'<span class="kept">{escape(part)}</span>'


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the common facts of all runs, or the values in which they differ."""
    images = [
        total_images_text([of_domain for of_domain in figures_of_run.domains.values() if of_domain is not None])
        if figures_of_run is not None
        else "not told"
        for figures_of_run in (run.results.figures for run in runs)
    ]
    return [
        ("rounds", _values(run.config["rounds"] for run in runs)),
        ("local epochs", _values(run.config["train.epochs"] for run in runs)),
        ("network", _values(_network(run.config) for run in runs)),
        ("nodes", _values(run.config[NODES] for run in runs)),
        ("test images", _values(images)),
        ("seeds", str(len({run.results.seed for run in runs}))),
        ("methods", str(len({run.results.method for run in runs}))),
    ]


def _network(config: Mapping[str, Any]) -> str:
    return ", ".join(config["model.per_node"]) or str(config["model.name"])


def _values(values: Iterable[object]) -> str:
    distinct = list(dict.fromkeys(plain(str(value), MOST_NAME) for value in values))
    more = len(distinct) - MOST_VALUES
    return " / ".join(distinct[:MOST_VALUES]) + (f" and {more} more" if more > 0 else "")


def _run(numbers: Numbers, row: Row, run: Run, where: Path | None) -> dict[str, Any]:
    value = row.by_seed[run.results.seed].get(numbers.headline)
    return {
        "row": named(row), "seed": run.results.seed, "value": "missing" if value is None else f"{value:.2f}",
        "name": run.name, "href": _href(run, where),
    }  # fmt: skip


def _href(run: Run, where: Path | None) -> str:
    """Return the relative link from the page to a run's report; empty if it has none."""
    report = run.place / REPORT_FILE
    if where is None or not run.place.is_dir() or not report.is_file():
        return ""
    return quote(os.path.relpath(report.resolve(), where.resolve().parent))

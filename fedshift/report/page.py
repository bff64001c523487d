"""The page: HTML and CSS, and nothing that it would have to fetch.

The template is a string of a module, as only modules travel in the app's bundle. Everything that is not a figure of
ours is escaped: names, commands and what nodes answered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedshift.html.drawing import Drawing
from fedshift.html.theme import STYLE, widths

NARROW = 4  # columns of a table of results next to figures; a wider one has the page's width
_STYLE = (
    STYLE
    + """
code, pre { font: .85rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
pre { background: var(--card); padding: .8rem; overflow-x: auto; white-space: pre-wrap }
tr.sum td { font-weight: 600 }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em }
.strips { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 0 1.4rem }
.cams { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .9rem;
  margin: .4rem 0 1rem }
.cams figure { margin: 0 }
.cams img { display: block; width: 100%; max-width: 12.3rem; height: auto; image-rendering: pixelated }
"""
)

_TEMPLATE = """
{%- macro percent(value) -%}
{% if value is none %}<span class="none">missing</span>{% else %}<data value="{{ value }}">{{ '%.1f' % value }}</data>
{%- endif %}{%- endmacro -%}
{%- macro drawn(figures, first='') -%}
{% set sizes = widths(figures | length + (1 if first else 0)) %}
{% if sizes %}
<div class="figures">
{% if first %}<div class="{{ sizes[0] }}">{{ first }}</div>{% endif %}
{% for figure in figures %}
<figure class="{{ sizes[loop.index0 + (1 if first else 0)] }}">
{{ figure.svg | safe }}
<figcaption>{{ figure.caption }}</figcaption>
</figure>
{% endfor %}
</div>
{% endif %}
{%- endmacro -%}
{%- macro notes(section) -%}
{% for note in section.notes %}<p class="note">{{ note }}</p>
{% endfor %}
{%- endmacro -%}
{%- macro tabled(table) -%}
<div class="scroll"><table id="{{ table.id }}">
<thead><tr>{% for head in table.heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
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
<p{% if not finished %} class="warn"{% endif %}>{{ state }}</p>
<nav aria-label="sections">
{% for id, name in contents %}<a href="#{{ id }}">{{ name }}</a>
{% endfor %}
</nav>
<dl class="facts">
{% for name, value in facts %}<div><dt>{{ name }}</dt><dd>{{ value }}</dd></div>
{% endfor %}
</dl>

<h2 id="accuracy">Accuracy</h2>
{% set results %}
{% if columns %}
<div class="scroll"><table id="results">
<thead><tr><th scope="col">domain</th>
{%- for column in columns %}<th scope="col">{{ column.head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for domain in domains %}
<tr><td><span class="swatch" style="background:var(--d{{ loop.index0 % colours }})"></span>{{ domain }}</td>
{%- for column in columns %}<td>{{ percent(column.domains[domain]) }}</td>{% endfor %}</tr>
{% endfor %}
<tr class="sum"><td>AVG</td>{% for column in columns %}<td>{{ percent(column.avg) }}</td>{% endfor %}</tr>
<tr class="sum"><td>STD</td>
{%- for column in columns %}<td>{{ '' if column.std is none else percent(column.std) }}</td>{% endfor %}</tr>
</tbody>
</table></div>
{% else %}
<p>No round has been scored on all test images.</p>
{% endif %}
{{ notes(accuracy) }}
{% endset %}
{% if columns | length > narrow %}{{ results }}{% endif %}
{{ drawn(accuracy.figures, '' if columns | length > narrow else results) }}
{% if clients %}
<h3>Client models</h3>
<div class="scroll"><table id="clients">
<thead><tr><th scope="col">right after local training</th>
<th scope="col">{{ clients.rounds }}</th></tr></thead>
<tbody>
{% for name, value in clients.rows %}<tr><td>{{ name }}</td><td>{{ percent(value) }}</td></tr>
{% endfor %}
</tbody>
</table></div>
{% if clients.why %}<p class="note">Missing: {{ clients.why }}</p>{% endif %}
{% endif %}

<h2 id="training">Training</h2>
{{ notes(training) }}
{{ drawn(training.figures) }}
{% if events %}
<h3>What went wrong</h3>
<div class="scroll"><table class="words" id="events">
<thead><tr><th scope="col">round</th><th scope="col">what</th></tr></thead>
<tbody>
{% for number, what in events %}<tr><td>{{ number }}</td><td>{{ what }}</td></tr>
{% endfor %}
</tbody>
</table></div>
{% endif %}

{% for section in seen %}
<h2 id="{{ section.id }}">{{ section.name }}</h2>
{% if section.missing %}<p>{{ section.missing }}</p>{% endif %}
{{ notes(section) }}
{% set next_to_figure = section.tables | selectattr('next_to_figure') | list %}
{{ drawn(section.figures, tabled(next_to_figure[0]) if next_to_figure else '') }}
{% for table in section.tables if not table.next_to_figure %}
<details{{ ' open' if table.open else '' }}><summary>{{ table.folded }}</summary>
{{ tabled(table) }}
</details>
{% endfor %}
{% if section.strips %}
<div class="strips">
{% for domain, strips in section.strips %}
<div>
<h3>{{ domain }}</h3>
<div class="cams">
{% for strip in strips %}
<figure><img src="{{ strip.source }}" alt="{{ strip.alt }}"><figcaption>{{ strip.caption }}</figcaption></figure>
{% endfor %}
</div>
</div>
{% endfor %}
</div>
{% endif %}
{% endfor %}

<h2 id="federation">Federation</h2>
{% set held %}
{% if nodes %}
<div class="scroll"><table id="nodes">
<thead><tr><th scope="col">domain</th><th scope="col">nodes</th>
<th scope="col">training images</th><th scope="col">of each node</th></tr></thead>
<tbody>
{% for row in nodes %}
<tr><td>{{ row.domain }}</td><td>{{ row.nodes }}</td><td>{{ row.images }}</td><td>{{ row.each }}</td></tr>
{% endfor %}
</tbody>
</table></div>
{% else %}
<p>No full round: the folder does not say which nodes there were.</p>
{% endif %}
{% endset %}
{{ drawn(federation.figures, held) }}

<h2 id="configuration">Configuration</h2>
<div class="scroll"><table class="words">
<tbody>
{% for name, value in settings %}<tr><th scope="row">{{ name }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody>
</table></div>
<details><summary>Everything that decides the numbers (config.yaml)</summary>
<pre>{{ config }}</pre>
</details>
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Table:
    """A table of words and numbers.

    Attributes:
        id: Its name on the page.
        heads: Headings of its columns.
        rows: Its cells.
        folded: The summary line under which it can be folded.
        open: Whether it is open at first.
        next_to_figure: Whether it is placed next to the first figure and cannot be folded.
    """

    id: str
    heads: list[str]
    rows: list[list[str]]
    folded: str = ""
    open: bool = True
    next_to_figure: bool = False


@dataclass
class Section:
    """A part of the page.

    Attributes:
        id: Its anchor.
        name: Its heading.
        missing: Reason why it is missing or incomplete.
        lacks: Reasons why figures could not be drawn, by name; not of figures that a run like this never has.
        notes: Notes on its figures.
        figures: Its figures.
        strips: By domain, images.
        tables: Its tables.
    """

    id: str
    name: str
    missing: str = ""
    lacks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: list[Drawing] = field(default_factory=list)
    strips: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether it has only the reason why it is missing."""
        return bool(self.missing) and not (self.figures or self.strips or self.tables)


def folded(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with content, and one that lists the reasons for the others.

    Otherwise a deployment, or a domain without images, would have five headings with the same sentence.
    """
    why: dict[str, list[str]] = {}
    for section in sections:
        if section.empty:
            why.setdefault(section.missing, []).append(section.name)
    if not why:
        return list(sections)
    lines = [f"{' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}: {reason}"
             for reason, names in why.items()]  # fmt: skip
    return [*(section for section in sections if not section.empty), Section("not-shown", "Not shown", notes=lines)]


def render(content: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        content: The variables of the template (``fedshift.report.build``).
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    helpers = {"style": _STYLE, "widths": widths, "narrow": NARROW}
    return environment.from_string(_TEMPLATE).render(content, **helpers) + "\n"

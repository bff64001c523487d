"""The page: HTML and CSS, and nothing that it would have to fetch.

The template is a string of a module, as only modules travel in the app's bundle. Everything that is not a figure of
ours is escaped: names, commands and what nodes answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, StrictUndefined

from fedshift_app.report.drawing import Drawing

_LIGHT = (
    "--bg:#fff;--fg:#1b1f24;--muted:#59636e;--line:#d5dae0;--card:#f5f7f9;--grid:#a9b1ba;--link:#0b5cad;"
    "--d0:#0072b2;--d1:#d55e00;--d2:#00875f;--d3:#b8579a;--d4:#3a9bd9;--d5:#b07a00;--d6:#6a4fc4;--d7:#5c5c5c;"
    "--k0:#332288;--k1:#3fa0cf;--k2:#44aa99;--k3:#117733;--k4:#8a8a22;--k5:#c9a227;--k6:#cc6677;--k7:#882255;"
    "--k8:#aa4499;--k9:#707070"
)
_DARK = (
    "--bg:#14181d;--fg:#e4e8ec;--muted:#9ba6b2;--line:#333b45;--card:#1c2229;--grid:#626d79;--link:#7db8f0;"
    "--d0:#56b4e9;--d1:#ff8f4f;--d2:#2fc997;--d3:#e79bcb;--d4:#a7d5f5;--d5:#e8b53c;--d6:#a892f5;--d7:#b4b4b4;"
    "--k0:#8f83e8;--k1:#88ccee;--k2:#5fd0bd;--k3:#4cb56a;--k4:#bdbd4a;--k5:#ebd27a;--k6:#f08d9d;--k7:#d65f97;"
    "--k8:#d783cb;--k9:#a8a8a8"
)

_STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box }
body { margin: 0; background: var(--bg); color: var(--fg); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 72rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { max-width: 46rem; margin: .5rem 0; overflow-wrap: anywhere }
a { color: var(--link) }
nav a { margin-right: .9rem; white-space: nowrap }
code, pre { font: .85rem/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
pre { background: var(--card); padding: .8rem; overflow-x: auto; white-space: pre-wrap }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin: 1rem 0 }
.facts div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem }
.facts dt { color: var(--muted); font-size: .8rem }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; overflow-wrap: anywhere }
.scroll { overflow-x: auto; margin: .6rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { white-space: normal }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--bg) }
table.words th { text-align: left }
table.words td { text-align: left; white-space: normal; overflow-wrap: anywhere }
tr.sum td { font-weight: 600 }
.swatch { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .45em }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 23rem), 1fr)); gap: 1.4rem }
figure { margin: .4rem 0; min-width: 0 }
figcaption, .note, .none { color: var(--muted); font-size: .85rem }
.warn { border-left: 4px solid var(--d1); padding-left: .7rem }
svg.plot { width: 100%; max-width: 31rem; height: auto; display: block }
svg.plot * { stroke-linejoin: round; stroke-linecap: butt }
svg.plot image { image-rendering: pixelated }
.cams { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .9rem;
  margin: .4rem 0 1rem }
.cams figure { margin: 0 }
.cams img { display: block; width: 100%; max-width: 12.3rem; height: auto; image-rendering: pixelated }
summary { cursor: pointer; margin: .6rem 0 }
@media print { details:not([open]) { display: none } }
""".replace("LIGHT", _LIGHT).replace("DARK", _DARK)

_TEMPLATE = """
{%- macro percent(value) -%}
{% if value is none %}<span class="none">missing</span>{% else %}<data value="{{ value }}">{{ '%.1f' % value }}</data>
{%- endif %}{%- endmacro -%}
{%- macro drawn(figures) -%}
<div class="figures">
{% for figure in figures %}
<figure>
{{ figure.svg | safe }}
<figcaption>{{ figure.caption }}</figcaption>
</figure>
{% endfor %}
</div>
{%- endmacro -%}
{%- macro notes(section) -%}
{% for note in section.notes %}<p class="note">{{ note }}</p>
{% endfor %}
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
{{ drawn(accuracy.figures) }}
{% if clients %}
<h3>Client models</h3>
<div class="scroll"><table id="clients">
<thead><tr><th scope="col">right after local training</th>
<th scope="col">last {{ clients.rounds }} rounds</th></tr></thead>
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
{% for table in section.tables %}
{% if table.folded %}<details{{ ' open' if table.open else '' }}><summary>{{ table.folded }}</summary>{% endif %}
<div class="scroll"><table id="{{ table.id }}">
<thead><tr>{% for head in table.heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% if table.folded %}</details>{% endif %}
{% endfor %}
{{ drawn(section.figures) }}
{% for domain, strips in section.strips %}
<h3>{{ domain }}</h3>
<div class="cams">
{% for strip in strips %}
<figure><img src="{{ strip.source }}" alt="{{ strip.alt }}"><figcaption>{{ strip.caption }}</figcaption></figure>
{% endfor %}
</div>
{% endfor %}
{% endfor %}

<h2 id="federation">Federation</h2>
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
        folded: What the line says under which it can be folded away; empty: it always shows.
        open: It is not folded at first.
    """

    id: str
    heads: list[str]
    rows: list[list[str]]
    folded: str = ""
    open: bool = True


@dataclass
class Section:
    """A part of the page.

    Attributes:
        id: Its anchor.
        name: Its heading.
        missing: Why it is not there, or not whole.
        notes: What to know of its figures.
        figures: Its figures.
        strips: By domain, images.
        tables: Its tables.
    """

    id: str
    name: str
    missing: str = ""
    notes: list[str] = field(default_factory=list)
    figures: list[Drawing] = field(default_factory=list)
    strips: list[tuple[str, list[dict[str, str]]]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def render(content: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        content: What the template names (``fedshift_app.report.making``).
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE).render(content, style=_STYLE) + "\n"

"""The style of all pages of FedShift: light and dark colours, rows of figures without gaps."""

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

#: CSS of every page. Figures form rows of three or two (``widths``); on a phone they form one column.
STYLE = """
:root { color-scheme: light dark; LIGHT }
@media (prefers-color-scheme: dark) { :root { DARK } }
* { box-sizing: border-box }
body { margin: 0; background: var(--bg); color: var(--fg); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 78rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { max-width: 60rem; margin: .5rem 0; overflow-wrap: anywhere }
a { color: var(--link) }
nav a { margin-right: .9rem; white-space: nowrap }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin: 1rem 0 }
.facts div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem }
.facts dt { color: var(--muted); font-size: .8rem }
.facts dd { margin: 0; font-size: 1.35rem; font-weight: 600; overflow-wrap: anywhere }
/* Where there is more to the side, there is a shadow: a cover of the page's colour scrolls away from above it.
   A pixel from the edge: no cover reaches a broken one. */
.scroll { overflow-x: auto; margin: .6rem 0; background:
  linear-gradient(to right, var(--bg) 50%, transparent) left / 2.4rem 100% no-repeat local,
  linear-gradient(to left, var(--bg) 50%, transparent) right / 2.4rem 100% no-repeat local,
  linear-gradient(to right, var(--grid), transparent) left 1px top 1px / .8rem calc(100% - 2px) no-repeat scroll,
  linear-gradient(to left, var(--grid), transparent) right 1px top 1px / .8rem calc(100% - 2px) no-repeat scroll }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap }
th { white-space: normal }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--bg) }
table.words th { text-align: left }
table.words td { text-align: left; white-space: normal; overflow-wrap: anywhere }
@media (min-width: 46rem) { .scroll > #classes th, .scroll > #classes td { padding: .25rem .3rem; font-size: .82rem } }
.figures { display: grid; grid-template-columns: repeat(6, 1fr); gap: 1.4rem }
.figures > * { grid-column: span 6; min-width: 0 }
.figures + .figures { margin-top: 1.4rem }
figure { margin: .4rem 0 }
figcaption, .note, .none { color: var(--muted); font-size: .85rem; overflow-wrap: anywhere }
.warn { border-left: 4px solid var(--d1); padding-left: .7rem; overflow-wrap: anywhere }
svg.plot { width: 100%; max-width: 36rem; height: auto; display: block }
svg.plot * { stroke-linejoin: round; stroke-linecap: butt }
svg.plot image { image-rendering: pixelated }
summary { cursor: pointer; margin: .6rem 0 }
@media (min-width: 46rem) {
  .figures > * { grid-column: span 3 }
  .figures > .whole { grid-column: span 6 }
  .figures td, .figures th { padding: .25rem .4rem }
  figure.whole { display: grid; grid-template-columns: 1fr 1fr; gap: 1.4rem }
}
@media (min-width: 72rem) { .figures > .third { grid-column: span 2 } }
@media print { details:not([open]) { display: none } }
""".replace("LIGHT", _LIGHT).replace("DARK", _DARK)


def widths(count: int) -> list[str]:
    """Return the width of each figure of a section as a CSS class, so that no row has a gap.

    Rows have three figures. The last rows have two where three would leave a single one. The text of a single figure is
    next to it.
    """
    halves = {0: 0, 1: 4, 2: 2}[count % 3]
    return ["whole"] if count == 1 else ["third"] * (count - halves) + ["half"] * halves

"use strict";
// The page of `fedshift compare --board`: chooses tables, sorts their rows, saves them. It computes no score: all
// numbers and the text of all cells come from the page's data. Names are set as text alone, never as HTML.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const ALL = "all", REPEATED = 3;
const MODELS = {global: "global", personal: "personal", [ALL]: "both"};
const PARAMETERS = {[ALL]: "all", plain: "not searched", tuned: "found by a search"};
const CHOICES = [
  ["data", "Data set", (table) => table.dataset, false],
  ["net", "Network", (table) => table.network, true],
  ["split", "Split", (table) => table.split, true],
  ["bn", "BatchNorm statistics", (table) => table.statistics, false],
];
const state = {};
let views = [];

/* --- Elements --- */

function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function draw(name, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function link(text, href) {
  return href ? make("a", {href, text}) : make("span", {text});
}

/* --- What is chosen; it stands in the address, so that a view can be linked --- */

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [dataset, net, bn] = data.first;
  Object.assign(state, {data: dataset, net, split: ALL, bn, models: "global", params: ALL, sort: "", dir: "descending"});
  for (const key of Object.keys(state)) if (given.has(key)) state[key] = given.get(key);
  if (!Object.hasOwn(MODELS, state.models)) state.models = "global";
  if (!Object.hasOwn(PARAMETERS, state.params)) state.params = ALL;
  if (!["ascending", "descending"].includes(state.dir)) state.dir = "descending";
}

function writeAddress() {
  const hash = `#${new URLSearchParams(state)}`;
  if (hash === location.hash) return;
  try { history.replaceState(null, "", hash); } catch { location.hash = hash; }
}

const fits = (table, but = "") =>
  CHOICES.every(([key, , of]) => key === but || state[key] === ALL || of(table) === state[key]);

/* The values of a choice that lead to a table with what was chosen before it. */
function values(position) {
  const before = CHOICES.slice(0, position);
  const left = data.tables.filter((table) => before.every(([key, , of]) => state[key] === ALL || of(table) === state[key]));
  return [...new Set(left.map(CHOICES[position][2]))];
}

function settle() {
  CHOICES.forEach(([key, , , all], i) => {
    const known = values(i);
    if (!known.includes(state[key]) && !(all && state[key] === ALL)) state[key] = all ? ALL : known[0];
  });
}

function shownRows(table) {
  return table.rows.filter((row) => {
    const task = state.models === ALL || row.scored.split(" ")[0].startsWith(state.models)
      || (state.models === "personal" && row.baseline);
    return task && (state.params === ALL || (state.params === "tuned") === row.tuned);
  });
}

/* --- The form --- */

function select(key, name, options) {
  const box = make("select", {id: `choose-${key}`, onchange: (event) => { state[key] = event.target.value; show(); }});
  for (const [value, text] of options) box.append(make("option", {value, text, selected: value === state[key]}));
  return make("label", {}, name, box);
}

function showForm() {
  const focused = document.activeElement && document.activeElement.id;
  const boxes = CHOICES.map(([key, name, , all], i) => {
    const options = values(i).map((value) => [value, key === "bn" ? data.statistics[value] || value : value]);
    return select(key, name, all ? [[ALL, "all"], ...options] : options);
  });
  boxes.push(select("models", "Models", Object.entries(MODELS)));
  boxes.push(select("params", "Parameters", Object.entries(PARAMETERS)));
  byId("choose").replaceChildren(...boxes);
  if (focused && focused.startsWith("choose-")) byId(focused).focus();
}

/* --- Sorting: numbers as numbers, what is missing last in both directions --- */

function sortValue(table, row, column) {
  if (column === "method") return row.row;
  if (column === "scored") return row.scored;
  if (column === "n") return Object.keys(row.by_seed).length;
  if (column === `${table.headline} - ${data.baseline}`) return row.difference ?? null;
  return row[column] ?? null;
}

function compared(a, b) {
  return typeof a === "string" ? a.localeCompare(b, "en", {numeric: true}) : a - b;
}

function sorted(table, rows) {
  const column = sortColumn(table);
  const sign = state.sort && state.dir === "ascending" ? 1 : -1;
  const keyed = rows.map((row, i) => [sortValue(table, row, column), i, row]);
  const single = (row) => !state.sort && Object.keys(row.by_seed).length < REPEATED; // at first, rows of several seeds
  keyed.sort(([a, i, one], [b, j, other]) => {
    if (single(one) !== single(other)) return single(one) - single(other);
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    return sign * compared(a, b) || i - j;
  });
  return keyed.map((entry) => entry[2]);
}

const sortColumn = (table) => (table.head.includes(state.sort) ? state.sort : table.headline);

function sortBy(column, table) {
  const words = ["method", "scored", "p", "p (Holm)"].includes(column);
  if (sortColumn(table) === column) {
    state.dir = (state.sort ? state.dir : "descending") === "descending" ? "ascending" : "descending";
  } else state.dir = words ? "ascending" : "descending";
  state.sort = column;
  show();
  const head = [...document.querySelectorAll(`#${table.id} th button`)].find((one) => one.dataset.column === column);
  if (head) head.focus();
}

/* --- Dots: mean, one standard deviation to each side, and each seed, on one scale in a table --- */

const WIDE = 128, HIGH = 20, EDGE = 6;

function dotsColumn(table) {
  const column = sortColumn(table);
  return table.columns.includes(column) ? column : table.headline;
}

/* The number of the baseline that a row's difference is to, whichever rows are shown and in whatever order. */
function baseOf(table, row, column) {
  const base = row.base === null ? null : table.rows[row.base];
  return base ? base[column] ?? null : null;
}

function scale(table, rows, column) {
  const ends = rows.map((row) => baseOf(table, row, column)).filter((value) => value !== null);
  ends.push(...rows.flatMap((row) => {
    const mean = row[column] ?? null, spread = row[`${column} std`] ?? 0;
    const seeds = Object.values(row.by_seed).map((of) => of[column] ?? null).filter((value) => value !== null);
    return mean === null ? seeds : [mean - spread, mean + spread, ...seeds];
  }));
  if (!ends.length) return null;
  const low = Math.min(...ends), high = Math.max(...ends), span = high - low || 1;
  return {low, high, at: (value) => EDGE + ((value - low) / span) * (WIDE - 2 * EDGE)};
}

function dots(row, text, column, axis, base) {
  const mean = row[column] ?? null;
  if (axis === null || mean === null) return make("span", {class: "none", text: "-"});
  const y = HIGH / 2, spread = row[`${column} std`] ?? 0;
  const svg = draw("svg", {viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": `${column} ${text}`});
  if (base !== null) svg.append(draw("line", {class: "zero", x1: axis.at(base), x2: axis.at(base), y1: 0, y2: HIGH}));
  if (spread) svg.append(draw("line", {class: "bar", x1: axis.at(mean - spread), x2: axis.at(mean + spread), y1: y, y2: y}));
  for (const of of Object.values(row.by_seed)) {
    const value = of[column] ?? null;
    if (value !== null) svg.append(draw("circle", {class: "seed", cx: axis.at(value), cy: y, r: 2.2}));
  }
  svg.append(draw("circle", {cx: axis.at(mean), cy: y, r: 3.6}));
  return svg;
}

/* --- Tables --- */

function showTable(table) {
  const rows = sorted(table, shownRows(table));
  const column = dotsColumn(table), axis = scale(table, rows, column);
  const place = table.head.indexOf(column);
  const body = make("tbody");
  rows.forEach((row, i) => {
    const drawn = make("td", {class: "dots"}, dots(row, row.cells[place], column, axis, baseOf(table, row, column)));
    const cells = row.cells.map((text, k) => make("td", {}, k ? cell(text, row.best.includes(k)) : label(text)));
    const id = `${table.id}-${i}`;
    const open = make("button", {
      type: "button", text: "open", "aria-expanded": "false", "aria-controls": id, "aria-label": `open ${row.row}`,
      onclick: () => toggle(open, line, row, id, cells.length + 2),
    });
    const line = make("tr", {class: row.baseline ? "base" : false}, cells[0], drawn, ...cells.slice(1), make("td", {}, open));
    body.append(line);
  });
  views.push([table, rows]);
  const [first, ...others] = table.head.map((name) => headCell(table, name));
  const range = axis ? `${column}: ${axis.low.toFixed(1)} to ${axis.high.toFixed(1)}` : column;
  const head = make("tr", {}, first, make("th", {scope: "col", class: "dots", text: range}), ...others,
    make("th", {scope: "col"}, make("span", {class: "unseen", text: "command and runs"})));
  const drawn = make("table", {}, make("caption", {class: "unseen", text: table.title}), make("thead", {}, head), body);
  return make("section", {id: table.id},
    make("h2", {text: table.name}),
    make("p", {class: "note", text: `${table.title}; ${table.split}`}),
    ...table.warnings.map(warning),
    make("p", {class: "hint", text: "Wider than the screen: swipe it sideways."}),
    make("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": `table of ${table.name}`}, drawn),
    budget(table), command(table.command), notes(table));
}

/* A warning begins with what it is of; the runs behind it open, so that they do not push the table off the screen. */
function warning(text) {
  const [of, ...runs] = text.split(/(?<=:) /);
  return make("details", {class: "warn"}, make("summary", {text: of}), runs.join(" "));
}

/* A label breaks at spaces and after the signs of its parameters, never within a word or a number. */
function label(text) {
  const parts = text.split(/(?<=[_=:/])|(?<=\.)(?=[a-z])/);
  return make("span", {}, ...parts.flatMap((part, i) => (i ? [make("wbr"), part] : [part])));
}

/* A cell breaks between a mean, its spread and a name, never within. */
function cell(text, best) {
  const words = text.split(/ (?=±)|(?<=\d) (?=\p{L})/u).flatMap((word, i) =>
    (i ? [" ", make("span", {class: "kept", text: word})] : [word]));
  return make(best ? "strong" : "span", {}, ...words);
}

function headCell(table, name) {
  const current = sortColumn(table) === name;
  const direction = current ? (state.sort ? state.dir : "descending") : "none";
  return make("th", {scope: "col", "aria-sort": direction},
    make("button", {type: "button", text: name, "data-column": name, onclick: () => sortBy(name, table)}));
}

function budget(table) {
  const list = make("dl", {class: "budget"});
  const differs = table.differs ? [["unlike other tables here", table.differs]] : [];
  for (const [name, value] of [...table.budget, ...differs]) {
    list.append(make("div", {}, make("dt", {text: name}), make("dd", {text: value})));
  }
  return list;
}

function notes(table) {
  const list = make("ul", {class: "notes"}, ...table.notes.map((text) => make("li", {text})));
  return make("details", {}, make("summary", {text: `${table.notes.length} ${table.notes.length === 1 ? "note" : "notes"}`}), list);
}

/* --- What a row leads to --- */

function toggle(button, line, row, id, width) {
  const there = byId(id);
  button.setAttribute("aria-expanded", String(!there));
  if (there) there.remove();
  else line.after(make("tr", {class: "more", id}, make("td", {colspan: width}, sheet(row))));
}

function sheet(row) {
  const method = data.methods[row.method];
  const about = [method.title, method.venue].filter((text) => text && text !== "-").join(", ");
  const files = row.files.map(([name, seed, href]) => make("li", {}, link(name, href), ` (seed ${seed})`));
  const again = row["scored again"];
  const none = again ? "" : "No command: its experiment is not known here, and its run folders are not at hand.";
  return make("div", {class: "sheet"},
    make("div", {}, "Method: ", link(row.method, method.page), about ? `: ${about}` : ""),
    ...(again ? [make("div", {text: `No command that trains: ${again}`})] : []),
    make("div", {text: row.commands.length ? "Command:" : none}), ...row.commands.map(command),
    make("div", {text: `${files.length} ${files.length === 1 ? "run" : "runs"}:`}), make("ul", {}, ...files));
}

function command(text) {
  const button = make("button", {type: "button", text: "copy", "aria-label": "copy the command"});
  button.addEventListener("click", () => copy(text, button));
  return make("div", {class: "command"}, make("code", {text}), button);
}

async function copy(text, button) {
  const before = button.textContent;
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission, or a page from a disk in some browsers
    const box = make("textarea", {class: "unseen"});
    box.value = text;
    document.body.append(box);
    box.select();
    copied = document.execCommand("copy");
    box.remove();
  }
  button.textContent = copied ? "copied" : "not copied: the browser refuses";
  setTimeout(() => { button.textContent = before; }, 1500);
}

/* --- CSV of what is shown, in its order; a text that a spreadsheet takes for a formula gets an apostrophe --- */

const FORMULA = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;
const isNumber = (text) => text === text.trim() && text !== "" && Number.isFinite(Number(text));

function csvCell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  if (typeof value === "string" && !isNumber(text) && (FORMULA.test(text) || FORMULA.test(text.trim()))) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText() {
  const kept = (key, value) => value === null || typeof value !== "object" ? !["baseline", "base"].includes(key) : false;
  const records = views.flatMap(([table, rows]) => rows.map((row) => ({
    "data set": table.dataset, network: table.network, split: table.split, statistics: table.statistics,
    ...Object.fromEntries(table.budget), settings: table.differs, score: table.title,
    ...Object.fromEntries(Object.entries(row).filter(([key, value]) => kept(key, value))),
    runs: row.files.map(([name]) => name).join(" "), command: row.commands.join(" ; "),
  })));
  const keys = [...new Set(records.flatMap((record) => Object.keys(record)))];
  return [keys, ...records.map((record) => keys.map((key) => record[key]))]
    .map((cells) => `${cells.map(csvCell).join(",")}\n`).join("");
}

function saveCsv() {
  const href = URL.createObjectURL(new Blob([csvText()], {type: "text/csv"}));
  const save = make("a", {href, download: "board.csv"});
  document.body.append(save);
  save.click();
  save.remove();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

/* --- Light and dark --- */

function kept(value) {
  try {
    if (value) localStorage.setItem("fedshift-theme", value);
    return localStorage.getItem("fedshift-theme");
  } catch { return value || null; } // a page from a disk has no storage in some browsers
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(name) {
  if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
  byId("theme").textContent = isDark() ? "Light" : "Dark";
}

/* --- All of it --- */

/* In-domain and held out by turns, the first of each first. */
function ordered(tables) {
  const place = (table) => tables.filter((other) => other.split === table.split).indexOf(table);
  return [...tables].sort((a, b) => place(a) - place(b) || (a.split < b.split) - (a.split > b.split));
}

function show() {
  settle();
  showForm();
  views = [];
  const tables = ordered(data.tables.filter((table) => fits(table) && shownRows(table).length));
  byId("tables").replaceChildren(...tables.map(showTable));
  const rows = views.reduce((sum, [, of]) => sum + of.length, 0);
  const said = `${tables.length} ${tables.length === 1 ? "table" : "tables"}, ${rows} ${rows === 1 ? "row" : "rows"}`;
  byId("status").textContent = tables.length ? said : "No such rows: choose other models or parameters.";
  byId("csv").disabled = !rows;
  writeAddress();
}

byId("csv").addEventListener("click", saveCsv);
byId("link").addEventListener("click", (event) => copy(location.href, event.target));
byId("theme").addEventListener("click", () => setTheme(kept(isDark() ? "light" : "dark")));
byId("choose").addEventListener("submit", (event) => event.preventDefault());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(null));
window.addEventListener("hashchange", () => { readAddress(); show(); });
setTheme(kept(null));
readAddress();
show();
})();

"""Make the pages of docs/reference of the code, README's table of methods, and the papers in CITATION.cff.

`make docs` takes the pages from here (``on_files``), `python benchmarks/reference_pages.py` writes the other files;
a test compares these with what this script makes of the code.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

from fedshift.cli import citations, commands_page
from fedshift.run.catalog import keys
from fedshift.run.catalog import methods as catalog
from fedshift.site.deploy import policies
from fedshift_app.config import fits, registry
from fedshift_app.node.policy import BUILT_IN, Policy, in_yaml
from fedshift_app.run import exit_codes
from fedshift_core import features
from fedshift_core.extensions import OURS
from fedshift_core.registry import Method
from fedshift_core.wire import counts, names

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "strategies" / "fedshift_strategies" / "__init__.pyi"
MADE = "This page is made of the code, by `make docs`."

METHODS = """\
# Parameters of the methods

{made} `fedshift methods NAME` shows one method in a terminal.

Type a parameter as `fedshift run EXPERIMENT method=NAME method.KEY=VALUE`, or write it in an experiment's file under
`methods:`. A default is that of the method's file in conf/methods. The last column names values that experiments of
papers' tables set."""

EXIT_CODES = """\
# Exit codes

{made} A code keeps its meaning: scripts may rely on it.

`fedshift run --json` prints the code with what the run came to ([CI](../guide/ci.md))."""

WIRE = """\
# What travels

{made} [Security](../deploy/what-leaves.md) says what each of these reveals.

Every message is a Flower `RecordDict`. Its records have fixed names:

| record | type | server to node | node to server |
| --- | --- | --- | --- |
| `arrays` | ArrayRecord | the shared weights | the shared weights after local training |
| `knowledge` | ArrayRecord | what the method shares in addition to weights | what the method's nodes contribute |
| `config` | ConfigRecord | the round, the configuration, scalars for this node | answers in words |
| `metrics` | MetricRecord | | numbers of images, losses, correct and count |
| `start` | ArrayRecord | what a node begins from, once (frozen parts) | |
| `statistics` | ArrayRecord | | BatchNorm statistics, if the run asks for them |
| `counts` | ArrayRecord | | counts of scored test images, if the run asks for them |

Through a SuperLink all arrays of a message travel as one piece (`fedshift_core.wire.packing`). Private parts never
travel."""


#: All exit codes: each with the commands that end with it, what has happened, and what a script can do.
MEANINGS = (
    (exit_codes.OK, "all", "done", "go on"),
    (
        exit_codes.FAILED,
        "all",
        "a mistake in configuration, data or call, or a run that failed; one or two lines on standard "
        "error say what. Of `doctor`: problems. Of `status`: the state is unknown",
        "read the message",
    ),
    (
        exit_codes.WRONG_CALL,
        "all",
        "no such command or option, or an argument is missing; nothing was done",
        "`--help`",
    ),
    (exit_codes.STOPPED_SHORT, "`status`", "the run failed or was interrupted", "`fedshift run resume=FOLDER`"),
    (
        exit_codes.DEGRADED,
        "`run`, `deploy-demo`, `evaluate`, `sweep`, `status`",
        "the run is complete, but lost a part: a node in some round, or rounds or images behind a number",
        "the last lines name it, so do `lost`, `unscored` and `missing_tests` in results.json",
    ),
    (exit_codes.PARTLY_DRAWN, "`report`", "the page is written, without the figures that messages name", "read them"),
    (
        exit_codes.IN_USE,
        "`sweep --in`",
        "another process has this run or its folder; nothing was done",
        "try again later",
    ),
    (
        exit_codes.REFUSED,
        "a run that `sweep` or `tune` starts",
        "its configuration or data are refused, and would be again",
        "correct them",
    ),
    (exit_codes.HANGUP, "all", exit_codes.STOPPED_BY[exit_codes.HANGUP], "`fedshift run resume=FOLDER`"),
    (exit_codes.CTRL_C, "all", exit_codes.STOPPED_BY[exit_codes.CTRL_C], "`fedshift run resume=FOLDER`"),
    (exit_codes.TERMINATED, "all", exit_codes.STOPPED_BY[exit_codes.TERMINATED], "`fedshift run resume=FOLDER`"),
)


def codes() -> str:
    """Return the page of exit codes."""
    head = ("exit code", "of", "what has happened", "what to do")
    rows = [(f"`{code}`", *texts) for code, *texts in MEANINGS]
    return "\n".join([EXIT_CODES.format(made=MADE), "", registry.table(head, rows)]) + "\n"


def commands() -> str:
    """Return the page of commands: outside of code no ``<site>`` is a tag, no ``*`` is lost, and examples are code."""
    parts = re.split(r"(^```.*?^```$)", commands_page.markdown(), flags=re.DOTALL | re.MULTILINE)
    for place in range(0, len(parts), 2):
        text = "`".join(
            part if at % 2 else re.sub(r"<(?=[\w/])", "&lt;", part).replace("/*", r"/\*")
            for at, part in enumerate(parts[place].replace("&quot;", '"').split("`"))
        )
        parts[place] = re.sub(r"^(?=(fedshift|flwr) \w)", "    ", text, flags=re.MULTILINE)
    return "".join(parts)


def methods() -> str:
    """Return the page of the methods' parameters."""
    parts = [METHODS.format(made=MADE)]
    ours = [method for method in registry.listed() if registry.METHODS.origin(method.name) == OURS]
    for method in sorted(ours, key=lambda method: method.name):
        parts.append("\n".join(_method(method)))
    return "\n\n".join(parts) + "\n"


def _method(method: Method) -> Iterator[str]:
    """Yield the lines of a method."""
    path = registry.page(method)
    page = f"[page](..{path.removeprefix('docs')})" if path.startswith("docs") else f"`{path}`"
    yield from (f"## {method.name}", "", f"{method.title} ({method.venue}): {page}.")
    parameters = catalog.parameters(method)
    if not parameters:
        yield from ("", "No parameters of its own.")
        return
    head = ("key", "default", "allowed", "meaning", "papers' tables")
    rows = [(f"`method.{p.key}`", f"`{p.default}`", p.allowed, p.description, p.papers) for p in parameters]
    yield from ("", registry.table(head, rows))
    if method.off:
        yield from ("", f"With `{method.off}` it is FedAvg.")


def wire() -> str:
    """Return the page of what travels: names by their place, counts, and what each method adds."""
    parts = [WIRE.format(made=MADE)]
    for title, constants in _names():
        parts.append("\n".join([f"## {title}", "", registry.table(("constant", "name", "what"), constants)]))
    shapes = [
        (name, " ".join(text.split()).replace("``", "`")) for name, text in _attributes(counts.Counts.__doc__ or "")
    ]
    parts.append("\n".join(["## Counts of test images", "", registry.table(("array", "what"), shapes)]))
    parts.append(_features())
    note = (
        "C classes, D feature width, P any number, S public images. Before each array stands what it "
        "[tells of a node's images](../deploy/policy.md#four-words). `fedshift methods --privacy` prints this table."
    )
    parts.append("\n".join(["## By method", "", note, "", fits.privacy()]))
    return "\n\n".join(parts) + "\n"


def _features() -> str:
    """Return what each feature may put on the wire, as ``fedshift_core.features`` declares it."""
    rows = []
    places = {
        "train": "config, to the node (train)", "evaluate": "config, to the node (evaluate)",
        "train_reply": "metrics, to the server (train)", "evaluate_reply": "metrics, to the server (evaluate)",
        "introduction": "to the server, before round 1", "query": "config, to the node (query)",
        "query_reply": "config, to the server (query)", "records": "a record of its own",
    }  # fmt: skip
    for feature in features.ours():
        named = [(key, place) for field, place in places.items() for key in getattr(feature, field)]
        own = (f"`{feature.name}`", f"`{feature.option}`")
        rows += [(*own, "nothing", "", "", "-")] if not named else []
        rows += [
            (*own, f"`{key.name}`", place, f"{key.holds}: {key.meaning}", _word(feature, key, place))
            for key, place in named
        ]
    note = (
        "A feature is an option that composes with every method. It may send these names and no others: the node and "
        "the server refuse what is not here. The last column says what a number or array "
        "[tells of a node's images](../deploy/policy.md#four-words)."
    )
    head = ("feature", "turned on by", "name", "where", "holds", "tells")
    return "\n".join(["## By feature", "", note, "", registry.table(head, rows)])


def _word(feature: features.Feature, key: features.Key, place: str) -> str:
    """Return the word of a key whose value leaves a node, a dash for one that tells nothing of images."""
    return "-" if "to the node" in place + key.meaning else key.word or feature.word or "-"


def _names() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the names of ``fedshift_core.wire.names`` under the headings of that file, each with its comment."""
    path = Path(names.__file__)
    comments = _comments(path)
    title, rows = "Records and constants", list[tuple[str, str, str]]()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or node.end_lineno is None:
            continue
        headings = [
            text.strip("- ") for line, text in comments.items() if line < node.lineno and text.startswith("---")
        ]
        if headings and (heading := headings[-1].capitalize().replace("->", "to")) != title:
            yield title, rows
            title, rows = heading, []
        said = [comments[line] for line in range(node.lineno, node.end_lineno + 1) if line in comments]
        (target,) = node.targets
        constants = target.elts if isinstance(target, ast.Tuple) else [target]
        shown = ", ".join(f"`{getattr(names, ast.unparse(constant))}`" for constant in constants)
        what = "; ".join(said).replace("``", "`")
        rows.append((", ".join(f"`{ast.unparse(constant)}`" for constant in constants), shown, what))
    yield title, rows


def _comments(path: Path) -> dict[int, str]:
    """Return the comments of a file by line."""
    with path.open("rb") as file:
        return {
            token.start[0]: token.string.lstrip("#: ")
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        }


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a docstring describes."""
    name, text = "", ""
    for line in docstring.partition("Attributes:\n")[2].splitlines():
        body = line.removeprefix("        ")
        if body and not body.startswith(" ") and ": " in body:
            if name:
                yield f"`{name}`", text
            name, _, text = body.partition(": ")
        else:
            text += f" {body.strip()}"
    if name:
        yield f"`{name}`", text


def python() -> str:
    """Return the page of what `import fedshift` gives."""
    sys.path.insert(0, str(Path(__file__).parent))  # a test loads this file by itself
    try:
        import python_page
    finally:
        sys.path.pop(0)
    page: str = python_page.page(MADE)
    return page


def readme() -> str:
    """Return README.md with its table of the methods."""
    before, after = (ROOT / "README.md").read_text(encoding="utf-8").split("## Methods\n\n", 1)
    ours = [method for method in registry.listed() if registry.METHODS.origin(method.name) == OURS]
    names = {
        title: ", ".join(registry.marked(method.name) for method in ours if method.group == group)
        for group, title in registry.GROUP_TITLES.items()
    }
    rows = [(title.partition(":")[0], listed) for title, listed in names.items() if listed]
    _, _, rest = after.partition("\n\n")
    return f"{before}## Methods\n\n{registry.table(('group', 'methods'), rows)}\n\n{rest}"


def citation() -> str:
    """Return CITATION.cff with the papers of the methods, as their entries in BibTeX have them."""
    head = (ROOT / "CITATION.cff").read_text(encoding="utf-8").partition("references:")[0]
    of_entry: dict[str, list[Method]] = {}
    for method in registry.listed():
        own = [method.name] if method.cite else [*(method.cites or ())][-1:]
        if own and registry.METHODS.origin(method.name) == OURS:
            of_entry.setdefault(own[0], []).append(method)
    papers = [_reference(citations.entries()[key], of) for key, of in of_entry.items()]
    listed = yaml.safe_dump(papers, sort_keys=False, allow_unicode=True, width=1000, default_flow_style=None)
    return f"{head}references:\n{listed}"


def _reference(entry: str, methods: Sequence[Method]) -> dict[str, object]:
    """Return an entry as a reference of CFF 1.2.0; the methods that are of it are its keywords."""
    plain = re.sub(r"[{}]", "", entry.replace(r"{\"u}", "ü"))
    fields = dict(re.findall(r"^  (\w+) = (.*),$", plain, re.MULTILINE))
    first, _, last = fields.get("pages", "").partition("--")
    numbered = {"year": "year", "volume": "volume", "number": "issue"}
    names = fields["author"].split(" and ")
    authors = [_author(name, again=name in names[:place]) for place, name in enumerate(names)]
    url = f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else fields.get("url", "")
    of: dict[str, object] = {
        "type": "conference-paper" if "booktitle" in fields else "article",
        "keywords": [method.name for method in methods], "title": fields["title"], "authors": authors,
        "journal": fields.get("journal"), "collection-title": fields.get("booktitle"),
        **{theirs: int(fields[ours]) for ours, theirs in numbered.items() if ours in fields},
        "start": first and int(first), "end": last and int(last), "doi": fields.get("doi"),
        "url": "" if "doi" in fields else url,
        "notes": any(method.approximation for method in methods) and "Here it is an approximation.",
    }  # fmt: skip
    return {key: value for key, value in of.items() if value}


def _author(name: str, *, again: bool) -> dict[str, str]:
    """Return an author of BibTeX; ``again``: there is one of that name already, whom a reader of CFF would refuse."""
    family, _, given = name.partition(", ")
    return (
        {"family-names": family, "given-names": given} if given and not again else {"name": f"{given} {family}".strip()}
    )


def strategies(what: str = "page") -> str:
    """Return the page of strategies for one's own Flower app, or the stub that types them."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import strategies_page
    finally:
        sys.path.pop(0)
    return strategies_page.stub() if what == "stub" else strategies_page.page(MADE)


PAGES: dict[str, Callable[[], str]] = {
    "keys": keys.markdown, "methods": methods, "commands": commands, "exit-codes": codes, "wire": wire,
    "python": python, "strategies": strategies,
}  # fmt: skip
POLICY = "docs/deploy/policy.md"


def on_files(files: Files, config: Any) -> Files:
    """Add the pages to the site, as a hook of mkdocs."""
    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def policy_page() -> str:
    """Return the page of the owner's policy with its table of keys."""
    head = "| key | `strict` | `open` | meaning |\n| --- | --- | --- | --- |\n"
    page = (ROOT / POLICY).read_text(encoding="utf-8")
    before, _, rest = page.partition(head)
    lines = []
    for name, field in Policy.model_fields.items():
        values = (f"`{in_yaml(getattr(start, name))}`" for start in BUILT_IN.values())
        lines.append(f"| `{name}` | {' | '.join(values)} | {policies.meaning(field)} |")
        for key, part in policies.parts_of(field).items():
            default = "required" if part.is_required() else f"default `{in_yaml(part.default)}`"
            lines.append(f"| `{name}.{key}` | | | {policies.meaning(part)} ({default}) |")
    after, table = rest.partition("\n\n")[2], "\n".join(lines)
    return f"{before}{head}{table}\n\n{after}"


#: All files that are written, by their paths.
FILES: dict[str, Callable[[], str]] = {
    "README.md": readme, "CITATION.cff": citation, str(STUB.relative_to(ROOT)): lambda: strategies("stub"),
    POLICY: policy_page,
}  # fmt: skip


def main() -> None:
    """Write all files."""
    for path, made in FILES.items():
        (ROOT / path).write_text(made(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()

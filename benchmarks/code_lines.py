"""Lines of code by package, and imports between the rooms of a package, at a revision.

    python benchmarks/code_lines.py [REVISION ...]
    python benchmarks/code_lines.py --round    # of the files of a round, as docs/architecture.md has them

A line counts if it holds code: blank lines, comments and docstrings do not. A room is a file or folder right in a
package; an arrow is a pair of rooms of which one imports the other.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGES = ("fedshift", "fedshift_app", "fedshift_core", "fedshift_wire", "strategies", "clients", "datasets", "tests")
_INNER = re.compile(
    r"^(strategies|clients|datasets)/(?=fedshift_\1/)"
)  # folders of packages since they have our prefix
_BLANK = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


#: The files that a reader of a round goes through, in their order.
ROUND = (
    "strategies/fedshift_strategies/base.py", "strategies/fedshift_strategies/hooks.py",
    "fedshift_core/wire/messages.py", "fedshift_app/client_app.py", "clients/fedshift_clients/base.py",
    "clients/fedshift_clients/training/trainer.py",
)  # fmt: skip
ROOT = Path(__file__).resolve().parent.parent


def lines_of_a_round() -> dict[str, int]:
    """Return the lines of code of each file of a round, as it is in this folder."""
    return {name: len(code_lines((ROOT / name).read_text(encoding="utf-8"))) for name in ROUND}


def main(revisions: list[str]) -> None:
    """Print a line for each package of each revision."""
    if revisions == ["--round"]:
        lines = lines_of_a_round()
        print("\n".join(f"{number:6} {name}" for name, number in (lines | {"together": sum(lines.values())}).items()))
        return
    for revision in revisions or ["HEAD"]:
        files = _git("ls-tree", "-r", "--name-only", revision).split("\n")
        named = [name for name in files if name.endswith(".py") and name.split("/")[0] in PACKAGES]
        sources = {_INNER.sub("", name): _git("show", f"{revision}:{name}") for name in named}
        lines: Counter[str] = Counter()
        for name, source in sources.items():
            lines[name.split("/")[0]] += len(code_lines(source))
        print(revision)
        for package, number in lines.items():
            rooms, arrows = imports(package, sources)
            print(f"  {package:14} {number:6} lines, {rooms} rooms, {arrows} arrows")
        print(f"  without tests  {sum(lines.values()) - lines['tests']:6} lines")


def code_lines(source: str) -> set[int]:
    """Return the numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and ast.get_docstring(node):
                lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def imports(package: str, sources: dict[str, str]) -> tuple[int, int]:
    """Return the number of rooms of a package, and of pairs of which one imports the other."""
    rooms = {_room(name) for name in sources if name.startswith(f"{package}/")} - {"__init__"}
    arrows = set()
    for name, source in sources.items():
        if not name.startswith(f"{package}/"):
            continue
        for node in ast.walk(ast.parse(source)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module == package:
                modules = [f"{package}.{alias.name}" for alias in node.names]
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            targets = {module.split(".")[1] for module in modules if module.startswith(f"{package}.")}
            arrows |= {(_room(name), target) for target in targets & rooms if target != _room(name)}
    return len(rooms), len(arrows)


def _room(name: str) -> str:
    return name.split("/")[1].removesuffix(".py")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])

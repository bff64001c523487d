"""Print how much of each room the tests cover: statements, covered, percent.

    python benchmarks/coverage_rooms.py COVERAGE.json [BEFORE.json]

The files are of ``coverage json`` (``make coverage`` writes one). With two, a third number is the percentage of BEFORE.
A room is a folder of a package; files right in a package are its room ``*``.
"""

import json
import sys
from collections import Counter
from pathlib import Path


def rooms(file: Path) -> dict[str, tuple[int, int]]:
    """Return the number of statements and of those covered by room."""
    statements, covered = Counter[str](), Counter[str]()
    for name, measured in json.loads(file.read_text(encoding="utf-8"))["files"].items():
        parts = Path(name).parts
        room = "/".join(parts[:2]) if len(parts) > 2 else f"{parts[0]}/*"
        statements[room] += measured["summary"]["num_statements"]
        covered[room] += measured["summary"]["covered_lines"]
    pairs = {room: (number, covered[room]) for room, number in statements.items()}
    return pairs | {"all": (statements.total(), covered.total())}


def main(now: str, *before: str) -> None:
    """Print a line for each room."""
    earlier = rooms(Path(*before)) if before else {}
    for room, (statements, covered) in sorted(rooms(Path(now)).items()):
        old = f"   before {_percent(*earlier[room])}" if room in earlier else ""
        print(f"{room:30} {statements:7,} {covered:7,} {_percent(statements, covered)}{old}")


def _percent(statements: int, covered: int) -> str:
    return f"{100 * covered / max(1, statements):6.1f} %"


if __name__ == "__main__":
    main(*sys.argv[1:])

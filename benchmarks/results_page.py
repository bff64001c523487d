"""Print the tables of docs/results/index.md and docs/results/field.md again from the committed runs, in place.

    python benchmarks/results_page.py

Below each command ``fedshift compare docs/results/... --markdown``, or ``fedshift claims ...``, of a page stands what
it prints: from the table's heading, in bold, to its last remark. The rest of the page is left as it is. A new table
needs its command alone.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "docs" / "results" / "index.md", ROOT / "docs" / "results" / "field.md")
#: A command, and the heading, the rows and the remarks that it printed the last time; nothing if they do not follow.
SHOWN = re.compile(
    r"^    fedshift ((?:compare|claims) docs/results/[^\n]*--markdown)\n+"
    r"(\*\*[^\n]*\*\*\n\n(?:\|[^\n]*\n)+\n(?:- [^\n]*\n)+\n?)?",
    re.M,
)


def printed(command: str) -> str:
    """Return what ``fedshift COMMAND`` prints. Raises SystemExit with its message if it fails."""
    arguments = [sys.executable, "-m", "fedshift.cli", *shlex.split(command)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"fedshift {command}:\n{done.stderr}")
    return done.stdout.strip()


def refreshed(page: str) -> str:
    """Return the page with each table as its command prints it now."""
    return SHOWN.sub(lambda found: f"    fedshift {found[1]}\n\n{printed(found[1])}\n\n", page).rstrip("\n") + "\n"


def main() -> None:
    """Write the pages anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = refreshed(text)
        if new != text:
            page.write_text(new, encoding="utf-8")
        print(f"{page.name}: {len(SHOWN.findall(text))} tables, {'written anew' if new != text else 'nothing new'}")


if __name__ == "__main__":
    main()

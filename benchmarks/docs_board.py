"""Hook of mkdocs: writes the leaderboard of docs/results into the site, as ``results/board.html``.

The page is what ``fedshift compare --board FILE docs/results`` writes, with links to the site's pages of methods.
``FEDSHIFT_BOARD_RUNS`` names another folder of runs.
"""

import os
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from fedshift.lab.tables.compare import board, board_page

ROOT = Path(__file__).resolve().parent.parent
PAGE = "results/board.html"
RUNS = "FEDSHIFT_BOARD_RUNS"


def on_files(files: Files, config: Any) -> Files:
    """Add the page to the files of the site."""
    before = Path.cwd()
    os.chdir(ROOT)  # the commands on the page name docs/results
    try:
        made = board.board([Path(os.environ.get(RUNS, "docs/results"))])
        text = board_page.page(made, None, page_of)
    finally:
        os.chdir(before)
    files.append(File.generated(config, PAGE, content=text))
    return files


def page_of(method: str) -> str:
    """Return the link from the leaderboard to a method's page in the site; empty if it has none."""
    return f"../methods/{method}/" if (ROOT / "docs" / "methods" / f"{method}.md").is_file() else ""

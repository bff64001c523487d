"""The notebooks of docs/notebooks run from top to bottom, and hold what such a run gave."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
MOST_BYTES = 200_000  # of a notebook with its outputs


def cells(name: str) -> list[dict[str, Any]]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_holds_what_a_run_gave(name: str) -> None:
    """In order, without an error, and without a path or a warning of the machine that ran it."""
    assert [cell["execution_count"] for cell in cells(name)] == list(range(1, len(cells(name)) + 1))
    outputs = [output for cell in cells(name) for output in cell["outputs"]]
    assert outputs and not any(output["output_type"] == "error" for output in outputs)
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert "/tmp/" not in text and "/home/" not in text and "/root/" not in text and "Warning" not in text


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_in_a_kernel(name: str, tmp_path: Path) -> None:
    """In a running event loop, with the line of progress; cells without a number of the run give what they gave."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    book = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    client = nbclient.NotebookClient(book, timeout=1800, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert any("completed" in str(output.get("data", {}).get("text/plain", "")) for output in shown)

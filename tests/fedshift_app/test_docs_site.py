"""The docs as a site: built without a network, with no link that leads nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT


def test_it_is_built_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in (ROOT / "docs" / "methods").glob("*.md")} - {"index"}
    assert all((tmp_path / "site" / "methods" / page / "index.html").is_file() for page in pages)
    text = (tmp_path / "site" / "index.html").read_text()
    assert "fonts.googleapis.com" not in text and "FedShift" in text

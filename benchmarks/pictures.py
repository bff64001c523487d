"""Makes two of README's pictures: the report of ``make demo``'s run, and a table with its figures.

    python benchmarks/pictures.py [--runs DIR] [--output DIR]

The runs are made by the commands that README shows, in a folder that is removed afterwards; with ``--runs`` they stay
there, and those that are finished there are not made again. Chromium or Chrome draws the pages.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import alone  # noqa: F401  # lets a checkout that is not installed run
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DEMO = ("run", "handwritten", "method=i2pfl", "name=demo")
SWEEP = (
    "sweep", "handwritten", "method=fedavg,fedprox,i2pfl", "seed=0,1,2", "nodes=4", "rounds=10", "train.epochs=2",
    "engine=inline", "report=false",
)  # fmt: skip
#: Width and height of each picture in pixels: a page of 1280 pixels to the end of a row of figures.
SIZES = {"report.png": (1280, 1040), "compare.png": (1280, 800)}
SECONDS = 300  # for the browser to draw one page


def main() -> None:
    """Make the runs, their pages and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder where the runs stay, or are already")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images", help="folder of the pictures")
    given = parser.parse_args()
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"pictures: no browser found; install one of {', '.join(BROWSERS)}")
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedshift-pictures-") as folder:
        runs = (given.runs or Path(folder)).resolve()
        pages = {"report.png": _report(runs), "compare.png": _table(runs)}
        for name, page in pages.items():
            _draw(browser, page, given.output / name, SIZES[name])
            print(given.output / name)


def _report(runs: Path) -> Path:
    """Return the report of the demo's run."""
    page = runs / "demo" / "report.html"
    if not page.is_file():
        _fedshift(*DEMO, f"output-dir={runs}")
    return page


def _table(runs: Path) -> Path:
    """Return the page of the comparison."""
    page, folder = runs / "table.html", runs / "table"
    if not page.is_file():
        _fedshift(*SWEEP, f"output-dir={folder}")  # goes on where one was cut off
    _fedshift("compare", *map(str, sorted(folder.glob("sweep-*"))), "--html", str(page))
    return page


def _fedshift(*words: str) -> None:
    """Run a command of FedShift; end with its exit code if it fails."""
    done = subprocess.run([sys.executable, "-m", "fedshift", *words], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def _draw(browser: str, page: Path, picture: Path, size: tuple[int, int]) -> None:
    """Write the first screen of a page as a picture, in the light colours."""
    width, height = size
    with tempfile.TemporaryDirectory(prefix="fedshift-browser-") as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", f"--screenshot={picture.resolve()}", page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode or not picture.is_file():
        sys.exit(f"pictures: {browser} drew no picture of {page}: {(done.stderr.splitlines() or ['no message'])[-1]}")
    with Image.open(picture) as drawn:  # few colours: a third of the bytes
        small = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    main()

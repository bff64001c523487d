"""The figures of a comparison as files for a paper: PDF, SVG and PNG, with their captions and the curves as CSV."""

import logging
import re
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedshift.lab.tables.compare import figures, frame
from fedshift.lab.tables.compare.table import Numbers
from fedshift.run.html.drawing import MISSING_GLYPH, Plot, style
from fedshift_core.atomic_io import write_atomically
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, shown
from fedshift_core.spelling import meant

log = logging.getLogger("fedshift")

#: By format, the metadata with which the same figure is the same file.
FORMATS: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
DPI = 300  # of PNG
#: How text is kept: as fonts in PDF, which journals ask for, as shapes in SVG, which look the same everywhere.
_KEPT: dict[Any, Any] = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "fedshift"}


def plots(numbers: Numbers) -> dict[str, Plot]:
    """Return the figures of a comparison by name."""
    return {plot.name: plot for plot in figures.plots(numbers).drawn}


def figure(numbers: Numbers, name: str) -> Figure:
    """Return a figure by its name, in the colours of a white page.

    Raises:
        ConfigError: If there is none of that name; the message lists those there are.
    """
    by_name = plots(numbers)
    if name not in by_name:
        raise ConfigError(f"no figure {as_found(name)}; there are {', '.join(by_name) or 'none'}{meant(name, by_name)}")
    with style():
        return by_name[name].figure


def write(numbers: Numbers, folder: Path) -> list[Path]:
    """Write each figure in each format, their captions, and the curves as CSV.

    Args:
        numbers: The comparison.
        folder: Where to; it is made. Files of the same names are replaced.

    Returns:
        The files.

    Raises:
        ConfigError: If there is no figure, or a file cannot be written.
    """
    drawn, lacking = figures.plots(numbers)
    if not drawn:
        raise ConfigError(f"--figures: no figure can be drawn: {' '.join(lacking)}")
    captions = [*(f"{plot.name}: {plot.caption}" for plot in drawn), *lacking]
    texts = {"captions.txt": "\n".join([*captions, ""])}
    texts |= {"curves.csv": frame.csv(frame.curves(numbers))} if any(plot.name == "curves" for plot in drawn) else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with style(), mpl.rc_context(_KEPT), warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", MISSING_GLYPH, UserWarning)
            for plot in drawn:
                plot.figure.draw_without_rendering()
                plot.figure.set_layout_engine("none")  # it is laid out, which each file would do again
                for ending, metadata in FORMATS.items():
                    plot.figure.savefig(folder / f"{plot.name}.{ending}", dpi=DPI, metadata=metadata)
        for file, text in texts.items():
            write_atomically(folder / file, text)
    except OSError as error:
        raise ConfigError(f"--figures: cannot write into {shown(folder)}: {error.strerror}") from None
    if any(re.match(MISSING_GLYPH, str(warning.message)) for warning in caught):
        log.warning(
            "--figures: no font of this machine has all letters of the names, those that lack are boxes; a font such "
            "as Noto Sans CJK has them"
        )
    return [folder / file for file in (*(f"{plot.name}.{ending}" for plot in drawn for ending in FORMATS), *texts)]

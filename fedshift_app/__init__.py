"""The Flower glue, and what a person runs."""

import sys
from pathlib import Path

# A wheel's packages lie where all others of an environment do, and in fedshift/app what Flower makes a bundle of.
ROOT = Path(__file__).resolve().parent.parent
APP = app if (app := ROOT / "fedshift" / "app").is_dir() else ROOT
if APP == ROOT:  # a bundle or a checkout, whose packages are in folders of these names
    for _folder in ("datasets", "clients", "strategies", ""):
        if (_place := str(APP / _folder)) not in sys.path:
            sys.path.insert(0, _place)

from fedshift_core import __version__ as __version__  # noqa: E402

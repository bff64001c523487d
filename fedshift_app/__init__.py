"""The Flower glue, and what a person runs."""

import sys
from pathlib import Path

# The packages of a bundle, a checkout and a wheel are in folders of these names next to this package.
APP = Path(__file__).resolve().parent.parent
for _folder in ("datasets", "clients", "strategies", ""):
    if (_place := str(APP / _folder)) not in sys.path:
        sys.path.insert(0, _place)

from fedshift_core import __version__ as __version__  # noqa: E402

"""The Flower glue, and what a person runs."""

import sys
from pathlib import Path

# Hugging Face's library is called `datasets` too: FedShift's folder comes first. (A Flower App Bundle is
# first on the path anyway.)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import datasets
from fedshift_core import __version__ as __version__

if not getattr(datasets, "FEDSHIFT", False):
    raise ImportError(
        f"FedShift's package 'datasets' is hidden by {datasets.__file__}, which this process imported before: "
        "run FedShift in a process of its own, see docs/start/installing.md."
    )

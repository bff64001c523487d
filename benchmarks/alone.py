"""Lets a benchmark run from a checkout that is not installed. Without Flower a stand-in takes its place.

Import it before anything of FedShift.
"""

import importlib.util
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if importlib.util.find_spec("flwr") is None:
    flower, client_module = types.ModuleType("flwr"), types.ModuleType("flwr.client")
    client_module.NumPyClient = object  # type: ignore[attr-defined]
    sys.modules |= {"flwr": flower, "flwr.client": client_module}

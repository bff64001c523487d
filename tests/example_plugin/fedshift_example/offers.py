"""What the package offers; pyproject.toml names each as an entry point."""

from pathlib import Path

from clients.models.catalog import Network
from datasets.base import Dataset
from fedshift_core.registry import method_file
from fedshift_example import data

METHOD = method_file(Path(__file__).with_name("equal-domains.yaml"))
DATASET = Dataset("stripes", "Stripes in four directions", data.DOMAINS, data.CLASSES, 32, data.find)
NETWORK = Network("tiny", "two convolutions, 32 features", "fedshift_example.network:tiny")

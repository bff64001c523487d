"""What the package offers; pyproject.toml names each as an entry point."""

from pathlib import Path

from fedshift_clients.models.catalog import Network
from fedshift_core.features import Feature, Key
from fedshift_core.registry import method_file
from fedshift_datasets.base import Dataset
from fedshift_example import data
from fedshift_example.norms import NORM, WeightNormsParams

METHOD = method_file(Path(__file__).with_name("equal-domains.yaml"))
DATASET = Dataset("stripes", "Stripes in four directions", data.DOMAINS, data.CLASSES, 32, data.find)
NETWORK = Network("tiny", "two convolutions, 32 features", "fedshift_example.network:tiny")
FEATURE = Feature(
    "weight-norms",
    "The median length of the nodes' weights, in the log of each round",
    "features",
    "fedshift_example.norms_server:WeightNorms",
    "fedshift_example.norms_node:WeightNormsOnNode",
    WeightNormsParams,
    train_reply=(Key(NORM, "float", "length of the weights after local training"),),
    tells="the length of the weights that the node has trained",
)

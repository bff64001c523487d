"""What a strategy declares that it sends its nodes, which nodes hold messages against."""

from typing import Any

import numpy as np
import pytest

from fedshift_app.config import registry
from fedshift_core.arrays import Arrays
from strategies.contributions import declared
from strategies.fedproto import FedProtoStrategy


@pytest.mark.parametrize("method", registry.METHODS)
def test_methods_declare_what_they_send_their_nodes(method: str) -> None:
    """What they send indeed is held against it in each run of any test, as in any run."""
    strategy = registry.get(method).strategy_class()
    assert declared(strategy, "sends") is not None
    assert declared(strategy, "tells") is not None


def test_a_method_that_does_not_declare_may_send_anything() -> None:
    class Sends(FedProtoStrategy):
        def knowledge_for(self, node: Any, ask: Any) -> Arrays:
            return {"own": np.zeros(1)}

    class Says(Sends):
        sends = ("own",)

    class Weighs(FedProtoStrategy):
        def weights(self, updates: Any) -> list[float]:
            return []

    assert declared(Sends, "sends") is None
    assert declared(Says, "sends") == ("own",)
    assert declared(Weighs, "sends") == ("prototypes", "labels")

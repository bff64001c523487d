"""What features keep from round to round is what a resumed run gives back to them."""

import numpy as np
import pytest
from refusals import refused
from support import federation

from fedshift_app.config.sections import ServerConfig
from fedshift_app.features.server_optimizer.server import ServerOptimizer
from fedshift_core.errors import FederationError
from fedshift_strategies.features.catalog import Features


@pytest.mark.parametrize("name", ["medians", "m/medians", "other/x"])
def test_a_feature_keeps_what_begins_with_its_prefixes_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features(federation(server=ServerConfig(optimizer="fedadam")))
    mine = next(feature for feature in features if not isinstance(feature, ServerOptimizer))
    monkeypatch.setattr(type(mine), "prefixes", ("mine/", "m/"))
    mine.state = {"mine/x": np.ones(2)}
    kept = features.state
    for feature in features:
        feature.state.clear()
    features.state = kept
    assert kept.keys() == mine.state.keys() == {"mine/x"}
    mine.state[name] = np.ones(2)
    with refused(FederationError, mine.name, name):
        _ = features.state

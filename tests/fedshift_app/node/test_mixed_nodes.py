"""Nodes with images of several domains (``allocation.mixing``), alone and in whole runs."""

import numpy as np
import pytest
from placed_nodes import config, place
from refusals import refused

from fedshift_app.node.data import own_images
from fedshift_core.errors import ConfigError

FEW = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"


def test_a_node_trains_on_both_domains_and_knows_of_which_an_image_is() -> None:
    alone, mixed = (config(f"{FEW} allocation.mixing={part}") for part in (0, 0.5))
    for index in range(4):
        before, after = own_images(alone, place(alone, index, 4)), own_images(mixed, place(mixed, index, 4))
        assert before.train.domains is None
        assert after.train.domains is not None
        home = mixed.dataset.domains.index(place(mixed, index, 4).domain)
        of_home = int((after.train.domains == home).sum())
        assert len(after.train) == len(before.train)
        assert 0.7 * len(after.train) <= of_home <= 0.8 * len(after.train)  # half, and half of the other half
        kept = {mark.tobytes() for mark in before.train.marks}
        assert sum(mark.tobytes() in kept for mark in after.train.marks) >= len(before.train) // 2
        assert np.array_equal(after.train.select(np.arange(3)).domains, after.train.domains[:3])


def test_the_domain_of_an_image_can_be_unknown() -> None:
    cfg = config(f"{FEW} allocation.mixing=0.5 allocation.domain_labels=unknown")
    assert own_images(cfg, place(cfg, 0, 4)).train.domains is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("allocation.mixing=1.5", 1.5),
        ("allocation.mixing=0.5 allocation.test_fraction=0.2", "test_fraction"),
        ("allocation.mixing=0.5 shift.label_mix=own", "shift.label_mix=own"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, named: object) -> None:
    with refused(ConfigError, "mixing", named):
        config(f"{FEW} {text}")

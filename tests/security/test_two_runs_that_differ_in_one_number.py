"""Runs of plain `flwr run` that ask real nodes for sets of images which differ by a few, and read the difference."""

import re
from pathlib import Path

import pytest
from real_federation import federation
from support import ROOT

#: Of 180 images a node; a class has some 18.
IMAGES = "dataset.domains=[scan,sketch] allocation.share=0.5"
FIRST = "evaluate.bn=[averaged,retaken] evaluate.bn_images=30 model.name=cnn_bn allocation.validation_fraction=0.1"
#: A run that is the first one but for one number, and what nodes say of it.
LATER = [
    ("allocation.validation_fraction=0.107", "allocation.validation_fraction=0.107, allowed is 0.1"),
    ("evaluate.bn_images=31", "evaluate.bn_images=31, allowed is 30"),
]


@pytest.mark.slow
@pytest.mark.long
def test_a_second_run_with_other_parts_is_refused_and_the_same_one_is_not(tmp_path: Path) -> None:
    with federation(tmp_path, images=IMAGES) as site:
        wait = "federation.min_nodes=2"
        first = site.run(ROOT, set=f"{FIRST} {wait}")
        assert "round 1/1" in first, first
        again = site.run(ROOT, set=f"{FIRST} {wait}", seed=5)  # the seed parts nothing
        assert "round 1/1" in again, again
        for number, why in LATER:
            said = site.run(ROOT, set=f"{FIRST} {number} {wait}")
            assert why in said and "parted once for good" in said, said
            assert not re.search(r"round 1/1 .* (bn=retaken|validation)", said), said

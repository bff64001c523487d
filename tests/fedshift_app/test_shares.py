"""`benchmarks/shares.py`: each stack belongs to one part, and the boxes of a flame graph are as wide as their share."""

import collections
import xml.etree.ElementTree as ET
from types import ModuleType

import pytest
from support import ROOT, load_benchmark

LOOP = "flwr/serverapp/strategy/strategy.py:Strategy.start"


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return load_benchmark("shares")


def test_the_innermost_of_our_files_names_the_part(shares: ModuleType) -> None:
    train = "clients/fedshift_clients/training/trainer.py:LocalTrainer.fit"
    assert shares.part_of((LOOP, train, "torch/nn/modules/conv.py:Conv2d.forward")) == "training and scores"
    assert shares.part_of((LOOP, train, "fedshift_core/wire/records.py:encode")) == "messages"
    assert (
        shares.part_of(
            (
                LOOP,
                "strategies/fedshift_strategies/base.py:read",
                "strategies/fedshift_strategies/federation/checks.py:check",
            )
        )
        == "checks"
    )
    assert shares.part_of((LOOP, "flwr/app/message.py:copy")) == shares.OTHER
    assert shares.part_of((train,)) == shares.START  # before the first round
    assert shares.part_of((LOOP, "<frozen importlib._bootstrap>:_find_and_load", train)) == shares.START


def test_a_box_of_the_flame_graph_is_as_wide_as_its_share(shares: ModuleType) -> None:
    stacks = collections.Counter({("a.py:<f>", "b.py:g"): 3, ("a.py:<f>", "c.py:h"): 1})
    root = ET.fromstring(shares.flame(stacks, "made by <this>"))
    space = "{http://www.w3.org/2000/svg}"
    widths = {box[0].text: (box[1].get("x"), box[1].get("width")) for box in root.findall(f"{space}g")}
    assert widths == {
        "a.py:<f> 100.0 %": ("0.0", "1200.0"), "b.py:g 75.0 %": ("0.0", "900.0"), "c.py:h 25.0 %": ("900.0", "300.0"),
    }  # fmt: skip

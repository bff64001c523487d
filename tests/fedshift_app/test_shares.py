"""`benchmarks/shares.py`: each stack belongs to one part, and the boxes of a flame graph are as wide as their share."""

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

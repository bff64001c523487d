"""A run's progress below a cell of a notebook, and none at all."""

from pathlib import Path

from fedshift.run.launch import progress_table
from fedshift.run.launch.progress_line import line_of

STATUS = {"method": "fedavg", "experiment": "handwritten", "rounds": 4, "state": "training", "seconds_left": 75.0}
ROUNDS = [{"accuracy": {"scan": 80.0, "sketch": 40.0}}, {"accuracy": None}]


def test_a_line_says_how_a_run_stands() -> None:
    watched = progress_table.Watched(Path("none"))
    assert line_of(watched) == "the run is being prepared"
    watched.status, watched.rounds, watched.left = STATUS, ROUNDS, 75.0
    assert line_of(watched) == (
        "fedavg on handwritten  [##########..........] 2/4  avg 60.0  worst sketch 40.0  left 1:15  training"
    )
    watched.status, watched.rounds, watched.left = STATUS | {"rounds": 0}, [], None
    assert line_of(watched) == "fedavg on handwritten  [....................] 0/1  training"
    watched.features = {"done": 2056, "of": 8224}
    assert line_of(watched) == "features of images, computed once: 2,056 of 8,224"

"""Nodes that have not trained yet: ``evaluate.untrained`` says whether models that nobody has trained are scored."""

import operator
from itertools import accumulate
from pathlib import Path

import pytest
from killing import resume, start
from support import InlineRun, Run
from words import config as config_of

from fedshift.lab.grid.rescore import command
from fedshift_app.node import setup

SHORT = "train.epochs=1 allocation.share=0.05"
HALF = f"{SHORT} federation.participation=0.5"
COUNT = "evaluate.untrained=count"


def late(run: Run) -> list[list[int]]:
    """Return by round the nodes that had trained in no round until then, of four."""
    trained = accumulate(({*line["nodes"]} for line in run.rounds), operator.or_)
    return [sorted({*range(4)} - had) for had in trained]


@pytest.mark.parametrize("typed", ["fedbn model.name=cnn_bn", "fedproto"])
def test_they_are_left_out_unless_they_count(run_inline: InlineRun, typed: str) -> None:
    out, counted = (run_inline(f"rounds=2 seed=3 {HALF} method={typed} {more}") for more in ("", COUNT))
    assert out.results["weights_sha256"] == counted.results["weights_sha256"]
    missing = late(out)
    assert missing[0] and late(counted) == missing
    for run in (out, counted):
        assert [line.get("untrained", []) for line in run.rounds] == missing
        assert run.results["untrained"] == {str(i): nodes for i, nodes in enumerate(missing, 1) if nodes}
        assert len(run.events("untrained")) == sum(map(bool, missing))
    domains = [*out.results["domains"]]  # one node of each, in their order
    for line, other, nodes in zip(out.rounds, counted.rounds, missing, strict=True):
        assert None not in other["accuracy"].values()
        assert line["accuracy"] == other["accuracy"] | {domains[i]: None for i in nodes}
        assert (line["avg"] is None) == bool(nodes)  # over fewer domains it would be another number


def test_who_has_trained_is_known_after_a_resume_and_to_rescore(tmp_path: Path) -> None:
    run, to = start(tmp_path / "runs", method="local", rounds=1, seed=3, set=HALF), tmp_path / "again"
    for _ in range(2):  # the second time all is there
        command.rescore([str(run.folder), f"output-dir={to}", "evaluate.untrained=leave_out,count", "jobs=1"])
    lines = [Run(path).rounds[-1] for path in to.iterdir()]
    assert all(line["untrained"] == run.rounds[-1]["untrained"] for line in lines)
    assert sorted([*line["accuracy"].values()].count(None) for line in lines) == [0, 2]
    longer = resume(tmp_path / "runs", rounds=3)
    assert [line.get("untrained", []) for line in longer.rounds] == late(longer)


OWN_PARTS = ["local", "fdse", "fedproto", "fedtgp", "fedsa", "fedpall", "fedgh", "fedrep", "fedcode", "fedthe"]
OWN_PARTS += ["fedmd dataset.public=0.05", "fedbn model.name=cnn_bn", "fedprox model.name=cnn_bn model.bn=local"]
OWN_PARTS += ["fedavg modules=[f2dc] modules.f2dc.local_modules=local modules.f2dc.eval_modules=client_mean"]
NO_OWN_PARTS = ["fedavg", "scaffold", "feddyn", "moon", "fedsr", "fedala", "ditto", "fedpac", "fedavg-ft", "fedseproto"]
NO_OWN_PARTS += ["fedproto method.share_weights=true", "tent model.name=cnn_bn"]


@pytest.mark.parametrize("typed", OWN_PARTS + NO_OWN_PARTS)
def test_which_methods_have_parts_that_only_a_node_trains(typed: str) -> None:
    method, _, more = typed.partition(" ")
    config = config_of(f"method={method} {more}")
    assert setup.has_own_parts(config, setup.initial_model(config)) is (typed in OWN_PARTS)

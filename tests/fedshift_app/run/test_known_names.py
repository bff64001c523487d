"""Which names of losses and scores the server knows, and that honest runs of every kind keep to them and to numbers."""

import pytest
from support import InlineRun

from fedshift_app.config.resolving import resolve
from fedshift_app.run import build as run_build

TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"


def known(method: str, settings: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
    result = run_build.prepare(resolve({"method": method, "set": settings}), "inline")[1].model
    return result.terms, result.scores


def test_names_come_from_the_method_its_modules_and_the_adaptation() -> None:
    assert known("fedavg") == (("ce",), ())
    assert known("fedprox") == (("ce", "prox"), ())
    assert known("fedicon") == (("ce", "supcon", "instance"), ("before-adaptation",))
    assert known("fedcode") == (("ce", "semcl", "stycl", "fdr"), ("global",))
    assert known("f2dc") == (("ce", "dfd", "dfc"), ())
    both = known("fedprox", "modules=[f2dc] adapt.name=finetune")
    assert both == (("ce", "prox", "dfd", "dfc"), ("before-fine-tuning",))


@pytest.mark.parametrize(
    ("method", "settings", "terms", "scores"),
    [
        pytest.param(
            "fedicon",
            "method.supervised=false method.classifier_rounds=1",
            {"instance", "ce"},
            {"before-adaptation"},
            marks=pytest.mark.long,
        ),
        ("fedprox", "modules=[f2dc] adapt.name=finetune", {"ce", "dfd", "dfc"}, {"before-fine-tuning"}),
        ("fedavg", "shift.label_mix=own evaluate.client_models=every", {"ce"}, set()),
        pytest.param(
            "fedcode",
            "method.global_model=average_heads allocation.validation_fraction=0.3 images.eval_batch=4",
            {"ce"},
            {"global"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "fedbn",
            "allocation.held_out=[sketch] evaluate.client_models=every model.name=cnn_bn",
            {"ce"},
            set(),
            marks=pytest.mark.long,
        ),
    ],
)
def test_honest_nodes_are_never_left_out(
    method: str, settings: str, terms: set[str], scores: set[str], run_inline: InlineRun
) -> None:
    run = run_inline(method=method, rounds=2, nodes=6, set=f"{TINY} {settings}", profile=True)
    result: set[str] = set()
    for line in run.rounds:
        assert line["left_out"] == []
        assert line["nodes"] == list(range(6))
        assert None not in (line["accuracy"] or {}).values()  # fedicon scores no round of its encoder
        result |= set(line["losses"])
    assert {f"loss/{term}" for term in terms} <= result
    assert set(run.results.get("others", {})) == scores

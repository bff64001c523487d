"""Which names of losses and scores the server knows, and that honest runs of every kind keep to them and to numbers."""

import pytest
from support import InlineRun

TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"


@pytest.mark.parametrize(
    ("method", "settings", "terms", "scores"),
    [
        ("fedprox", "modules=[f2dc] adapt.name=finetune", {"ce", "dfd", "dfc"}, {"before-fine-tuning"}),
        ("fedavg", "shift.label_mix=own evaluate.client_models=every", {"ce"}, set()),
        pytest.param(
            *("fedicon", "method.supervised=false method.classifier_rounds=1", {"instance"}, {"before-adaptation"}),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("fedcode", "method.global_model=average_heads allocation.validation_fraction=0.3", {"ce"}, {"global"}),
            marks=pytest.mark.long,
        ),
    ],
)
def test_honest_nodes_are_never_left_out(
    method: str, settings: str, terms: set[str], scores: set[str], run_inline: InlineRun
) -> None:
    run = run_inline(f"method={method} nodes=4 rounds=2 profile=true {TINY} {settings}")
    for line in run.rounds:
        assert (line["left_out"], line["nodes"]) == ([], [*range(4)])
        assert None not in (line["accuracy"] or {}).values()  # fedicon scores no round of its encoder
    assert {f"loss/{term}" for term in terms} <= {name for line in run.rounds for name in line["losses"]}
    assert set(run.results.get("others", {})) == scores

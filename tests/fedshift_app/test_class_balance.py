"""Classes of unequal numbers of images in runs: what is refused, what travels, and what it does to rare classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_trees import fill
from refusals import refused
from support import InlineRun
from traffic import Pair, asked, noting
from words import config as config_of

import fedshift as fs
from fedshift.data import init
from fedshift.lab.grid.costs import measuring
from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.config import needs, registry
from fedshift_app.config.resolving import resolve
from fedshift_clients.base import DomainClient
from fedshift_clients.losses.imbalance import class_loss
from fedshift_clients.modules.base import Modules
from fedshift_clients.training.batches import Batch
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.params import Params
from fedshift_core.wire.names import CLASS_TOTALS

SHORT = "train.epochs=1 allocation.share=0.05 dataset.domains=[scan,sketch]"


# --- what is refused -------------------------------------------------------------------------------


def squares(client: Any, batch: Batch) -> dict[str, Any]:
    return {"x": client.forward(batch.x)[1].square().mean()}


def kind_of(**functions: Any) -> type[DomainClient]:
    return type("Kind", (DomainClient,), functions)


def test_a_method_with_a_loss_of_its_own_is_refused_by_name() -> None:
    changed = kind_of(loss=squares)
    quiet = type("Quiet", (Modules,), {"terms": lambda self, model, batch: {}})
    assert not changed.can_weigh_classes() and not quiet.can_weigh_classes()
    method = registry.get("fedavg").model_copy(update={"name": "mine", "client": changed})
    for key in ("train.class_weights=balanced", "train.loss=focal"):
        with refused(ConfigError, key, "'mine'", "self.cross_entropy"):
            needs.check(needs.Case(method, Params(), {}, config_of(key)))
    needs.check(needs.Case(method, Params(), {}, config_of("train.sampler=balanced")))


def test_all_of_our_methods_weigh_classes_by_the_one_function() -> None:
    """GGEUR trains on as many rows of each class."""
    ours = [method for method in registry.listed() if registry.METHODS.origin(method.name) == OURS]
    assert len(ours) > 30
    assert [method.name for method in ours if not method.client_class().can_weigh_classes()] == ["ggeur"]


# --- what travels ----------------------------------------------------------------------------------


def totals(seen: list[Pair], kind: str) -> list[Any]:
    """Return the numbers by class that messages of a kind carried."""
    return [asked(m).get(CLASS_TOTALS) for m, _ in seen if m.metadata.message_type == kind]


FEDERATION = f"{SHORT} train.class_weights=balanced train.class_counts=federation"


def test_numbers_of_the_federation_travel_where_they_are_asked_for(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    run = run_inline(f"rounds=1 {FEDERATION}", grid=noting(seen))
    wanted = np.sum([node["class_counts"] for node in run.results["nodes"]], axis=0).tolist()
    assert {*totals(seen, "query")} == {None}
    told = totals(seen, "train") + totals(seen, "evaluate")
    assert len(told) > 4 and all(counts == wanted for counts in told)


def test_a_run_with_them_is_saved_reported_and_counted(run_inline: InlineRun, tmp_path: Path) -> None:
    run = run_inline(f"nodes=2 rounds=1 {FEDERATION}")
    fs.load(run.folder).save(tmp_path / "saved")
    record = reading.read(run.folder, "report")
    client = predictions.client_of(record, record.config, record.nodes[0].domain, record.nodes[0], trains=True)
    counts = np.sum([node.class_counts for node in record.nodes], axis=0)
    expected = class_loss(record.config.train, counts, client.class_names, client.setup.device).weights
    assert expected is not None and client.class_loss.weights is not None
    assert client.class_loss.weights.tolist() == expected.tolist()
    assert measuring.measure("fedavg", record.config, len(record.nodes))
    sight = predictions.look(record, None, 20)
    assert len(sight.views) == len(record.config.dataset.domains) and not sight.missing


def test_nothing_travels_otherwise_and_neutral_weights_change_nothing(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    plain = run_inline(f"nodes=2 rounds=1 {SHORT}", grid=noting(seen))
    assert {*totals(seen, "train"), *totals(seen, "evaluate"), *totals(seen, "query")} == {None}
    ones = ", ".join(f'"{k}": 1' for k in range(10))
    neutral = "train.class_weights=effective train.class_beta=0 train.loss=focal train.focal_gamma=0"
    for given in (neutral, f"'train.class_weights={{{ones}}}'"):
        (line,) = run_inline(f"nodes=2 rounds=1 {SHORT} {given}").rounds
        assert line["losses"]["loss"] == pytest.approx(plain.rounds[0]["losses"]["loss"], rel=1e-5)


# --- what it does ----------------------------------------------------------------------------------


def test_init_proposes_weights_where_it_sees_unequal_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site, bars, discs in (("north", 24, 4), ("south", 10, 9)):
        fill(tmp_path / "images" / site / "train", {"bar": bars, "disc": discs})
        fill(tmp_path / "images" / site / "test", {"bar": 1, "disc": 1})
    path = init.init(str(tmp_path / "mine"), [f"data-dir={tmp_path / 'images'}"])
    said = "north has 24 of bar and 4 of disc (ratio 6)"
    assert said in capsys.readouterr().out and said in path.read_text()
    assert resolve({"experiment": str(path)}).train.class_weights == "balanced"
    labels = {("a", "train"): np.array([0] * 5 + [1] * 2), ("a", "test"): np.array([0] * 9 + [1])}
    assert not init.unequal(labels, ("x", "y"))

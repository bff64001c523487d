"""Classes of unequal numbers of images in runs: what is refused, what travels, and what it does to rare classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType
from PIL import Image
from refusals import refused
from support import InlineRun, ListeningGrid
from torch.nn import functional as F

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
from fedshift_clients.training.phases import Phase
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS
from fedshift_core.params import Params
from fedshift_core.wire.names import CLASS_TOTALS, CONFIG
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

SHORT = "train.epochs=1 allocation.share=0.05 dataset.domains=[scan,sketch]"
#: Images of a class in each site's training part: the last ones are rare.
NUMBERS = (60, 60, 6, 4)
SITES = ("scan",)


def sites(root: Path) -> Path:
    """Write a site of four digits: many zeros and ones, few twos and threes; the test part has all alike."""
    root.mkdir()
    for site in SITES:
        for split in ("train", "test"):
            images = catalog.DATASETS["handwritten"].find(site, split, Source(None)).read()
            kept = [
                np.flatnonzero(images.y == k)[: number if split == "train" else 20] for k, number in enumerate(NUMBERS)
            ]
            places = np.concatenate(kept)
            np.savez(root / f"{site}_{split}.npz", x=images.x[places], y=images.y[places], classes=list("0123"))
    return root


# --- what is refused -------------------------------------------------------------------------------


def test_a_method_with_a_loss_of_its_own_is_refused_by_name() -> None:
    class Changed(DomainClient):
        def loss(self, batch: Batch) -> dict[str, Any]:
            return {"ce": self.forward(batch.x)[1].square().mean()}

    class Quiet(Modules):
        def terms(self, model: Any, batch: Batch) -> dict[str, Any]:
            return {}

    assert not Changed.can_weigh_classes() and not Quiet.can_weigh_classes()
    method = registry.get("fedavg").model_copy(update={"name": "mine", "client": Changed})
    for key in ("train.class_weights=balanced", "train.loss=focal"):
        with refused(ConfigError, key, "'mine'", "self.cross_entropy"):
            needs.check(needs.Case(method, Params(), {}, resolve({"set": key})))
    needs.check(needs.Case(method, Params(), {}, resolve({"set": "train.sampler=balanced"})))


class Called(DomainClient):
    def loss(self, batch: Batch) -> dict[str, Any]:
        return {"ce": self._own(batch)}

    def _own(self, batch: Batch) -> Any:
        return self.cross_entropy(self.forward(batch.x)[1], batch.y)


class Added(Called):
    def loss(self, batch: Batch) -> dict[str, Any]:
        return super().loss(batch) | {"more": self.forward(batch.x)[0].square().mean()}


class Another(Added):
    def loss(self, batch: Batch) -> dict[str, Any]:
        return super().loss(batch) | {"again": F.cross_entropy(self.forward(batch.x)[1], batch.y)}


class InPhases(DomainClient):
    def phases(self, server_round: int) -> list[Phase]:
        return [Phase(1), Phase(1, loss=lambda batch: {"x": self.forward(batch.x)[1].square().mean()})]


class OnOthers(DomainClient):
    def phases(self, server_round: int) -> list[Phase]:
        return [Phase(1, loss=self._distance, classes=False)]

    def _distance(self, batch: Batch) -> dict[str, Any]:
        return {"x": self.forward(batch.x)[1].square().mean()}


def test_code_shows_whether_losses_weigh_classes() -> None:
    fit, unfit = (DomainClient, Called, Added, OnOthers), (Another, InPhases)
    assert [kind for kind in (*fit, *unfit) if kind.can_weigh_classes()] == [*fit]


def test_all_of_our_methods_weigh_classes_by_the_one_function() -> None:
    """GGEUR trains on as many rows of each class."""
    ours = [method for method in registry.listed() if registry.METHODS.origin(method.name) == OURS]
    assert len(ours) > 30
    assert [method.name for method in ours if not method.client_class().can_weigh_classes()] == ["ggeur"]


# --- what travels ----------------------------------------------------------------------------------


Seen = list[tuple[str, Any]]


def watching(seen: Seen) -> type[ListeningGrid]:
    """Return a grid that notes the kind of each message and its numbers by class."""

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message | None:
            seen.append((message.metadata.message_type, message.content.config_records[CONFIG].get(CLASS_TOTALS)))
            return reply

    return Grid


def test_numbers_of_the_federation_travel_where_they_are_asked_for(run_inline: InlineRun) -> None:
    seen = Seen()
    given = f"{SHORT} train.class_weights=balanced train.class_counts=federation"
    run = run_inline(rounds=1, grid=watching(seen), set=given)
    wanted = np.sum([node["class_counts"] for node in run.results["nodes"]], axis=0).tolist()
    assert {kind for kind, _ in seen} == {MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE}
    assert all(totals == (None if kind == MessageType.QUERY else wanted) for kind, totals in seen)


def test_a_run_with_them_is_saved_reported_and_counted(run_inline: InlineRun, tmp_path: Path) -> None:
    asked = f"{SHORT} train.class_weights=balanced train.class_counts=federation"
    run = run_inline(rounds=1, set=asked)
    fs.load(run.folder).save(tmp_path / "saved")
    record = reading.read(run.folder, "report")
    node = record.nodes[0]
    client = predictions.client_of(record, record.config, node.domain, node, trains=True)
    counts = np.sum([node.class_counts for node in record.nodes], axis=0)
    expected = class_loss(record.config.train, counts, client.class_names, client.setup.device)
    assert expected.weights is not None and client.class_loss.weights is not None
    assert client.class_loss.weights.tolist() == expected.weights.tolist()
    assert measuring.measure("fedavg", record.config, len(record.nodes))
    sight = predictions.look(record, None, 20)
    assert len(sight.views) == len(record.config.dataset.domains) and not sight.missing


def test_nothing_travels_otherwise_and_neutral_weights_change_nothing(run_inline: InlineRun) -> None:
    seen = Seen()
    plain = run_inline(rounds=1, grid=watching(seen), set=SHORT)
    assert {totals for _, totals in seen} == {None}
    neutral = "train.class_weights=effective train.class_beta=0 train.loss=focal train.focal_gamma=0"
    same = run_inline(rounds=1, set=f"{SHORT} {neutral}")
    ones = ", ".join(f'"{k}": 1' for k in range(10))
    also = run_inline(rounds=1, set=f"{SHORT} 'train.class_weights={{{ones}}}'")
    for other in (same, also):
        assert other.rounds[0]["losses"]["loss"] == pytest.approx(plain.rounds[0]["losses"]["loss"], rel=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "typed",
    [
        "i2pfl train.sampler=balanced method.proto_source=last_epoch",  # which counts images drawn, not held
        "fedproto train.sampler=balanced model.freeze=encoder model.projection=16 model.precompute=on "
        "images.crop_padding=0",
        "fedavg federation.secure_sums=on",
        "fedavg train.sampler=balanced allocation.mixing=0.5 modules=[within-domains] modules.within-domains.rex=1",
        "fedavg adapt.name=finetune",
    ],
)
def test_it_goes_with_what_else_a_run_may_have(typed: str, run_inline: InlineRun) -> None:
    method, _, given = typed.partition(" ")
    weights = "train.class_weights=effective train.class_counts=federation train.loss=focal"
    run = run_inline(rounds=2, method=method, set=f"{SHORT} {weights} {given}")
    assert [line["left_out"] for line in run.rounds] == [[], []]


# --- what it does ----------------------------------------------------------------------------------


def test_rare_classes_are_recognised_more_often(run_inline: InlineRun, tmp_path: Path) -> None:
    """By a margin: with this seed the plain run knows none of the rare classes."""
    root = sites(tmp_path / "images")
    keys = "dataset.size=32 model.name=cnn train.precision=float32 train.epochs=2 train.batch_size=16 train.lr=0.03"
    found = {}
    for given in ("", "train.class_weights=balanced", "train.sampler=balanced"):
        run = run_inline(
            "", rounds=5, nodes=2, dataset="folders", set=f"{keys} evaluate.last=1 {given}", **{"data-dir": str(root)}
        )
        figures = run.results["figures"]["overall"]
        recall = figures["per_class"]["recall"]
        found[given] = (figures["balanced_accuracy"], sum(recall[2:]) / 2)
    plain, rare = found.pop("")
    for balanced, of_rare in found.values():
        assert balanced > plain + 10
        assert of_rare > rare + 20


def test_init_proposes_weights_where_it_sees_unequal_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"north": {"bar": 24, "disc": 4}, "south": {"bar": 10, "disc": 9}}
    for site, by_class in numbers.items():
        for kind, number in by_class.items():
            for split, images in (("train", number), ("test", 1)):
                folder = tmp_path / "images" / site / split / kind
                folder.mkdir(parents=True)
                for i in range(images):
                    pixels = np.random.default_rng([i, number]).integers(0, 255, (40, 40, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(folder / f"{i}.png")
    path = init.init(str(tmp_path / "mine"), [f"data-dir={tmp_path / 'images'}"])
    said = "north has 24 of bar and 4 of disc (ratio 6)"
    assert said in capsys.readouterr().out and said in path.read_text()
    assert resolve({"experiment": str(path)}).train.class_weights == "balanced"
    labels = {("a", "train"): np.array([0] * 5 + [1] * 2), ("a", "test"): np.array([0] * 9 + [1])}
    assert not init.unequal(labels, ("x", "y"))

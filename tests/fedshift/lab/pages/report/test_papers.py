"""The figures of the papers: what they show is what the client computes, and what a run lacks is said."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from support import InlineRun, Run, refusal_of, undrawn
from torch.nn import functional as F

from fedshift.lab.pages.report import (
    analysis,
    command,
    grad_cam,
    panels,
    papers,
    predictions,
    reading,
    same_images,
)
from fedshift.lab.pages.report import (
    features as report_features,
)
from fedshift.lab.pages.report.features import Seen
from fedshift.lab.pages.report.same_images import Attended
from fedshift.run.html import drawing
from fedshift_app.node import setup
from fedshift_clients.methods.fdse import Erased
from fedshift_clients.models.shortcut import Shortcut
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.modules.f2dc import F2DCModel
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.frozen import FrozenDict
from fedshift_core.seeding import generator
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_datasets.base import ImageSet
from fedshift_datasets.io import cache
from fedshift_datasets.io.feature_store import FeatureStore

QUICK = "train.epochs=1 allocation.share=0.05"
DOMAINS = ("scan", "texture", "street", "sketch")


@pytest.fixture(scope="session")
def i2pfl(shared_run: InlineRun) -> Run:
    """Two rounds of I2PFL, which no test may change."""
    return shared_run(method="i2pfl", rounds=2, set=QUICK)


@pytest.fixture(scope="session")
def f2dc(shared_run: InlineRun) -> Run:
    """Two rounds of F2DC, which no test may change."""
    return shared_run(method="f2dc", rounds=2, set=QUICK)


@pytest.fixture
def copied(i2pfl: Run, tmp_path: Path) -> Run:
    return Run(shutil.copytree(i2pfl.folder, tmp_path / "copy"))


def page_of(run: Run, *arguments: str) -> str:
    return " ".join(command.run(run.folder, list(arguments)).page.read_text().split())


def change_config(run: Run, **changes: Any) -> None:
    path = run.folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def numbers(run: Run) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run.folder / "report.json").read_text())
    return result


# --- kept features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["i2pfl", "f2dc"])
def test_a_report_goes_on_from_kept_features(
    method: str, run_inline: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows what it shows where images pass the whole network, as they do where features cannot be kept."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache"))
    network = "model.freeze=encoder model.projection=16 model.precompute=on model.precompute_maps=float32"
    run = run_inline(method=method, rounds=2, set=f"{QUICK} {network} images.crop_padding=0 train.precision=float32")
    record, passed = reading.read(run.folder), []
    begins = Shortcut.beginning
    monkeypatch.setattr(Shortcut, "beginning", lambda self, x: passed.append(len(x)) or begins(self, x))
    kept = predictions.look(record, None, None)
    assert kept.config == record.config and sum(passed) < 50  # those by which a network is known
    node = report_features.with_last_weights(record, record.config, record.nodes[0])
    seen = [same_images.attended(node, record.config)]

    def full(*_: Any) -> None:
        raise DataError("the disk is full")

    monkeypatch.setattr(FeatureStore, "places", full)
    whole = predictions.look(record, None, None)
    assert whole.config is not None and not whole.config.model.precompute
    node = report_features.with_last_weights(record, whole.config, record.nodes[0])
    seen.append(same_images.attended(node, whole.config))
    for domain in DOMAINS:
        ours, theirs = kept.views[domain], whole.views[domain]
        assert (ours.predicted == theirs.predicted).all()
        np.testing.assert_allclose(ours.features, theirs.features, atol=1e-5)
        assert ours.examples
        for example, other in zip(ours.examples, theirs.examples, strict=True):
            np.testing.assert_array_equal(example.image, other.image)
            np.testing.assert_allclose(example.heat, other.heat, atol=1e-4)
    for one, again in zip(*seen, strict=True):
        np.testing.assert_allclose(one.heats, again.heats, atol=1e-4)


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_global_method_has_all_figures(copied: Run) -> None:
    page = page_of(copied)
    assert page.count('aria-label="Features of node 0 by t-SNE: 360 test images of scan, texture, street, sketch') == 1
    assert page.count('aria-label="Features over the rounds 1, 2 by t-SNE: 90 test images of scan') == 1
    assert page.count('aria-label="Variance of each class&#x27;s prototypes over domains') == 1
    assert page.count('aria-label="Mean variance of the prototypes over domains: round 1') == 1
    for figure in ("FedCode, figures 1a and 4", "FedSeProto, figure 2", "I2PFL, figures 1 and 3"):
        assert f"({figure})" in page
    assert page.count('aria-label="Grad-CAM by the last weights as node 0 has them of the first test images') == 1
    result = numbers(copied)
    assert len(result["prototype_variance"]["by_class"]) == 10
    # All 90 test images of each domain were scored for both, with the same weights.
    assert result["prototype_variance_by_round"]["2"] == pytest.approx(result["prototype_variance"]["mean"], abs=1e-6)
    assert result["prototype_variance_by_round"]["1"] != result["prototype_variance_by_round"]["2"]


@pytest.mark.long
def test_the_maps_of_f2dc_are_in_its_report(f2dc: Run) -> None:
    page = page_of(f2dc, "images=20")
    assert "(F2DC, figure 2)" in page and "F2DC, figure 2 (Grad-CAM" not in page
    assert page.count('aria-label="Grad-CAM by the last weights as node 0 has them') == 1
    assert page.count("<image ") >= 3 * 4 * 5  # of each class a row for each domain
    assert "f~ fused" in page and "f* corrected" in page


def test_a_named_node_is_shown_after_its_local_round_for_any_method(
    f2dc: Run, copied: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other figures put weights of earlier rounds into the model that clients of a process share.

    Drawn are the papers' figures of F2DC alone: other tests draw those of I2PFL and those that all reports have.
    """
    add = papers.add

    def drawn(*given: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drawing, "Figure", Figure)
            add(*given)

    for run in (copied, f2dc):
        if run is f2dc:
            monkeypatch.setattr(papers, "add", drawn)
        with undrawn():
            page = page_of(run, "images=20", "node=1")
        assert page.count('aria-label="Grad-CAM by node 1 right after one more local round of the first test') == 1
        record = reading.read(run.folder)
        client = report_features.after_local_training(record, record.config, record.nodes[1], named=True)
        result = numbers(run)["same_images"]
        assert (result["node"], result["after_local_round"]) == (1, True)
        for one, example in zip(result["images"], same_images.attended(client, record.config), strict=True):
            assert (one["domain"], one["place"], one["class"]) == (example.domain, example.place, example.true)
            assert one["predicted"] == example.predicted
            assert list(one["highest"].values()) == [None if np.isnan(p) else p for p in example.peaks]


@pytest.mark.long
def test_personal_models_have_no_earlier_rounds_and_one_round_is_too_few(run_inline: InlineRun) -> None:
    page = page_of(run_inline(method="local", rounds=2, nodes=4, set=QUICK), "images=20")
    assert page.count("not drawn: the nodes&#39; own parts of earlier rounds are not kept") == 2
    assert "Features of node 0 by t-SNE" in page and "Variance of each class" in page
    page = page_of(run_inline(method="fedavg", rounds=1, nodes=4, set=QUICK), "images=20")
    assert page.count("not drawn: it needs the checkpoints of two rounds.") == 2


@pytest.mark.long
def test_widths_that_differ_have_no_variance(run_inline: InlineRun) -> None:
    networks = f"{QUICK} model.name=cnn model.per_node=[cnn,cnn2]"
    page = page_of(run_inline(method="local", rounds=1, nodes=4, set=networks), "images=20")
    assert "over domains): not drawn: the features of the networks differ in width." in page


def test_a_deployment_has_no_node_to_look_at(copied: Run) -> None:
    change_config(copied, engine="deployment")
    record = reading.read(copied.folder)
    node = report_features.chosen_node(record, None)
    result = "the nodes of the run are other machines"
    assert result in refusal_of(FedShiftError, report_features.at_kept_rounds, record, record.config, node)
    assert result in refusal_of(FedShiftError, report_features.with_last_weights, record, record.config, node)
    assert result in refusal_of(
        FedShiftError, report_features.after_local_training, record, record.config, node, named=True
    )


@pytest.mark.long
def test_a_long_local_round_is_left_to_who_asks_for_it(copied: Run) -> None:
    file = copied.folder / "metrics.jsonl"
    lines = copied.rounds
    for line in lines:
        line["seconds"] = 4 * (report_features.LONGEST + 1)  # four nodes, one after another
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    record = reading.read(copied.folder)
    node = report_features.chosen_node(record, None)
    result = refusal_of(FedShiftError, report_features.after_local_training, record, record.config, node, named=False)
    assert result == (
        "a local round takes up to 61 s, which a report takes only for a node that is named\n"
        f"with it: fedshift report {copied.folder} node=0"
    )
    page = page_of(copied, "images=20", "node=2")
    assert "Features of node 2 by t-SNE" in page and "Node 2, which has images of street alone" in page


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("node=4", "node: the run has the nodes 0 to 3, found 4"),
        ("node=-1", "node: expected a whole number, found '-1'"),
        ("node=first", "node: expected a whole number, found 'first'"),
    ],
)
def test_wrong_nodes(argument: str, reason: str, copied: Run) -> None:
    before = sorted(copied.folder.iterdir())
    assert reason in refusal_of(ConfigError, command.run, copied.folder, [argument])
    assert sorted(copied.folder.iterdir()) == before


# --- what they show ---------------------------------------------------------------------------------------


def test_a_nodes_model_is_that_of_its_next_local_round(i2pfl: Run) -> None:
    record = reading.read(i2pfl.folder)
    assert record.checkpoint is not None
    first, second = record.nodes[:2]
    seen = report_features.look(
        report_features.after_local_training(record, record.config, first, named=True), record.config, 150
    )
    client = predictions.client_of(record, record.config, first.domain, first, trains=True)
    weights = setup.in_order(record.checkpoint.weights, client, "the checkpoint's")
    client.fit(weights, {SERVER_ROUND: 3})
    client.model.eval()
    for place, domain in enumerate(DOMAINS):
        test = client.test_set(domain)
        order = generator(0, f"report-closer-{domain}").permutation(len(test))
        with torch.inference_mode():
            parts = [client.forward(x)[0] for x, _ in client.plain_batches(test.select(order))]
        assert np.array_equal(seen.features[seen.domain_of == place], torch.cat(parts).double().numpy())
        assert np.array_equal(seen.y[seen.domain_of == place], test.y[order])
    # Local training drives the nodes' encoders apart, which the figure is about.
    other = report_features.look(
        report_features.after_local_training(record, record.config, second, named=True), record.config, 150
    )
    assert not np.allclose(seen.features, other.features, atol=1e-3)


def test_earlier_rounds_have_their_own_weights(i2pfl: Run) -> None:
    record = reading.read(i2pfl.folder)
    result = report_features.at_kept_rounds(record, record.config, record.nodes[0])
    assert list(result) == [1, 2]
    sight = predictions.look(record, None, None)
    for place, domain in enumerate(DOMAINS):
        order = generator(0, f"report-closer-{domain}").permutation(90)
        last = result[2].features[result[2].domain_of == place]
        assert last == pytest.approx(sight.views[domain].features[order], abs=1e-5)
    assert not np.allclose(result[1].features, result[2].features, atol=1e-3)
    assert np.array_equal(result[1].y, result[2].y)


def attended(run: Run, *, trained: bool = False, node: int = 0) -> list[Attended]:
    record = reading.read(run.folder)
    if trained:
        client = report_features.after_local_training(record, record.config, record.nodes[node], named=True)
    else:
        client = report_features.with_last_weights(record, record.config, record.nodes[node])
    return same_images.attended(client, record.config)


def test_two_methods_are_shown_the_same_images(i2pfl: Run, f2dc: Run) -> None:
    one, other, trained = attended(i2pfl), attended(f2dc, node=2), attended(f2dc, trained=True, node=2)
    assert [example.domain for example in one] == [*DOMAINS] * 3
    assert len({example.true for example in one}) == 3
    for a, b, c in zip(one, other, trained, strict=True):
        assert (a.domain, a.place, a.true) == (b.domain, b.place, b.true) == (c.domain, c.place, c.true)
        assert np.array_equal(a.image, b.image) and np.array_equal(a.image, c.image)
        assert (len(a.heats), len(b.heats), len(c.heats)) == (1, 4, 4)  # f~, and F2DC's three
        assert (len(a.peaks), len(b.peaks)) == (0, 4)


def test_the_images_are_the_first_of_each_class_and_the_classes_are_drawn() -> None:
    y = {"a": [3, 1, 1, 0, 2], "b": [0, 2, 3, 3, 1, 4]}
    tests = {name: ImageSet(np.zeros((len(k), 8, 8, 3), np.uint8), np.array(k)) for name, k in y.items()}
    first = {"a": {0: 3, 1: 1, 2: 4, 3: 0}, "b": {0: 0, 1: 4, 2: 1, 3: 2}}
    for seed in range(4):
        result = same_images.chosen(seed, tests)
        classes = [y[domain][place] for domain, place in result]
        assert classes[::2] == classes[1::2] and len(set(classes)) == 3 and 4 not in classes
        assert [first[domain][k] for (domain, _), k in zip(result, classes, strict=True)] == [n for _, n in result]
    assert len({tuple(same_images.chosen(seed, tests)) for seed in range(9)}) > 1
    apart = {"a": tests["a"], "b": tests["b"].select(np.array([5]))}
    assert refusal_of(FedShiftError, same_images.chosen, 0, apart) == "no class has test images in all domains"


def test_the_local_round_is_taken(i2pfl: Run, f2dc: Run) -> None:
    for run in (i2pfl, f2dc):
        before = [heat for example in attended(run) for heat in example.heats]
        after = [heat for example in attended(run, trained=True) for heat in example.heats]
        assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 0.1


def test_noise_at_test_is_in_the_maps(f2dc: Run) -> None:
    """The same weights, scored with noise in the mask (F2DC's code), and without."""
    record = reading.read(f2dc.folder)
    (modules,) = record.config.modules
    noisy = record.config.model_copy(update={"modules": (FrozenDict({**modules, "eval_noise": True}),)})
    plain = attended(f2dc)
    client = report_features.with_last_weights(record, noisy, record.nodes[0])
    result = same_images.attended(client, noisy)
    again = same_images.attended(client, noisy)
    assert isinstance(client.model, F2DCModel)
    assert [example.peaks for example in result] == [example.peaks for example in again]
    assert all(not np.array_equal(a.heats[1], b.heats[1]) for a, b in zip(plain, result, strict=True))
    test = client.test_set("scan").select(np.array([result[0].place]))
    ((x, _),) = client.plain_batches(test)
    stages = feature_stages(client.model.encoder)
    assert stages is not None
    client.model.eval()
    rng = client.model.noise()
    assert rng is not None
    with torch.no_grad():
        h = x.clone()
        for stage in stages.maps:
            h = stage(h)
        maps = client.model.decoupling["stage2"](h, rng)
        client.model.eval()  # the next scoring draws the same noise
        assert torch.equal(client.model(x)[1], client.model.classifier(stages.rest(maps.fused)))


def test_what_stands_in_the_place_of_a_linear_layer_is_no_convolution(run_inline: InlineRun) -> None:
    run = run_inline(method="fdse", rounds=1, nodes=4, set=f"{QUICK} allocation.share=0.05")
    record = reading.read(run.folder)
    layer = grad_cam.layer_of(report_features.with_last_weights(record, record.config, record.nodes[0]).model)
    assert isinstance(layer, Erased) and not layer.is_flat
    assert any(example.heats[0].std() > 0 for example in attended(run))  # of one place all would be alike


def test_the_maps_of_f2dc_by_hand(f2dc: Run) -> None:
    """The weights of Grad-CAM by differences of the class's logit, the maps by the modules; in float64."""
    record = reading.read(f2dc.folder)
    assert record.checkpoint is not None
    result = attended(f2dc)
    client = predictions.client_of(record, record.config, "scan", record.nodes[0])
    state = {name: torch.from_numpy(array.copy()) for name, array in record.checkpoint.weights.items()}
    model = client.model
    assert isinstance(model, F2DCModel)
    model.load_state_dict(state)
    for example in result:
        shown = example.true
        ((x, _),) = client.plain_batches(client.test_set(example.domain).select(np.array([example.place])))
        plain = model.float().eval()
        assert example.predicted == int(client.predict(x.clone()).argmax())
        stages = feature_stages(plain.encoder)
        assert stages is not None
        with torch.no_grad():
            h = x.clone().double()
            plain.double()
            for stage in stages.maps:
                h = stage(h)
            maps = plain.decoupling["stage2"](h, None)
            fused = maps.plus + maps.star

            def logit(f: torch.Tensor) -> float:
                return float(plain.classifier(stages.rest(f))[0, shown])  # noqa: B023

            base, step = logit(fused), 1e-7
            weights = []
            for c in range(fused.shape[1]):
                moved = fused.clone()
                moved[0, c] += step
                weights.append((logit(moved) - base) / step / fused[0, c].numel())
        raw = [np.maximum(np.tensordot(weights, f[0].numpy(), 1), 0) for f in (fused, maps.plus, maps.minus, maps.star)]
        plain.float()
        if raw[0].max() > 0:
            assert example.peaks == pytest.approx([cam.max() / raw[0].max() for cam in raw], rel=1e-2, abs=1e-3)
        else:
            assert np.isnan(example.peaks).all()
        for heat, cam in zip(example.heats, raw, strict=True):
            wide = F.interpolate(torch.from_numpy(cam)[None, None], size=(32, 32), mode="bilinear")[0, 0].numpy()
            if cam.max() > 1e-3 * raw[0].max():
                assert heat == pytest.approx(wide / wide.max(), abs=2e-2)


def test_local_modules_that_score_nothing_are_shown_too(run_inline: InlineRun) -> None:
    more = f"{QUICK} method.local_modules=local method.eval_modules=none"
    run = run_inline(method="f2dc", rounds=1, nodes=4, set=more)
    assert all(example.peaks[0] == 1 or np.isnan(example.peaks[0]) for example in attended(run, node=1))


# --- the numbers ------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 1000))
def test_variance_over_domains(q: int, c: int, d: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    means, there = rng.normal(size=(q, c, d)), rng.random((q, c)) < 0.7
    result = analysis.variance_over_domains(means, there)
    for k in range(c):
        rows = [means[i, k] / np.linalg.norm(means[i, k]) for i in range(q) if there[i, k]]
        if len(rows) < 2:
            assert np.isnan(result[k])
        else:
            centre = sum(rows) / len(rows)
            assert result[k] == pytest.approx(sum(((row - centre) ** 2).sum() for row in rows) / len(rows))
            assert 0 <= result[k] <= 1 + 1e-12
    longer = analysis.variance_over_domains(means * rng.uniform(0.1, 10, (q, c, 1)), there)
    assert longer == pytest.approx(result, nan_ok=True)


def test_variance_by_hand() -> None:
    means = np.array([[[1.0, 0.0], [2.0, 0.0]], [[-3.0, 0.0], [5.0, 0.0]]])
    assert analysis.variance_over_domains(means, np.ones((2, 2), bool)).tolist() == [1, 0]
    assert np.isnan(analysis.variance_over_domains(means, np.array([[True, True], [False, True]]))[0])


def test_many_classes_and_rounds() -> None:
    classes = [f"class {k}" for k in range(345)]
    seen = Seen(np.zeros((345, 2)), np.arange(345), np.zeros(345, np.int64))
    placed = {n: np.random.default_rng(n).normal(size=(345, 2)) for n in (8, 16, 18, 19, 20)}
    with drawing.style():
        drawn = panels.rounds(placed, seen, "clipart", classes)
        assert "colour wheel" in drawn.caption
        assert all(f"round {n}" in drawn.svg for n in placed)
        assert ">class 344<" not in panels.variance_by_class(np.linspace(0, 1, 345), classes).svg


def test_features_that_are_not_finite_are_reported(i2pfl: Run) -> None:
    seen = Seen(np.full((9, 2), np.nan), np.zeros(9, np.int64), np.zeros(9, np.int64))
    record = reading.read(i2pfl.folder)
    look = papers._Look(record, predictions.Sight(), record.config, record.nodes[0], False, {})
    with pytest.raises(FedShiftError, match="features are not finite"):
        look._variance([(seen.features, seen.y)])
    with pytest.raises(FedShiftError, match="features are not finite"):
        papers._usable(seen)
    with pytest.raises(FedShiftError, match="2 images are too few"):
        papers._usable(replace(seen, features=np.zeros((2, 2)), y=seen.y[:2]))

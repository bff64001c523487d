"""A saved model gives what its run scored, in every form, and nothing that does not classify leaves with it."""

import importlib.util
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load_file
from support import Run, refusal_of

from fedshift.export import card, forms, images, opening, programs, saved, saving, scorer
from fedshift.export.forms import Form
from fedshift.export.saving import Wanted
from fedshift.run import reading
from fedshift.run.launch import runner
from fedshift_app.config.resolving import resolve
from fedshift_clients.base import RoundInputs
from fedshift_clients.models import networks
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_datasets import base, catalog
from fedshift_datasets.base import Source

QUICK = "train.epochs=1 allocation.share=0.05 model.name=cnn_bn train.precision=float32"
ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))


def finished(folder: Path, method: str, nodes: int = 4, **flat: Any) -> Run:
    given = {"experiment": "handwritten", "method": method, "rounds": 1, "output-dir": str(folder)} | flat
    return Run(runner.run_inline(given, nodes))


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose model is global; no test may change it."""
    return finished(tmp_path_factory.mktemp("runs"), "fedavg", set=QUICK)


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose BatchNorm is each node's own."""
    return finished(tmp_path_factory.mktemp("runs"), "fedbn", set=QUICK)


@pytest.fixture(scope="module")
def fedproto(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that shares no weight and classifies by the nearest prototype, on two networks."""
    requested = f'{QUICK} method.predict_by=prototype model.name=cnn model.per_node=["cnn","cnn_bn"]'
    return finished(tmp_path_factory.mktemp("runs"), "fedproto", 4, set=requested)


def test_images(domain: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    images = catalog.load("handwritten", domain, "test", Source())
    return images.x, images.y


test_images.__test__ = False  # type: ignore[attr-defined]


def correct(folder: Path, domain: str) -> float:
    """Return the accuracy of a saved model on a site's test images, in percent."""
    x, y = test_images(domain)
    program = opening.program_of(*saved.read(folder))
    scores = program(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255)
    return 100 * float((scores.argmax(dim=1).numpy() == y).mean())


# --- a saved model is what was scored ----------------------------------------------------------------------


def test_a_global_model_scores_what_the_run_says(fedavg: Run, tmp_path: Path) -> None:
    folder, result = saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))
    assert result.measured is not None
    assert {d: site.accuracy for d, site in result.measured.sites.items()} == fedavg.results["final"]
    for domain, site in result.measured.sites.items():
        assert correct(folder, domain) == pytest.approx(site.accuracy)
        assert site.images == len(test_images(domain)[1]) == 90
        figures = fedavg.results["figures"]["domains"][domain]
        assert (site.balanced_accuracy, site.macro_f1) == (figures["balanced_accuracy"], figures["macro_f1"])
        card = (folder / "README.md").read_text()
        row = f"| {domain} | {site.accuracy:.1f} | {site.balanced_accuracy:.1f} | {site.macro_f1:.1f} | 90 |"
        assert row in card and f"value: {round(figures['macro_f1'], 2)}" in card
    assert result.origin.images == sum(sum(node["class_counts"]) for node in fedavg.results["nodes"])
    weights = fedavg.folder / "checkpoint" / "weights-00001.safetensors"
    kept, wanted = load_file(folder / "model.safetensors"), load_file(weights)
    assert kept.keys() == wanted.keys()
    assert all(np.array_equal(kept[name], wanted[name]) for name in kept)


def test_statistics_that_were_taken_anew_are_saved_with_their_figures(tmp_path: Path) -> None:
    run = finished(tmp_path, "fedavg", set=f'{QUICK} evaluate.bn=["averaged","retaken"] model.bn_keep=retaken')
    folder, result = saving.save(Wanted(run.folder, "safetensors"))
    retaken = run.rounds[0]["others"]["bn=retaken"]
    assert result.measured is not None
    assert {d: site.accuracy for d, site in result.measured.sites.items()} == retaken != run.results["final"]
    assert all(correct(folder, domain) == pytest.approx(value) for domain, value in retaken.items())


def test_the_best_round_by_validation_is_saved_where_a_run_keeps_it(tmp_path: Path) -> None:
    requested = f"{QUICK} keep=best-validation allocation.validation_fraction=0.2 train.lr=0.3"
    run = finished(tmp_path, "fedavg", rounds=4, set=requested)
    chosen = run.results["chosen_round"]
    assert chosen["round"] < 4
    folder, result = saving.save(Wanted(run.folder, "safetensors"))
    assert result.origin.server_round == chosen["round"]
    assert {domain: correct(folder, domain) for domain in chosen["domains"]} == pytest.approx(chosen["domains"])
    (run.folder / "checkpoint" / f"weights-{chosen['round']:05d}.safetensors").unlink()
    shutil.rmtree(folder)
    said = refusal_of(ConfigError, saving.save, Wanted(run.folder, "safetensors"))
    assert f"the checkpoint of round {chosen['round']} cannot be read\nfedshift save RUN --round N saves one" in said


@pytest.mark.parametrize("form", ["torchscript", "exported"])
def test_a_program_gives_what_the_network_gives(form: Form, fedavg: Run, tmp_path: Path) -> None:
    folder, result = saving.save(Wanted(fedavg.folder, form, output=tmp_path / "model"))
    assert result.configuration == {}
    network = networks.build("cnn_bn", 10, seed=0)
    arrays = load_file(fedavg.folder / "checkpoint" / "weights-00001.safetensors")
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    program = opening.program_of(*saved.read(folder))
    for number in (1, 2, 5):
        images = torch.rand(number, 3, 32, 32, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            wanted = network.eval()((images - 0.5) / 0.5)[1]
        assert torch.allclose(program(images), wanted, atol=1e-5)


def test_a_node_is_classified_by_its_own_batchnorm(fedbn: Run, tmp_path: Path) -> None:
    folder, result = saving.save(Wanted(fedbn.folder, "safetensors", node=2, output=tmp_path / "model"))
    shared = load_file(fedbn.folder / "checkpoint" / "weights-00001.safetensors")
    (store,) = (fedbn.folder / "checkpoint" / "nodes" / "node-2").iterdir()
    own = {name.removeprefix("model/"): array for name, array in load_file(store).items()}
    kept = load_file(folder / "model.safetensors")
    assert kept.keys() == shared.keys() | own.keys()
    assert all(np.array_equal(array, (shared | own)[name]) for name, array in kept.items())
    assert (result.parts, result.node, result.site) == ("node", "2", "street")
    # Of the sites of four nodes each is one node's.
    assert correct(folder, "street") == pytest.approx(fedbn.results["final"]["street"])


def test_prototypes_classify_and_are_saved_with_the_nodes_own_network(fedproto: Run, tmp_path: Path) -> None:
    folder, result = saving.save(Wanted(fedproto.folder, "safetensors", node=1, output=tmp_path / "model"))
    assert (result.network, result.knowledge) == ("cnn_bn", ("labels", "prototypes"))
    arrays = load_file(folder / "model.safetensors")
    network = networks.build("cnn_bn", 10, seed=0).eval()
    weights = {name: torch.from_numpy(array) for name, array in arrays.items() if not name.startswith("knowledge/")}
    network.encoder.load_state_dict({n.removeprefix("encoder."): t for n, t in weights.items() if n[0] == "e"})
    x, _ = test_images("texture")
    with torch.no_grad():
        z = network.encoder((torch.from_numpy(x).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5).numpy()
    distances = ((z[:, None] - arrays["knowledge/prototypes"][None]) ** 2).sum(axis=2)
    nearest = arrays["knowledge/labels"][distances.argmin(axis=1)]
    program = opening.program_of(*saved.read(folder))
    scores = program(torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255)
    assert np.array_equal(scores.argmax(dim=1).numpy(), nearest)
    assert correct(folder, "texture") == pytest.approx(fedproto.results["final"]["texture"])


@pytest.mark.skipif(not ONNX, reason="onnx, onnxscript and onnxruntime are not installed: pip install 'fedshift[onnx]'")
def test_onnx_gives_what_torch_gives(fedproto: Run, tmp_path: Path) -> None:
    """BatchNorm, and distances of prototypes, which ONNX has not of itself."""
    saving.save(Wanted(fedproto.folder, "safetensors", node=1, output=tmp_path / "weights"))
    saving.save(Wanted(fedproto.folder, "onnx", node=1, output=tmp_path / "program"))
    one, other = (opening.program_of(*saved.read(tmp_path / name)) for name in ("weights", "program"))
    for number in (1, 2, 5):
        images = torch.rand(number, 3, 32, 32, generator=torch.Generator().manual_seed(number))
        assert torch.allclose(one(images), other(images), rtol=1e-4, atol=1e-4)


def test_onnx_without_its_packages_is_reported(fedavg: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ONNX_NEEDS", ("onnx", "no_such_package"))
    result = refusal_of(FedShiftError, saving.save, Wanted(fedavg.folder, "onnx", output=tmp_path / "model"))
    assert result == "onnx needs no_such_package: pip install 'fedshift[onnx]'"


# --- what classifies, of each method -----------------------------------------------------------------------


def owners(config: Any, knowledge: Arrays | None = None) -> set[str]:
    client = scorer.bare_client(config, config.model)
    client.prepare(RoundInputs(knowledge or {}))
    return {name.split(".")[0] for name in scorer.needs(client).weights}


def test_what_only_training_needs_is_left_out() -> None:
    assert owners(resolve({"method": "fedcode"})) == {"encoder", "classifier"}  # no encoder of style
    seproto = resolve({"method": "fedseproto"})
    names = scorer.needs(scorer.bare_client(seproto, seproto.model)).weights
    assert {name.rpartition(".")[0] for name in names if not name.startswith("encoder")} == {
        "semantic.mean",
        "classifier",
    }
    moon = resolve({"method": "moon", "set": "method.projection=mlp"})
    assert "classifier.projection.0.weight" in scorer.needs(scorer.bare_client(moon, moon.model)).weights


@pytest.mark.parametrize(
    ("method", "freeze"), [("fedavg", "norm"), ("f2dc", "stages:1"), ("fedavg", "encoder"), ("fedbn", "stages:1")]
)
def test_frozen_parts_are_those_of_the_file_not_of_the_seed(method: str, freeze: str) -> None:
    config = resolve({"method": method, "set": f"model.name=cnn_bn model.freeze={freeze}"})
    client, rng = scorer.bare_client(config, config.model), np.random.default_rng(0)
    state, names = client.model.state_dict(), scorer.needs(client).weights
    arrays = {name: state[name].numpy() + rng.uniform(0.5, 1, state[name].shape) for name in names}
    arrays = {name: np.asarray(array, state[name].numpy().dtype) for name, array in arrays.items()}
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    built = scorer.rebuilt(config, arrays, "the")(images)
    client.model.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()}, strict=False)
    with torch.no_grad():
        assert torch.allclose(built, client.model.eval()((images - 0.5) / 0.5)[1], rtol=1e-4)


def test_modules_classify_too_and_noise_at_test_is_no_program(tmp_path: Path) -> None:
    config = resolve({"method": "f2dc", "set": "model.name=cnn_bn method.insert_after=last"})
    client = scorer.bare_client(config, config.model)
    names = scorer.needs(client).weights
    assert any(name.startswith("decoupling.stage2.decoupler") for name in names)
    assert not any("auxiliary" in name for name in names)  # m is for the losses alone
    rng = np.random.default_rng(0)
    arrays = {name: client.model.state_dict()[name].numpy() for name in names}
    for name, array in arrays.items():
        if array.ndim and not name.endswith("running_var"):
            arrays[name] = array + rng.normal(0, 0.05, array.shape).astype(np.float32)
    built = scorer.rebuilt(config, arrays, "the")
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    client.model.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()}, strict=False)
    with torch.no_grad():
        wanted = client.model.eval()((images - 0.5) / 0.5)[1]
        assert torch.allclose(built(images), wanted, atol=1e-6)
        plain = networks.SplitModel.forward(client.model, (images - 0.5) / 0.5)[1]
    assert not torch.allclose(wanted, plain, atol=1e-3)  # else the modules would do nothing here
    noisy = resolve({"method": "f2dc", "set": "model.name=cnn_bn method.eval_noise=true"})
    with pytest.raises(FedShiftError, match="this model cannot be saved as torchscript"):
        programs.made(scorer.rebuilt(noisy, arrays, "the"), "torchscript")


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("fedavg-ft", "", "adapt.name=finetune"),
        ("fedicon", "", "method fedicon makes a new one and adapt.name=fedicon"),
        ("fedavg", "adapt.name=finetune", "adapt.name=finetune"),
    ],
)
def test_what_is_made_anew_for_each_score_is_reported(method: str, options: str, reason: str) -> None:
    config = resolve({"method": method, "set": options})
    assert reason in refusal_of(ConfigError, saving._before_a_score, config, False)
    assert saving._before_a_score(config, True) == reason


def test_before_adaptation_has_the_figures_of_before(tmp_path: Path) -> None:
    run = finished(tmp_path, "fedavg-ft", set=QUICK)
    folder, result = saving.save(Wanted(run.folder, "safetensors", before=True))
    assert folder == run.folder / "model"
    assert result.measured is not None
    before = run.rounds[0]["others"]["before-fine-tuning"]
    assert {d: site.accuracy for d, site in result.measured.sites.items()} == before != run.results["final"]
    assert correct(folder, "scan") == pytest.approx(before["scan"])
    assert "Before a score the run adapts a model" in (folder / "README.md").read_text()


# --- the card and model.json -------------------------------------------------------------------------------


def test_the_card(fedavg: Run, tmp_path: Path) -> None:
    folder, result = saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    content = yaml.safe_load(front)
    assert "license" not in content
    assert "# license: the owner of the model fills this in" in front
    assert content["library_name"] == "fedshift"
    (index,) = content["model-index"]
    values = {one["dataset"]["config"]: one["metrics"][0]["value"] for one in index["results"]}
    assert values == {domain: round(value, 2) for domain, value in fedavg.results["final"].items()}
    for wanted in (
        result.sha256,
        "| scan |",
        "| 90 |",
        "0, 1, 2, 3",
        "cnn_bn",
        "torch 2",
        f"flwr {version('flwr')}",
        "[0.5, 0.5, 0.5]",
    ):
        assert wanted in text
    for part in ("of its scores", "of sites, with intervals", "protected the nodes", "Use and limits"):
        assert text.count(f"{part}\n\n- ") == 1
    for wanted in (
        "Top-1 accuracy (%) of the global model",
        "| site | test images | patients |",
        "Privacy: none",
    ):
        assert wanted in text
    whole = (folder / "model.json").read_text() + text
    assert str(fedavg.folder.parent) not in whole  # no folder of this machine


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, ["both sides to that size", "bilinear with antialias", "the full range", "EXIF orientation is ignored"]),
        (
            {"resize": "pad", "window": (-160.0, 240.0), "exif": "apply"},
            ["the rest black", "-160 and less become 0, 240 and more 255", "EXIF orientation is applied"],
        ),
        ({"resize": "crop"}, ["the shorter side to that size, then the middle"]),
        ({"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}, ["[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]"]),
    ],
)
def test_the_card_says_all_that_happens_to_an_image(
    fedavg: Run, tmp_path: Path, changes: dict[str, Any], wanted: list[str]
) -> None:
    _, result = saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))
    text = card.card(result.model_copy(update=changes))
    assert "RGB, 8 bits each" in text and "32 x 32 pixels" in text
    assert result.images() == base.Form()
    for words in wanted:
        assert words in text


def test_a_saved_model_reads_images_by_its_own_rule(fedavg: Run, tmp_path: Path) -> None:
    _, result = saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))
    form = result.model_copy(update={"exif": "apply"}).images()
    assert form == base.Form(exif="apply")
    left = np.zeros((result.size, result.size, 3), np.uint8)
    left[:, : result.size // 2] = 255
    exif = Image.Exif()
    exif[274] = 3
    Image.fromarray(left).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(images.read(tmp_path / "a.png", result.size, form), left[::-1, ::-1])
    assert np.array_equal(images.read(tmp_path / "a.png", result.size, result.images()), left)


def test_a_personal_models_card_has_no_figures_for_machines(fedbn: Run, tmp_path: Path) -> None:
    folder, _ = saving.save(Wanted(fedbn.folder, "safetensors", node=0, output=tmp_path / "model"))
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    assert "model-index" not in yaml.safe_load(front)
    assert "They belong to all nodes' models, not only to this one" in text


def test_names_cannot_break_the_card(fedavg: Run, tmp_path: Path) -> None:
    _, result = saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))
    evil = result.model_copy(update={"classes": ("a|b", "<script>", "\n---\n")})
    _, front, text = card.card(evil).split("---\n", 2)
    yaml.safe_load(front)
    assert "a\\|b" in text and "<script>" not in text and "\n---\n" not in text


# --- what is refused ---------------------------------------------------------------------------------------


def test_what_cannot_be_saved(fedavg: Run, fedbn: Run, tmp_path: Path) -> None:
    def message_of(run: Run, **asked: Any) -> str:
        wanted = Wanted(run.folder, **{"form": "safetensors", "output": tmp_path / "model"} | asked)
        return refusal_of(ConfigError, saving.save, wanted)

    assert "give --node, one of 0 (scan), 1 (texture), 2 (street), 3 (sketch)" in message_of(fedbn)
    assert "there is no node 9; the run has 0 (scan)" in message_of(fedbn, node=9)
    assert "node 0 has no personal parts" in message_of(fedavg, node=0)
    assert "--shared: this run's model has no personal parts" in message_of(fedavg, shared=True)
    assert "--shared: the shared parts, as safetensors" in message_of(fedbn, shared=True, form="onnx")
    assert "--round: 7 is not kept; kept are 1" in message_of(fedavg, server_round=7)
    assert "--before-adaptation: this run scores its model unchanged" in message_of(fedavg, before=True)
    assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    assert "exists already" in message_of(fedavg)
    assert "it has no config.yaml" in refusal_of(ConfigError, saving.save, Wanted(tmp_path, "safetensors"))


def test_an_unfinished_run_is_saved_by_a_round_that_is_named(fedavg: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(fedavg.folder, tmp_path / "copy")
    (copy / "results.json").unlink()
    result = refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors"))
    assert "is not finished, 1 of 1 round is complete\nfedshift save RUN --round N saves one of 1" in result
    folder, _ = saving.save(Wanted(copy, "safetensors", server_round=1))
    assert folder.name == "model-round-1"


def test_a_run_folder_that_was_damaged(fedavg: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(fedavg.folder, tmp_path / "copy")
    line = fedavg.rounds[0] | {"accuracy": {"scan": 101.0}}
    (copy / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    result = refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors"))
    assert "accuracy: Input should be less than or equal to 100" in result
    (copy / "checkpoint" / "weights-00001.safetensors").write_bytes(b"")
    assert "cannot be read" in refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors"))


def test_personal_parts_that_are_gone_are_reported(fedbn: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(fedbn.folder, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoint" / "nodes" / "node-1")
    result = refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors", node=1))
    assert "the personal parts of node 1 after round 1 are not kept" in result


def test_a_deployments_personal_parts_are_on_its_nodes(fedbn: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(fedbn.folder, tmp_path / "copy")
    content = yaml.safe_load((copy / "config.yaml").read_text())
    (copy / "config.yaml").write_text(yaml.safe_dump(content | {"engine": "deployment"}))
    assert "--shared saves the rest" in refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors"))
    assert "are on the nodes" in refusal_of(ConfigError, saving.save, Wanted(copy, "safetensors", node=1))
    folder, model = saving.save(Wanted(copy, "safetensors", shared=True))
    assert model.parts == "shared"
    names = load_file(folder / "model.safetensors").keys()
    assert names == load_file(fedbn.folder / "checkpoint" / "weights-00001.safetensors").keys()
    assert "is not complete" in refusal_of(ConfigError, opening.program_of, *saved.read(folder))


@pytest.fixture
def model(fedavg: Run, tmp_path: Path) -> Path:
    return saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "model"))[0]


def edit(folder: Path, change: Any) -> None:
    path = folder / "model.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c.update(fedshift_model=2), "fedshift_model is 2, this version reads 1"),
        (lambda c: c.update(form="pickle"), "form: Input should be"),
        (lambda c: c.update(file="../../etc/passwd"), "file: expected model.safetensors"),
        (lambda c: c.pop("classes"), "classes: Field required"),
        (lambda c: c.update(classes=["a", "a"]), "classes: expected different names"),
        (lambda c: c.update(size=-1), "size:"),
        (lambda c: c.update(std=[0.5, 0, 1]), "each must be above 0"),
        (lambda c: c.update(extra=1), "extra: Extra inputs"),
        (lambda c: c.update(sha256="0" * 64), "has changed: its SHA-256 differs"),
        (lambda c: c.update(classes=[str(k) for k in range(9)]), "classes contradicts its configuration"),
        (lambda c: c.update(mean=[0, 0, 0]), "mean contradicts its configuration"),
        (lambda c: c["configuration"].update(plugins=["/tmp/evil.py"]), "a saved model does not run files"),
        (lambda c: c["configuration"].update(method={"name": "nobody"}), "configuration: .*nobody"),
        (lambda c: c["configuration"]["model"].update(name="cnn2"), "network contradicts its configuration"),
        (
            lambda c: (c.update(network="cnn2"), c["configuration"]["model"].update(name="cnn2")),
            "the network has shape",
        ),
    ],
)
def test_a_model_json_that_was_edited(change: Any, reason: str, model: Path) -> None:
    edit(model, change)
    with pytest.raises(FedShiftError, match=reason) as caught:
        opening.program_of(*saved.read(model))
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_saved_model(model: Path, tmp_path: Path) -> None:
    assert "has no model.json" in refusal_of(ConfigError, saved.read, tmp_path)
    (model / "model.json").write_text("[" * 100_000)
    assert "cannot be read" in refusal_of(ConfigError, saved.read, model)
    (model / "model.json").write_text("[1]")
    assert "expected an object" in refusal_of(ConfigError, saved.read, model)
    (model / "model.json").write_bytes(b" " * ((1 << 20) + 1))
    assert "allowed are 1048576 at most" in refusal_of(ConfigError, saved.read, model)


def test_weights_that_are_not_the_networks(fedavg: Run) -> None:
    record = reading.read(fedavg.folder)
    assert record.checkpoint is not None
    weights = record.checkpoint.weights
    first = "encoder.0.weight"
    for change, result in (
        ({first: weights[first][:1]}, "has shape"),
        ({first: np.full_like(weights[first], np.nan)}, "not finite"),
        ({"evil": weights[first]}, "arrays do not fit the network: evil"),
    ):
        assert result in refusal_of(FedShiftError, scorer.rebuilt, record.config, weights | change, "its")


def test_every_form_has_a_file() -> None:
    assert set(forms.FILES) == set(get_args(Form)) == set(forms.FORMS)


def test_what_lies_next_to_a_saved_model_is_left_alone(fedavg: Run, tmp_path: Path) -> None:
    """A folder of that name may be anybody's, another save to the same place among them."""
    existing = tmp_path / "results.part"
    existing.mkdir()
    (existing / "mine.txt").write_text("mine")
    saving.save(Wanted(fedavg.folder, "safetensors", output=tmp_path / "results"))
    assert (existing / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "results.part"]

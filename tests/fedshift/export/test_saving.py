"""A saved model gives what its run scored, in every form, and nothing that does not classify leaves with it."""

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
import yaml
from refusals import refused
from safetensors.numpy import load_file
from support import InlineRun, Run
from torch import Tensor

from fedshift.export import card, forms, opening, programs, saved, saving, scorer
from fedshift.export.forms import Form
from fedshift.export.saving import Wanted
from fedshift.run import reading
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_clients.base import RoundInputs
from fedshift_clients.models import networks
from fedshift_core.arrays import Arrays, digest
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_datasets import catalog
from fedshift_datasets.base import Source

QUICK = "train.epochs=1 allocation.share=0.05 model.name=cnn_bn train.precision=float32"
ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
WEIGHTS = "checkpoint/weights-00001.safetensors"


@pytest.fixture(scope="module")
def fedavg(shared_run: InlineRun) -> Run:
    return shared_run(f"method=fedavg rounds=1 {QUICK}")


@pytest.fixture(scope="module")
def fedbn(shared_run: InlineRun) -> Run:
    """A run whose BatchNorm is each node's own."""
    return shared_run(f"method=fedbn rounds=1 {QUICK}")


@pytest.fixture(scope="module")
def fedproto(shared_run: InlineRun) -> Run:
    """A run that shares no weight and classifies by the nearest prototype, on two networks."""
    given = f'{QUICK} method.predict_by=prototype model.name=cnn model.per_node=["cnn","cnn_bn"]'
    return shared_run(f"method=fedproto rounds=1 {given}")


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Any]:
    """Return a function that saves a run's model: ``save(run, "onnx", node=1)``."""
    return lambda run, form="safetensors", **more: saving.save(
        Wanted(run.folder, form, **{"output": tmp_path / "model"} | more)
    )


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Run], Run]:
    return lambda run: Run(shutil.copytree(run.folder, tmp_path / "copy"))


def some_images(number: int) -> Tensor:
    return torch.rand(number, 3, 32, 32, generator=torch.Generator().manual_seed(number))


def correct(folder: Path, domain: str) -> float:
    """Return the accuracy of a saved model on a site's test images, in percent."""
    test = catalog.load("handwritten", domain, "test", Source())
    scores = opening.program_of(*saved.read(folder))(torch.from_numpy(test.x).permute(0, 3, 1, 2).float() / 255)
    return 100 * float((scores.argmax(dim=1).numpy() == test.y).mean())


# --- a saved model is what was scored ----------------------------------------------------------------------


def test_a_global_model_scores_what_the_run_says(fedavg: Run, save: Any) -> None:
    folder, result = save(fedavg)
    assert {d: site.accuracy for d, site in result.measured.sites.items()} == fedavg.results["final"]
    text = (folder / "README.md").read_text()
    for domain, site in result.measured.sites.items():
        figures = fedavg.results["figures"]["domains"][domain]
        assert correct(folder, domain) == pytest.approx(site.accuracy)
        numbers = site.accuracy, *(figures[key] for key in ("balanced_accuracy", "macro_f1"))
        assert (site.balanced_accuracy, site.macro_f1) == numbers[1:]
        row = " | ".join(f"{value:.1f}" for value in numbers)
        assert f"| {domain} | {row} | 90 |" in text and f"value: {round(numbers[2], 2)}" in text
    assert result.origin.images == sum(sum(node["class_counts"]) for node in fedavg.results["nodes"])
    assert digest(load_file(folder / "model.safetensors")) == digest(load_file(fedavg.folder / WEIGHTS))


@pytest.mark.parametrize("form", [form for form in get_args(Form) if form != "safetensors"])
def test_a_program_gives_what_the_network_gives(form: Form, fedproto: Run, save: Any, tmp_path: Path) -> None:
    """BatchNorm, and distances of prototypes, which ONNX has not of itself."""
    if form == "onnx" and not ONNX:
        pytest.skip("onnx, onnxscript and onnxruntime are not installed: pip install 'fedshift[onnx]'")
    weights, _ = save(fedproto, node=1)
    program, result = save(fedproto, form, node=1, output=tmp_path / "program")
    assert result.configuration == {}
    one, other = (opening.program_of(*saved.read(folder)) for folder in (weights, program))
    for number in (1, 5):
        assert torch.allclose(one(some_images(number)), other(some_images(number)), rtol=1e-4, atol=1e-4)


def test_a_node_is_classified_by_its_own_batchnorm(fedbn: Run, save: Any) -> None:
    folder, result = save(fedbn, node=2)
    (store,) = (fedbn.folder / "checkpoint" / "nodes" / "node-2").iterdir()
    own = {name.removeprefix("model/"): array for name, array in load_file(store).items()}
    assert digest(load_file(folder / "model.safetensors")) == digest(load_file(fedbn.folder / WEIGHTS) | own)
    assert (result.parts, result.node, result.site) == ("node", "2", "street")
    # Of the sites of four nodes each is one node's.
    assert correct(folder, "street") == pytest.approx(fedbn.results["final"]["street"])
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    assert "model-index" not in yaml.safe_load(front) and "not only to this one" in text


def test_prototypes_classify_and_are_saved_with_the_nodes_own_network(fedproto: Run, save: Any) -> None:
    folder, result = save(fedproto, node=1)
    assert (result.network, result.knowledge) == ("cnn_bn", ("labels", "prototypes"))
    arrays = load_file(folder / "model.safetensors")
    network, head = networks.build("cnn_bn", 10, seed=0).eval(), "encoder."
    network.encoder.load_state_dict(
        {name.removeprefix(head): torch.from_numpy(array) for name, array in arrays.items() if name.startswith(head)}
    )
    x = torch.from_numpy(catalog.load("handwritten", "texture", "test", Source()).x).permute(0, 3, 1, 2) / 255
    with torch.no_grad():
        z = network.encoder((x - 0.5) / 0.5).numpy()
    distances = ((z[:, None] - arrays["knowledge/prototypes"][None]) ** 2).sum(axis=2)
    scores = opening.program_of(*saved.read(folder))(x)
    assert np.array_equal(scores.argmax(dim=1).numpy(), arrays["knowledge/labels"][distances.argmin(axis=1)])
    assert correct(folder, "texture") == pytest.approx(fedproto.results["final"]["texture"])


# --- what classifies, of each method -----------------------------------------------------------------------


def bare(method: str, given: str = "") -> tuple[RunConfig, Any, set[str]]:
    """Return a configuration, a client, and the names of the weights that classify."""
    config = resolve({"method": method, "set": given})
    client = scorer.bare_client(config)
    client.prepare(RoundInputs({}))
    return config, client, {*scorer.needs(client).weights}


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("fedavg", "model.freeze=norm"),
        ("fedbn", "model.freeze=stages:1"),
        ("fedavg", "model.freeze=encoder"),
        ("f2dc", "method.insert_after=last"),
    ],
)
def test_frozen_parts_are_those_of_the_file_and_modules_classify_too(method: str, given: str) -> None:
    config, client, names = bare(method, f"model.name=cnn_bn {given}")
    assert any("decoupler" in name for name in names) is (method == "f2dc")
    assert not any("auxiliary" in name for name in names)  # m is for the losses alone
    rng, state = np.random.default_rng(0), client.model.state_dict()
    noise = {name: rng.normal(0, 0.05, state[name].shape) for name in sorted(names)}
    noise |= {name: np.abs(array) for name, array in noise.items() if name.endswith("running_var")}
    arrays = {name: np.asarray(state[name].numpy() + noise[name], state[name].numpy().dtype) for name in noise}
    built = scorer.rebuilt(config, arrays, "the")(some_images(2))
    client.model.load_state_dict({n: torch.from_numpy(a) for n, a in arrays.items()}, strict=False)
    with torch.no_grad():
        wanted = client.model.eval()((some_images(2) - 0.5) / 0.5)[1]
        plain = networks.SplitModel.forward(client.model, (some_images(2) - 0.5) / 0.5)[1]
    assert torch.allclose(built, wanted, rtol=1e-4)
    assert torch.allclose(wanted, plain, rtol=1e-3) is (method != "f2dc")  # else the modules would do nothing here
    if method == "f2dc":  # noise at test is no program
        noisy = resolve({"method": "f2dc", "set": f"model.name=cnn_bn {given} method.eval_noise=true"})
        with pytest.raises(FedShiftError, match="torchscript"):
            programs.made(scorer.rebuilt(noisy, arrays, "the"), "torchscript")


def test_a_network_that_adapts_itself_is_reported() -> None:
    config = resolve({"method": "fedicon"})
    with refused(ConfigError, "method fedicon"):
        saving._before_a_score(config, False)
    assert "method fedicon" in saving._before_a_score(config, True)


# --- the card and model.json -------------------------------------------------------------------------------


def test_the_card(fedavg: Run, save: Any) -> None:
    folder, result = save(fedavg)
    _, front, text = (folder / "README.md").read_text().split("---\n", 2)
    content = yaml.safe_load(front)
    assert "license" not in content and "# license:" in front and content["library_name"] == "fedshift"
    (index,) = content["model-index"]
    values = {one["dataset"]["config"]: one["metrics"][0]["value"] for one in index["results"]}
    assert values == {domain: round(value, 2) for domain, value in fedavg.results["final"].items()}
    for wanted in (result.sha256, "0, 1, 2, 3", "cnn_bn", "torch 2", "flwr 1", "[0.5, 0.5, 0.5]", "Privacy: none"):
        assert wanted in text
    for part in ("of its scores", "of sites, with intervals", "protected the nodes", "Use and limits"):
        assert text.count(f"{part}\n\n- ") == 1
    assert str(fedavg.folder.parent) not in (folder / "model.json").read_text() + text  # no folder of this machine
    evil = result.model_copy(update={"classes": ("a|b", "<script>", "\n---\n")})  # names cannot break it
    _, front, text = card.card(evil).split("---\n", 2)
    assert yaml.safe_load(front) and "a\\|b" in text and "<script>" not in text and "\n---\n" not in text


# --- what is refused ---------------------------------------------------------------------------------------


def test_what_cannot_be_saved(
    fedavg: Run, fedbn: Run, save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "ONNX_NEEDS", ("onnx", "no_such_package"))
    for run, given, *named in (
        (fedbn, {}, "--node", "0 (scan)", "3 (sketch)"),
        (fedbn, {"node": 9}, "node 9"),
        (fedavg, {"node": 0}, "node 0"),
        (fedavg, {"shared": True}, "--shared"),
        (fedbn, {"shared": True, "form": "torchscript"}, "--shared", "safetensors"),
        (fedavg, {"server_round": 7}, "--round: 7", "1"),
        (fedavg, {"before": True}, "--before-adaptation"),
        (fedavg, {"form": "onnx"}, "no_such_package", "fedshift[onnx]"),
        (Run(tmp_path), {}, "config.yaml"),
    ):
        with refused(FedShiftError, *named):
            save(run, **given)
        assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    with refused(ConfigError, "model"):
        save(fedavg)
    existing = tmp_path / "results.part"  # may be anybody's, another save to the same place among them
    existing.mkdir()
    (existing / "mine.txt").write_text("mine")
    save(fedavg, output=tmp_path / "results")
    assert (existing / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "results", "results.part"]


def test_an_unfinished_run_is_saved_by_a_round_that_is_named_and_a_damaged_one_is_not(
    fedavg: Run, save: Any, copied: Any
) -> None:
    copy = copied(fedavg)
    results = (copy.folder / "results.json").rename(copy.folder / "kept.json")
    with refused(ConfigError, "1 of 1", "--round N"):
        save(copy, output=None)
    assert save(copy, output=None, server_round=1)[0].name == "model-round-1"
    results.rename(copy.folder / "results.json")
    (copy.folder / "metrics.jsonl").write_text(json.dumps(copy.rounds[0] | {"accuracy": {"scan": 101.0}}) + "\n")
    with refused(ConfigError, "accuracy", "100"):
        save(copy)
    (copy.folder / WEIGHTS).write_bytes(b"")
    with refused(ConfigError, "read"):
        save(copy)


def test_personal_parts_that_are_gone_or_on_their_nodes_are_reported(fedbn: Run, save: Any, copied: Any) -> None:
    copy = copied(fedbn)
    shutil.rmtree(copy.folder / "checkpoint" / "nodes" / "node-1")
    with refused(ConfigError, "node 1", "round 1"):
        save(copy, node=1)
    file = copy.folder / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"engine": "deployment"}))
    for given, named in (({}, "--shared"), ({"node": 1}, "nodes")):
        with refused(ConfigError, named):
            save(copy, **given)
    folder, model = save(copy, shared=True)
    assert model.parts == "shared"
    assert load_file(folder / "model.safetensors").keys() == load_file(fedbn.folder / WEIGHTS).keys()
    with refused(ConfigError):
        opening.program_of(*saved.read(folder))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"fedshift_model": 2}, "fedshift_model"),
        ({"file": "../../etc/passwd"}, "file"),
        ({"classes": ["a", "a"]}, "classes"),
        ({"std": [0.5, 0, 1]}, "std"),
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"classes": [str(k) for k in range(9)]}, "classes"),
        ({"mean": [0, 0, 0]}, "mean"),
        ({"configuration": {"plugins": ["/tmp/evil.py"]}}, "plugins"),
        ({"configuration": {"method": {"name": "nobody"}}}, "nobody"),
        ({"network": "cnn2"}, "network"),
    ],
)
def test_a_model_json_that_was_edited(change: Any, key: str, fedavg: Run, save: Any) -> None:
    folder, _ = save(fedavg)
    content = json.loads((folder / "model.json").read_text())
    change = {name: content[name] | of if isinstance(of, dict) else of for name, of in change.items()}
    (folder / "model.json").write_text(json.dumps(content | change))
    with pytest.raises(FedShiftError, match=re.escape(key)) as caught:
        opening.program_of(*saved.read(folder))
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_saved_model(tmp_path: Path) -> None:
    for content, named in (
        (None, "model.json"),
        ("[" * 100_000, "read"),
        ("[1]", ""),
        (" " * ((1 << 20) + 1), "1048576"),
    ):
        if content is not None:
            (tmp_path / "model.json").write_text(content)
        with refused(ConfigError, named):
            saved.read(tmp_path)


def test_weights_that_are_not_the_networks(fedavg: Run) -> None:
    record, first = reading.read(fedavg.folder), "encoder.0.weight"
    assert record.checkpoint is not None and set(forms.FILES) == set(get_args(Form)) == set(forms.FORMS)
    weights: Arrays = record.checkpoint.weights
    for name, array in ((first, weights[first][:1]), (first, weights[first] * np.nan), ("evil", weights[first])):
        with refused(FedShiftError, name):
            scorer.rebuilt(record.config, weights | {name: array}, "its")

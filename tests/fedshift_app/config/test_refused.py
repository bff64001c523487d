"""Configurations that are refused: the message names key and value, and fits on two lines."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from refusals import refused
from words import config as config_of

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_app.run.files import CONFIG_FILE
from fedshift_app.run.folder import RunFolder
from fedshift_core.errors import ConfigError
from fedshift_core.limits import LARGEST_SEED, MOST_NODES, MOST_ROUNDS

DP = "privacy.name=dp-sgd"
NOISY = f"{DP} privacy.noise_multiplier=1"
BATCHNORM = "model.name=cnn_bn allocation.validation_fraction=0.2"
SHARE = "'allocation.share={scan: 0.1}'"
#: Arguments of `fedshift run`, each with parts of the message that refuses them.
REFUSED = {
    # Names and keys that do not exist.
    "nope": "experiment 'nope' handwritten digits-small",
    "method=nope": "method 'nope' fedavg i2pfl",
    "dataset=nope": "dataset 'nope' handwritten digits",
    "model.name=vgg": "model 'vgg' resnet10",
    "trian.lr=1": "'trian.lr' dataset train federation",
    "checkpoint_secs=7": "'checkpoint_secs' checkpoint_seconds",
    "dataset.nope=1": "dataset.nope domains",
    "method.nope=1": "method.nope none",
    "method=f2dc method.gamma=1": "method.gamma 'f2dc' aggregation alpha",
    "train.lr.x=1": "train.lr",
    "privacy.noise=1": "privacy.noise clipping_norm",
    "modules.tau=1": "modules.NAME.KEY",
    "modules=[f2dc,f2dc]": "modules 'f2dc'",
    "modules=[3]": "modules",
    "modules=[f2dc] modules.f2dc.nothing=1": "modules.f2dc.nothing conv_layers",
    "method=f2dc modules.f2dc.tau=0.5 modules=[mixstyle]": "modules.NAME.KEY",
    "adapt.name=nothing": "adapt.name 'nothing' finetune",
    "adapt.name=finetune adapt.lr=1": "adapt.lr adapt.name=finetune epochs",
    "adapt.epochs=1": "adapt.epochs adapt.name=none",
    # Values of the wrong kind, or out of bounds.
    "rounds=-1": "rounds -1",
    f"rounds={MOST_ROUNDS + 1}": f"rounds {MOST_ROUNDS}",
    "seed=x": "seed 'x'",
    f"seed={LARGEST_SEED + 1}": f"seed {LARGEST_SEED}",
    f"nodes=1{'0' * 30}": f"nodes {MOST_NODES}",
    f"'allocation.counts={{random: 1{'0' * 30}}}'": "whole numbers",
    "'allocation.counts={random: 1000000000}'": "allocation.counts at most",
    "'allocation.counts={scan: 1000000000}'": "allocation.counts at most",
    "actors=100000": "actors 1024",
    "train.lr=fast": "train.lr 'fast'",
    "train.lr=-1e-3": "train.lr -0.001",
    "train.lr=nan": "train.lr nan",
    "train.epochs=2.5": "train.epochs 2.5",
    "train.epochs=1000001": "train.epochs 1000000 1000001",
    "train.schedule_steps=3": "train.schedule_steps [A]",
    "train.precision=fp8": "train.precision 'fp8' 'bf16'",
    "images.mean=[1,2,3,4]": "images.mean 3",
    "images.std=[0.2,0,0.2]": "images.std",
    "images.eval_batch=1000000000": "images.eval_batch",
    "dataset.domains=true": "dataset.domains True [A]",
    "dataset.domains=[scan,moon]": "dataset.domains 'moon' street",
    "dataset.domains=[scan,scan]": "dataset.domains different scan",
    "dataset.domains=[]": "dataset.domains none",
    "dataset.data_dir=5": "dataset.data_dir 5",
    "digits-small dataset.data_dir=images": "dataset.data_dir 'images' absolute",
    "dataset.window=[240,-160]": "dataset.window [240, -160]",
    "model.bn=off": "model.bn False 'freeze'",
    "federation.node_timeout=1e12": "federation.node_timeout",
    "allocation.counts=some": "allocation.counts 'some' any",
    "'allocation.counts={scan: -1}'": "allocation.counts -1",
    "'allocation.counts={moon: 2}'": "allocation.counts 'moon' scan",
    "allocation.held_out=[moon]": "allocation.held_out 'moon' scan",
    "'allocation.counts={scan: 3}' allocation.share=0.5": "allocation 'scan' 150 100",
    "method=i2pfl method.inter_proto=mean": "method.inter_proto 'mean' 'reweight'",
    "method=f2dc method.aggregation=median": "method.aggregation 'median' daa fedavg",
    "modules='[{name: f2dc, hidden: 1000000000}]'": "modules.f2dc.hidden",
    "privacy.clipping_norm=-1": "privacy.clipping_norm -1",
    "privacy.name=central-dp": "privacy.name 'central-dp'",
    f"{DP} privacy.noise_multiplier=0": "privacy.noise_multiplier 0",
    # Values that contradict each other.
    "method=i2pfl method.inter_proto=finch": "method inter_proto=finch use_ema=false",
    "method=fedicon rounds=5": "rounds=5 classifier_rounds=5",
    "method=fedicon images.views=1": "images.views=1 lie=true",
    "method=fedseproto train.epochs=1": "phase1_epochs=1 train.epochs=1 joint",
    "model.per_node=[cnn]": "model.per_node 'fedavg' fedseproto",
    "method=fedseproto model.per_node=[big]": "model.per_node 'big' cnn2",
    "method=fedseproto dataset.size=64 model.name=resnet10 model.per_node=[cnn3]": "cnn3 dataset.size=32 64",
    "method=f2dc modules=[]": "f2dc modules=none",
    "method=fedavg-ft adapt.name=none": "fedavg-ft adapt.name=finetune none",
    "method=fedbn model.bn=freeze": "fedbn model.bn=local freeze",
    "method=fedbn model.name=cnn": "fedbn model.name=cnn cnn_bn",
    SHARE: "allocation.share texture street sketch",
    f"{SHARE} 'allocation.counts={{scan: 1, texture: 1, sketch: 1}}'": "allocation.share texture sketch",
    f"{SHARE} allocation.share_per=domain allocation.held_out=[sketch]": "allocation.share texture street",
    f"{BATCHNORM} evaluate.bn=[own,averaged] allocation.held_out=[street]": "evaluate.bn=[own,averaged] street",
    f"{BATCHNORM} evaluate.bn=[own,averaged] 'allocation.counts={{scan: 2}}'": "evaluate.bn=[own,averaged] texture",
    f"{BATCHNORM} model.bn_keep=retaken evaluate.bn=[averaged,retaken] keep=best-validation": "keep= model.bn_keep=",
    f"{BATCHNORM} model.bn_keep=averaged evaluate.bn=[own,averaged] keep=best-validation": "keep= model.bn_keep=",
    # Noise, and what would leave without it.
    "method=i2pfl privacy.name=local-dp": "'i2pfl' prototypes fedavg",
    "privacy.name=local-dp evaluate.client_models=last": "evaluate.client_models=last off",
    DP: "dp-sgd noise_multiplier target_epsilon neither",
    f"{NOISY} privacy.target_epsilon=3": "noise_multiplier=1 target_epsilon=3",
    f"{NOISY} train.precision=bf16": "dp-sgd train.precision=bf16 float32",
    f"{NOISY} train.arithmetic=bf16/nchw": "dp-sgd train.arithmetic=bf16/nchw float32",
    f"{NOISY} evaluate.client_models=last": "evaluate.client_models=last",
    f"{NOISY} adapt.name=finetune": "adapt.name=finetune",
    f"{NOISY} modules=[f2dc]": "dp-sgd f2dc",
    f"{NOISY} method=fpl method.proto_source=last_epoch": "method.proto_source=after_training",
    # Keys that do nothing beside another one.
    "privacy.epsilon=8": "privacy.epsilon=8 privacy.name=none local-dp",
    f"{NOISY} privacy.epsilon=3": "privacy.epsilon=3 privacy.name=dp-sgd",
    "privacy.name=local-dp privacy.target_epsilon=3": "privacy.target_epsilon=3 privacy.name=local-dp",
    "privacy.clipping_norm=2": "privacy.clipping_norm=2 local-dp dp-sgd",
    "shift.severity=5": "shift.severity=5 shift.name=none corruption",
    "shift.name=domain allocation.held_out=[scan] shift.corruption=fog": "shift.corruption=fog shift.name=domain",
    "server.optimizer=fedavgm server.tau=0.1": "server.tau=0.1 server.optimizer=fedavgm",
    "federation.secure_sums_nodes=5": "federation.secure_sums_nodes=5 federation.secure_sums=true",
    "train.schedule_end=0.5": "train.schedule_end=0.5 train.schedule=linear cosine",
    "model.bn=local": "model.bn=local model.name=cnn",
    "method=moon model.bn=freeze": "model.bn=freeze model.name=cnn",
    "method=fedicon adapt.name=tent method.tta_lr=0.5": "method.tta_lr=0.5 adapt.lr=0.001",
    "method=fedicon adapt.name=tent method.tta_epochs=3": "method.tta_epochs=3 adapt.name=tent adapt.epochs=3",
    "method=fedicon adapt.name=tent method.tta=true": "method.tta=true adapt.name=tent",
    "method=fedicon adapt.lr=0.1 method.tta_lr=0.5": "method.tta_lr=0.5 adapt.lr=0.1",
    "method=fedicon adapt.jitter=[0,0,0,0] method.tta_jitter=[0.1,0,0,0]": "method.tta_jitter adapt.jitter=",
    "method=f2dc modules.f2dc.lambda1=0.5 method.lambda1=2": "modules.f2dc.lambda1=0.5 modules.f2dc.lambda1=2",
    # Slips, with what was meant.
    "methd.name=moon": "mean method.name",
    "method=fedprx": "mean fedprox",
    "model.bn=avrage": "mean average",
    "method=f2dc method.aggregation=dda": "mean daa",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_arguments_that_are_refused(typed: str) -> None:
    with refused(ConfigError, *REFUSED[typed].split()) as caught:
        resolve(parse_arguments(shlex.split(typed))[0])
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize("typed", ["lr=1", "resume=runs/1", "rounds=-7", "seed=x"])
def test_keys_of_flower_that_are_refused(typed: str) -> None:
    key, _, value = typed.partition("=")
    with refused(ConfigError, key):
        resolve({key: yaml.safe_load(value)})


@pytest.mark.parametrize("text", ["train.lr", "=5", "a=1 b", "'a=1", 'a="[1', "train.lr={", "train.lr=[1"])
def test_a_text_of_keys_that_is_refused(text: str) -> None:
    with refused(ConfigError, "set: ", text.split("=")[-1].split()[-1]):
        resolve({"set": text})


@pytest.mark.parametrize(
    "typed",
    [
        f"{SHARE} 'allocation.counts={{scan: 2, sketch: 0}}'",
        f"{SHARE} allocation.held_out=[texture,street,sketch]",
        f"finished {SHARE}",  # as recorded runs are read
        f"{BATCHNORM} evaluate.bn=[averaged,own] allocation.held_out=[street,sketch]",
        f"{BATCHNORM} evaluate.bn=[own,averaged]",
        f"{BATCHNORM} model.bn_keep=retaken evaluate.bn=[averaged,retaken] keep=last",
        f"{BATCHNORM} model.bn_keep=retaken evaluate.bn=[averaged,retaken] evaluate.patience=2",
        f"{BATCHNORM} model.bn_keep=retaken evaluate.bn=[retaken,averaged] keep=best-validation",
        f"finished {BATCHNORM} model.bn_keep=retaken evaluate.bn=[averaged,retaken] keep=best-validation",
        "method=fedicon method.tta_lr=5e-1",
        "method=fedicon method.tta_jitter=[0.1,0,0,0]",
        "method=fedicon adapt.lr=0.5 method.tta_lr=0.5",
        "method=fedicon adapt.tau=0.3 method.tau=0.2",
        "method=fedicon method.tta_crop_padding=null",
        "privacy.target_epsilon=null",
        "server.optimizer=fedavgm server.lr=0.5",
        "model.bn=average",
        "model.bn=local modules=[f2dc]",
        "method=afl aggregation.afl_step=0.2",
        "method=i2pfl method.inter_proto=finch method.use_ema=false",
        f"seed={LARGEST_SEED}",
    ],
)
def test_what_is_close_to_it_is_taken(typed: str) -> None:
    words = typed.removeprefix("finished ")
    resolve(parse_arguments(shlex.split(words))[0], finished=words != typed)


# --- experiments ------------------------------------------------------------------------------------------

EXPERIMENT = """\
dataset: {name: handwritten}
model:
  name: cnn
train: {epochs: 1, batch_size: 36, lr: 0.1}
method:
  name: i2pfl
modules:
  - name: f2dc
    tau: 0.1
methods:
  i2pfl: {tau: 0.3, model: {bn: local}}
  f2dc: {lambda1: 0.1}
rounds: 2
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


#: Mistakes, each with its place.
PLACES = {
    "lr: 0.1 -> lr: 0.1, sedule: step": "line 4, column 45",
    "lr: 0.1 -> lr: -1": "line 4, column 36",
    "rounds: 2 -> ruonds: 2\nrounds: 2": "line 13, column 1",
    "rounds: 2 -> rounds: -1": "line 13, column 1",
    "name: cnn -> name: cnn5": "line 3, column 3",
    "name: i2pfl -> name: i2pfll": "line 6, column 3",
    "name: i2pfl -> name: i2pfl\n  tua: 1": "line 7, column 3",
    "{tau: 0.3 -> {tau: 0": "line 11, column 11",
    "{tau: 0.3 -> {tau: garbage": "line 11, column 11",
    "{tau: 0.3 -> {train: {lrr: 1}": "line 11, column 19",
    "bn: local -> bn: lokal": "line 11, column 29",
    "  f2dc: { ->   f2cd: {": "line 12, column 3",
    "- name: f2dc -> - name: f2dd": "line 8, column 5",
    "tau: 0.1 -> tau: 0": "line 9, column 5",
    "{name: handwritten -> {name: handwriten": "line 1, column 11",
    "{name: handwritten -> {name: handwritten, domains: [scan, stret]": "line 1, column 46",
    "{name: handwritten -> {name: handwritten, domains: [scan], public: stret": "line 1, column 47",
    "rounds: 2 -> rounds: 2\nallocation: {counts: {scn: 2}}": "line 14, column 23",
    "rounds: 2 -> rounds: 2\nprivacy: {epsilon: 8}": "line 14, column 11",
    "rounds: 2 -> rounds: 2\naggregation: {robust: {name: median, trim: 0.2}}": "line 14, column 38",
    "rounds: 2 -> rounds: 2\naggregation: {robust: {name: krum, malicous: 2}}": "line 14, column 36",
    "rounds: 2 -> rounds: 2\naggregation: {robust: {name: trimmed_mean, trim: 2}}": "line 14, column 44",
}


@pytest.mark.parametrize("change", PLACES)
def test_the_place_of_a_mistake(change: str, path: Path) -> None:
    old, new = change.split(" -> ")
    assert EXPERIMENT.count(old) == 1
    path.write_text(EXPERIMENT.replace(old, new))
    with refused(ConfigError, f"({PLACES[change]} of mine.yaml)") as caught:
        resolve({"experiment": str(path)})
    assert len(str(caught.value)) <= 293


def test_a_parameter_of_a_recipe_has_the_place_where_it_is_set(path: Path) -> None:
    path.write_text(EXPERIMENT.replace("lambda1: 0.1", "lambda1: -1"))
    with refused(ConfigError, "modules.f2dc.lambda1", "(line 12, column 10 of mine.yaml)"):
        resolve({"experiment": str(path), "method": "f2dc"})


def test_each_of_two_mistakes_has_its_place_and_unknown_keys_come_before_missing_ones(path: Path) -> None:
    for new, *named in (
        ("epochs: 1, batch_size: 36, lr: -1, momentm: 0", "line 4, column 44", "line 4, column 36"),
        ("epochz: 1, batchsize: 36, lr: 0.1", "line 4, column 9", "line 4, column 20"),
    ):
        path.write_text(EXPERIMENT.replace("epochs: 1, batch_size: 36, lr: 0.1", new))
        with refused(ConfigError, *named) as caught:
            resolve({"experiment": str(path)})
        assert all(place in line for place, line in zip(named, str(caught.value).splitlines(), strict=True))


def test_a_key_of_the_command_has_no_place_in_the_file(path: Path) -> None:
    path.write_text(EXPERIMENT)
    for typed in ("train.lr=-1", "method=i2pfll"):
        with refused(ConfigError, typed.partition("=")[0]) as caught:
            resolve(parse_arguments([str(path), typed])[0])
        assert "(line" not in str(caught.value)


def test_a_mistake_in_the_configuration_of_a_run_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    text = yaml.safe_dump({"resolved": resolve({}).model_dump(mode="json")}).replace("    lr: 0.01\n", "    lr: -1\n")
    file.write_text(text)
    line = text.splitlines().index("    lr: -1") + 1
    with pytest.raises(ConfigError, match=rf"^train\.lr: .* \(line {line}, column 5 of config\.yaml\)$"):
        resolve({"experiment": str(file)})


#: What stands in the place of a key of the experiment, each with parts of the message; nothing takes the key away.
MISTAKES = {
    "model:": "model",
    "rounds:": "rounds",
    "train: {}": "train",
    "train: {epochs: 1, batch_size: 8}": "train.lr",
    "adapt: 3": "adapt 3",
    "statistics: [1]": "statistics [1]",
    "bogus: 1": "bogus rounds federation",
    "method: {name: nope}": "'nope' fedavg",
    "method: {name: fedavg, tau: 1}": "method.tau 'fedavg'",
    "method: {nope: 1}": "method nope",
    "method: i2pfl": "method",
    "dataset: [scan]": "dataset",
    "images: 5": "images",
    "methods: 5": "methods",
    "methods: {fedavg: 5}": "fedavg",
    "methods: {i2plf: {tau: 0.1}}": "'i2plf' i2pfl",
    "resolved: 5": "resolved",
    "resolved: {method: i2pfl}": "method",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_in_an_experiment(text: str, path: Path) -> None:
    content = yaml.safe_load(EXPERIMENT.replace("i2pfl\n", "fedavg\n"))
    content |= yaml.safe_load(text)
    path.write_text(yaml.safe_dump({key: value for key, value in content.items() if value is not None}))
    with refused(ConfigError, *MISTAKES[text].split()):
        resolve({"experiment": str(path)})


@pytest.mark.parametrize("name", ["nope.yaml", "folder.yaml", "nowhere/x.yml"])
def test_an_experiment_that_does_not_exist(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with refused(ConfigError, "experiment", tmp_path / name):
        resolve({"experiment": str(tmp_path / name)})


@pytest.mark.parametrize("given", [{"method": "fedavg"}, {"set": "method.name=fedavg"}], ids=["method", "set"])
def test_the_configuration_of_a_run_is_refused_for_another_method(given: dict[str, Any], tmp_path: Path) -> None:
    """It holds what the run's method sets in other sections, such as FedBN's BatchNorm and network."""
    folder = RunFolder(tmp_path, config_of("method=fedbn"), engine="inline", personal=False)
    with refused(ConfigError, "method=fedavg", "'fedbn'", "handwritten"):
        resolve({"experiment": str(folder.path / CONFIG_FILE)} | given)

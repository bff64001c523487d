"""Settings that do not fit together are refused before a run begins: methods, modules, adaptations, networks."""

import pytest
from refusals import refused

from fedshift_app.config.resolving import resolve
from fedshift_app.run import build
from fedshift_core.errors import ConfigError
from fedshift_strategies.federation.context import RunContext


def prepared(method: str, text: str) -> RunContext:
    """Return what the server knows of a run, as the command prepares it."""
    return build.prepare(resolve({"experiment": "handwritten", "method": method, "set": text}), "inline")[1]


FROZEN = "model.freeze=encoder adapt.name=none"
ONCE = "model.precompute=on images.crop_padding=0"
M, W = "modules.mixstyle.", "modules.within-domains."
#: Method, settings, and what the message names.
REFUSED = [
    ("f2dc", "method.local_modules=local", "local_modules=aggregate"),
    ("f2dc", "method.eval_modules=client_mean", "local_modules=local"),
    ("f2dc", "method.eval_modules=none method.test_feature=f_plus", "test_feature=f_plus"),
    ("f2dc", "method.eval_modules=none method.eval_noise=true", "eval_noise=true"),
    ("f2dc", "method.insert_after=[2,2]", "insert_after; [2, 2]"),
    ("f2dc", "model.name=cnn method.insert_after=[4,1]", "insert_after; cnn; [1, 4]"),
    ("fdse", "model.bn=freeze", "model.bn=freeze; average, local"),
    ("fedavg", "modules=[fedfa] modules.fedfa.stages=[]", "stages; []"),
    ("fedavg", f"modules=[mixstyle] {M}mix=crossdomain", "mix=crossdomain; allocation.mixing"),
    (
        "fedavg", f"modules=[mixstyle] {M}mix=crossdomain allocation.mixing=0.5 allocation.domain_labels=unknown",
        "mix=crossdomain; 0.5; unknown",
    ),
    ("fedavg", f"modules=[mixstyle] {M}stages=[3]", "modules.mixstyle.stages; cnn; [3]"),
    ("fedavg", f"modules=[within-domains] {W}coral=1.0", "within-domains; allocation.mixing"),
    (
        "fedavg", f"modules=[within-domains] {W}coral=1.0 allocation.mixing=0.5 allocation.domain_labels=unknown",
        "within-domains; 0.5; unknown",
    ),
    ("fedavg", "modules=[within-domains] allocation.mixing=0.5", "within-domains; above 0"),
    ("fedavg", "train.schedule=step", "schedule=step; schedule_steps"),
    ("fedavg", "train.schedule_steps=[3]", "schedule=none; [3]"),
    ("fedavg", "train.schedule=step train.schedule_steps=[6,3]", "train.schedule_steps; 6, 3"),
    ("fedavg", "train.schedule=step train.schedule_steps=[0]", "train.schedule_steps; 0"),
    ("fedavg", "train.warmup_rounds=20", "train.warmup_rounds=20; rounds=20"),
    ("fedavg", "adapt.name=fedicon images.crop_padding=0", "adapt; augmentation"),
    ("fedavg", "adapt.name=tent", "adapt.name=tent; cnn; t3a"),
    ("fedavg", "adapt.name=eata model.name=cnn_bn model.bn=group", "adapt.name=eata; cnn_bn"),
    ("fedavg", "adapt.name=tent model.name=cnn_bn model.bn=freeze", "adapt.name=tent; model.bn=freeze"),
    ("fedavg", "adapt.name=eata model.name=cnn_bn model.freeze=norm", "adapt.name=eata; cnn_bn; frozen"),
    ("fedavg", "adapt.name=tent model.freeze=encoder", "model.freeze=encoder"),
    ("fedavg", "model.name=mlp", "mlp; cnn_bn; resnet10"),
    ("fedcode", "method.share_head=true method.global_model=average_heads", "average_heads; share_head=false"),
    ("fedicon", f"{FROZEN} images.views=2", "fedicon; encoder"),
    ("fedpac", FROZEN, "fedpac; encoder"),
    ("fedrep", "model.freeze=stages:4 model.name=resnet10 adapt.name=none", "fedrep; encoder"),
    ("fedpall", "model.head=mlp", "model.head=linear; mlp"),
    ("fedproto", "method.share_weights=true model.name=cnn2 model.per_node=[cnn2,cnn3]", "cnn2; share_weights"),
    ("fedrcl", "model.name=torchvision:shufflenet_v2_x0_5", "fedrcl; torchvision:shufflenet_v2_x0_5"),
    (
        "fedseproto", "train.epochs=2 method.phase1_epochs=2 method.schedule=phase1_first_round_only",
        "phase1_epochs=2; train.epochs=2; schedule=joint",
    ),
    ("fedsr", "method.z_dim=8 model.head=mlp", "z_dim; model.head=linear"),
    ("ggeur", "", "ggeur; model.freeze=encoder; none"),
    ("ggeur", "model.freeze=encoder train.sampler=balanced", "train.sampler=balanced"),
    ("ggeur", "model.name=resnet10 model.freeze=encoder modules=[f2dc]", "ggeur; modules"),
    ("gperxan", "model.name=cnn", "gperxan; model.name=cnn"),
    ("gperxan", f"model.name=cnn_bn model.freeze=stages:1 {ONCE}", "gperxan; model.precompute"),
    ("gperxan", "model.name=cnn_bn model.freeze=encoder", "gperxan; stages:N"),
    ("gperxan", "model.name=cnn_bn model.bn=group", "model.bn=group; average, local"),
    ("mixstyle", "modules=[]", "mixstyle"),
    ("scaffold", "train.optimizer=adam", "train.optimizer=adam; method.option=II"),
    ("stablefdg", f"model.freeze=encoder {ONCE}", "model.precompute=on; stablefdg"),
    ("stablefdg", "modules=[mixstyle]", "stablefdg; modules"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "text", "named"), REFUSED)
def test_what_does_not_fit_together_is_refused(method: str, text: str, named: str) -> None:
    with refused(ConfigError, *named.split("; ")):
        prepared(method, text)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("fedavg", "adapt.name=fedicon images.crop_padding=0 adapt.grayscale=0.2"),
        ("fedavg", "adapt.name=tent model.name=cnn_bn model.freeze=stages:1"),
        ("f2dc", "method.insert_after=[2,1]"),  # sorted when it is checked
        ("fdse", "adapt.name=eata"),  # puts BatchNorm into any network
        ("fedicon", "images.views=1 method.lie=false"),
        ("fedpall", "model.name=cnn3 model.per_node=[cnn3,cnn2]"),
        ("fedproto", "model.name=cnn2 model.per_node=[cnn2,cnn3]"),
        ("fedrcl", "model.name=torchvision:shufflenet_v2_x0_5 method.lambda_scl=0 method.lambda_penalty=0"),
        ("fedrep", "model.freeze=encoder model.projection=8 adapt.name=none"),
        ("fedseproto", "train.epochs=1 method.schedule=joint"),
        ("fedsr", "model.head=mlp"),
        ("ggeur", "method.samples=0"),
        ("scaffold", "train.optimizer=adam method.option=I"),
    ],
)
def test_what_stands_next_to_it_is_taken(method: str, text: str) -> None:
    assert prepared(method, text).config.method["name"] == method

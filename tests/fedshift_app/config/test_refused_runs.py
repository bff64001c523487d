"""Configurations that a run of methods, networks and features together refuses before it starts."""

import shlex

import pytest
from refusals import refused

from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.resolving import resolve
from fedshift_app.run import build
from fedshift_core.errors import ConfigError

SUMS = "federation.secure_sums=on"
SHARED = "statistics.share=server"
NORMS = "model.name=cnn_bn"
HEAD = "model.freeze=encoder images.crop_padding=0"
KEPT = f"{HEAD} model.precompute=on"
GAPS = "aggregation.weights=ga"
NETWORK = "model.name=torchvision:"
#: Arguments of `fedshift run`, each with parts of the message that refuses them.
REFUSED = {
    # Secure sums, where single replies are needed.
    f"{SUMS} method=fedheal": "'fedheal' weights merge federation.secure_sums",
    f"{SUMS} method=copa": "'copa' merge_knowledge",
    f"{SUMS} method=fpl": "'fpl' prototypes",
    f"{SUMS} method=fedpac": "'fedpac' variance",
    f"{SUMS} method=fediir": "'fediir' head-gradient",
    f"{SUMS} method=scaffold method.option=I": "'scaffold' delta-c",
    f"{SUMS} {GAPS}": GAPS,
    f"{SUMS} aggregation.robust=median": "aggregation.robust=median none",
    f"{SUMS} evaluate.client_models=last": "evaluate.client_models=last off",
    f"{SUMS} method=feddyn aggregation.weights=samples": "aggregation.weights=samples method equal",
    f"{SUMS} federation.secure_sums_nodes=1": "secure_sums_nodes 1",
    f"{SUMS} {SHARED}": "statistics.share=server off",
    # Statistics of images.
    f"{SHARED} privacy.name=local-dp": "privacy.name=local-dp statistics.share=server",
    "statistics.share=all": "statistics.share 'all'",
    f"{SHARED} statistics.least_images=1": "statistics.least_images 1",
    "statistics.share=nodes statistics.image_share=0.1": "'fedavg' statistics.image_share",
    "method=fedccrl method.copies=0": "'fedccrl'",
    "method=fedccrl statistics.image_share=0": "'fedccrl' statistics.image_share",
    f"method=fedccrl {SHARED}": "statistics.share=nodes server",
    "method=fedccrl statistics.image_share=1.5": "image_share 1.5",
    f"method=fedccrl {KEPT} images.flip=false": "kept features",
    "method=fedccrl images.normalization=fedrdn": "fedrdn",
    # BatchNorm's statistics.
    "evaluate.bn=[averaged,own]": "evaluate.bn=[averaged,own] cnn",
    f"{NORMS} model.bn=group evaluate.bn=[batch]": "model.bn=group",
    f"{NORMS} model.bn=freeze evaluate.bn=[averaged,own]": "model.bn=freeze",
    f"{NORMS} evaluate.bn=[own,own]": "evaluate.bn own, own",
    f"{NORMS} evaluate.bn=[]": "evaluate.bn",
    f"{NORMS} evaluate.bn=[mean]": "evaluate.bn.0",
    f"{NORMS} model.bn_keep=retaken": "model.bn_keep=retaken",
    f"{NORMS} evaluate.bn_images=1": "evaluate.bn_images",
    f"{NORMS} evaluate.bn=[averaged,retaken] privacy.name=local-dp": "BatchNorm",
    f"{NORMS} model.bn=group model.groups=3": "model.groups=3 32",
    f"{NETWORK}mobilenet_v3_small dataset.size=64 model.bn=group model.groups=32": "model.groups=32 16",
    "method=fedbn evaluate.bn=[retaken]": "'fedbn' model.bn=local",
    "method=fedbn evaluate.bn=[averaged,retaken] model.bn_keep=retaken": "'fedbn' model.bn=local",
    f"{NORMS} model.freeze=norm evaluate.bn=[averaged,own]": "evaluate.bn=[averaged,own] model.freeze=norm",
    f"{NORMS} {HEAD} model.projection=16 evaluate.bn=[averaged,own]": "evaluate.bn=[averaged,own] model.freeze=encoder",
    # Kept features.
    f"{KEPT} model.freeze=none": "model.precompute=on model.freeze=encoder none",
    f"{KEPT} model.freeze=norm {NORMS}": "model.precompute=on",
    f"{KEPT} model.freeze=stages:1 {NORMS} model.bn=local": "model.bn=local",
    f"{KEPT} images.flip=true": "images.flip=false",
    f"{KEPT} images.cached_views=4": "images.cached_views",
    f"{KEPT} images.views=2": "images.views=2 images.cached_views",
    f"{KEPT} adapt.name=tent model.freeze=stages:1 {NORMS}": "adapt.name=tent model.precompute=on",
    f"{KEPT} method=fedcode model.freeze=stages:1": "fedcode",
    f"{KEPT} method=fdse {NORMS}": "fdse",
    f"{HEAD} images.flip=true images.cached_views=2": "model.precompute=on off",
    f"{KEPT} model.precompute_gb=0": "model.precompute_gb",
    f"{KEPT} model.projection=-1": "model.projection",
    # Networks.
    "model.freeze=stages:0": "model.freeze",
    "model.freeze=head": "model.freeze 'head'",
    f"model.weights_sha256={'a' * 64}": "model.weights_sha256 model.weights",
    "model.weights=/none.pth": "model.weights /none.pth",
    "model.download=true": "torchvision:NAME cnn",
    f"{NORMS} model.freeze=norm model.bn=local": "model.freeze=norm",
    "adapt.name=fedicon adapt.flip=true model.freeze=encoder": "adapt.name=fedicon",
    f"{NETWORK}vit_b_32 modules=[f2dc]": "torchvision:vit_b_32",
    "model.name=resnet10 model.freeze=stages:5": "resnet10 stages 4",
    f"method=fedcode {NETWORK}vit_b_32": "SAIN",
    "method=fedcode model.head=mlp method.global_model=average_heads": "model.head=linear mlp",
    "method=moon model.head=mlp method.projection=mlp": "model.head=linear mlp",
    "method=fedproto model.per_node=[cnn3,cnn] model.name=cnn3": "cnn3 512 64",
    f"method=fdse {NETWORK}mobilenet_v3_small dataset.size=64": "fdse BatchNorm",
    # Classes of unequal numbers of images.
    "train.class_weights=more": "train.class_weights balanced effective",
    "'train.class_weights={a: 0}'": "train.class_weights 'a' 0",
    "'train.class_weights={twelve: 2}'": "train.class_weights 'twelve'",
    "train.class_counts=federation": "train.class_weights=none balanced",
    "train.class_weights=balanced train.class_beta=0.9": "train.class_beta=0.9 train.class_weights=balanced",
    "train.focal_gamma=1": "train.focal_gamma=1 train.loss=cross-entropy focal",
    "train.class_beta=1 train.class_weights=effective": "train.class_beta",
    "privacy.name=dp-sgd privacy.noise_multiplier=1 train.sampler=balanced": "train.sampler=balanced dp-sgd",
    "method=fedthe train.sampler=balanced": "fedthe",
    "method=scaffold method.option=I train.sampler=balanced": "method.option=II train.sampler=shuffle",
    # Aggregation, and models of the nodes' own.
    f"{GAPS} aggregation.gap_on=validation": "allocation.validation_fraction",
    f"{GAPS} privacy.name=local-dp": "privacy.name=local-dp",
    f"{GAPS} method=local": f"{GAPS} 'local'",
    **{
        f"method={method} aggregation.{rule}": f"aggregation.{rule} '{method}'"
        for method in ("local", "fedproto")
        for rule in ("robust=median", "weights=equal", "weights=samples", "weights=domain-aware", "weights=afl")
    },
    "method=fedheal aggregation.robust=clip": "aggregation.robust=clip 'fedheal' fedavg",
    "shift.label_mix=own evaluate.personal_on=all_domains": "evaluate.personal_on=all_domains shift.label_mix=own",
    "evaluate.untrained=drop": "evaluate.untrained 'drop' leave_out",
    "method=fedgh model.head=mlp": "model.head=mlp",
    "method=fedtgp method.server_lr=0": "method.server_lr",
    "method=fedsa method.momentum=1.5": "method.momentum",
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_does_not_go_together_is_refused_before_the_run(typed: str) -> None:
    if "dp-sgd" in typed:
        pytest.importorskip("opacus", reason="fedshift[dp] is not installed")
    with refused(ConfigError, *REFUSED[typed].split()) as caught:
        build.prepare(resolve(parse_arguments(shlex.split(typed))[0]), "inline")
    assert str(caught.value).count("\n") <= 1


@pytest.mark.parametrize(
    "typed",
    [
        f"{SUMS} method=fedpac method.combine_heads=false",
        f"{SUMS} method=i2pfl method.inter_proto=average",
        f"{SUMS} privacy.name=local-dp",
        f"{SUMS} aggregation.weights=equal server.optimizer=fedadam",
        f"{SUMS} {NORMS} evaluate.bn=[retaken,averaged]",
        f"{SUMS} train.class_weights=effective train.class_counts=federation",
        "modules=[f2dc] train.class_weights=effective train.class_counts=federation",
        "method=fedthe method.balanced=false train.class_weights=balanced",
        "privacy.name=dp-sgd privacy.noise_multiplier=1 train.class_weights=balanced train.loss=focal",
        "method=ga aggregation.gap_on=validation allocation.validation_fraction=0.2",
        "method=f2dc method.local_modules=local method.eval_modules=none",
    ],
)
def test_what_goes_together_is_taken(typed: str) -> None:
    if "dp-sgd" in typed:
        pytest.importorskip("opacus", reason="fedshift[dp] is not installed")
    build.prepare(resolve(parse_arguments(shlex.split(typed))[0]), "inline")

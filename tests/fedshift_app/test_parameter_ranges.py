"""Parameters of methods, adaptations and aggregation refuse what is out of range, or misspelled."""

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from fedshift_app.config import registry
from fedshift_app.config.sections import AggregationConfig, ServerConfig
from fedshift_clients.adapt.params import ContrastParams, EATAParams, FinetuneParams, T3AParams

#: By method, settings each of which its parameters refuse; those joined by a comma are set together.
OF_METHODS = {
    "fdse": "lambda_kl=-1 beta=-0.1 kl=mean lmbd=1 tau=0",
    "fed3r": "ridge=0 ridge=-1.0 ridge=.nan ridge=best personal=0",
    "fedcgs": "shrinkage=-0.1 shrinkage=1.1 shrinkage=.nan",
    "fedcode": "tau=0.0 alpha=-1.0 beta=-0.1 fdr_form=x proto_source=x global_model=x unknown=1 finch_partition=x",
    "feddap": "tau=0.0 lambda1=-1.0 lambda2=-1.0 dp=shrink_add dp_q=2 merge_tau=0",
    "feddyn": "alpha=-1 alpha=.nan mu=1",
    "fedicon": "tau=0.0 personal_epochs=0 classifier_epochs=0 projection=linear classifier_training=x unknown=1 "
    "projection=mlp,lie=false classifier_rounds=0 classifier_rounds=1.5",
    "fediir": "lambda_iir=-0.1 lambda_iir=.nan ema=1.0 ema=-0.1",
    "fedmlp": "tau=0.0 lambda_proto=-1.0 lambda_semantic=-1.0 tasks=1",
    "fedpall": "mix_from=0.9,mix_to=0.8 kept=0 most_features=10001 tau=0",
    "fedplvm": "alpha=0.0 alpha=1.5 tau=0.0 lambda_proto=-1.0 most_images=2 beta=1",
    "fedproc": "tau=0.0 tau=-1.0 alpha=0.5",
    "fedproto": "lambda_proto=-1.0 reduction=mean predict_by=x prototype_mean=x",
    "fedprox": "mu=-1 mu=.nan nu=1",
    "fedrcl": "tau=0.0 threshold=1.5 negatives=0 levels=first lambda_scl=-1.0",
    "fedseproto": "alpha=-1.0 beta=-0.1 lambda_proto=-1.0 kd_temperature=0.0 phase1_epochs=0 schedule=x mi_form=x "
    "reduction=x lambda=1.0",
    "fedsr": "alpha_l2r=-1 alpha_cmi=-1 z_dim=0 test=mode test_samples=0",
    "fpl": "tau=0.0 tau=-1.0 proto_source=x lambda=1.0",
    "i2pfl": "tau=0.0 tau=-1.0 alpha=0.0 lambda1=-1.0 lambda2=-0.1 apa_level=x unknown=1 dp=on dp_scale=-1 dp_q=1.5 "
    "ema=1.1 ema=-0.1 dist=cosine inter_proto=x",
    "moon": "mu=-1 tau=0 projection=linear temperature=1",
    "fedheal": "tau=1 tau=-0.1 beta=1.1 threshold=0.3",
}
OTHERS: dict[type[BaseModel], str] = {
    EATAParams: "margin=0 redundancy=1.1 fisher_alpha=-1 batch_size=1",
    ContrastParams: "tau=0.0 lr=0.0 batch_size=1 epochs=0 mode=batch mode=online,epochs=2 momentum=1.0 crop_padding=17 "
    "weight_decay=-0.1 resized_crop=0.5 jitter=0.4 grayscale=1.1 unknown=1",
    FinetuneParams: "epochs=0 epochs=-1 epochs=1.5 ft_epochs=5",
    T3AParams: "supports=0 supports=-1 batch_size=1 order=random",
    AggregationConfig: "alpha=-0.1 beta=-1.0 weights=x balance=1 tau=1 robust=mean trim=0.5 trim=0 malicious=0 "
    "clip_norm=0.0 gma_tau=-0.1 gma_tau=1.1 gap_step=-1 gap=auc gap_on=test gap_step=.nan",
    ServerConfig: "optimizer=fedadam,lr=0 optimizer=fedadam,momentum=1 optimizer=fedadam,beta2=1 optimizer=sgd "
    "optimizer=fedadam,tau=0",
}
REFUSED = {registry.get(name).params_class(): refused for name, refused in OF_METHODS.items()} | OTHERS


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_makes_no_sense_is_refused_by_its_name(kind: type[BaseModel]) -> None:
    for typed in REFUSED[kind].split():
        wrong = {key: yaml.safe_load(value) for key, value in (word.split("=") for word in typed.split(","))}
        with pytest.raises(ValidationError) as caught:
            kind(**wrong)
        values = " ".join(f"{error['loc']} {error['msg']}" for error in caught.value.errors())
        assert any(key in values for key in wrong), (wrong, values)

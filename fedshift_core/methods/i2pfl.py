"""Parameters of I2PFL."""

from typing import Annotated, Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from fedshift_core.methods.prototypes import PrototypeParams
from fedshift_core.params import OFF_IS_A_WORD, NoiseParams, Probability


class I2PFLParams(PrototypeParams, NoiseParams):
    """Parameters of I2PFL. Values are the paper's for Digits; each weight at 0 turns its term off."""

    use_gpcl: bool = True
    """Whether the inter-domain contrast with global prototypes is used (Table IV)."""
    use_apa: bool = True
    """Whether the intra-domain alignment with augmented prototypes is used (Table IV)."""
    tau: PositiveFloat = 0.07
    """Temperature of the contrast: 0.07 for Digits, 0.02 for Office-10, 0.04 for PACS."""
    alpha: PositiveFloat = 0.4
    """Parameter of MixUp's Beta(alpha, alpha)."""
    lambda1: NonNegativeFloat = 10.0
    """Weight of APA: 10 for Digits and Office-10, 2 for PACS; 0: off."""
    lambda2: NonNegativeFloat = 1.0
    """Weight of GPCL; 0: off."""
    intra_proto: Literal["feature_mixup", "input_mixup", "none_mixup"] = "feature_mixup"
    """What MixUp mixes for augmented prototypes: features, inputs, or nothing (Table VII)."""
    augproto_scope: Literal["batch", "class_set", "epoch", "round"] = "batch"
    """Images behind an augmented prototype (A6): of the batch, all of the node's at the start of the epoch (class_set,
    Eq. 8), of the epoch before, or of the node's last round.
    """
    apa_stopgrad: bool = True
    """Whether the augmented prototypes are constants in APA (A9)."""
    apa_level: Literal["sample", "class_mean"] = "sample"
    """What APA aligns: each sample, or the class mean (A10b)."""
    apa_reduction: Literal["mse_mean", "class_sum"] = "mse_mean"
    """Reduction of APA: mean over dimensions, or sum over classes (A10)."""
    apa_dist: Literal["l2sq", "l2"] = "l2sq"
    """Distance of Eq. 9: the norm squared, or the norm."""
    gamma_per: Literal["sample", "batch"] = "sample"
    """Mixing factor gamma: one for each sample, or one a batch (A8)."""
    dp: Annotated[Literal["off", "add", "shrink_add"], OFF_IS_A_WORD] = "off"
    """Noise on prototypes before they leave the node (A13, Table VI): off, add, or shrink_add."""
    dp_scale: NonNegativeFloat = 0.05
    """Scale of the noise on prototypes (s); 0: none."""
    dp_q: Probability = 0.1
    """Factor of the noise with dp=add, share by which prototypes shrink with dp=shrink_add (q)."""
    gamma_max: bool = False
    """Whether gamma is at least one half, so that a sample keeps its own class (A12)."""
    inter_proto: Literal["reweight", "average", "finch"] = "reweight"
    """How nodes' prototypes become global ones: reweight, average, or finch clusters (Table V)."""
    dist: Literal["l2sq", "l2"] = "l2sq"
    """Distance of Eq. 4: squared, or not (A4)."""
    use_ema: bool = True
    """Whether global prototypes are averaged over rounds (Eq. 5, Table IV)."""
    ema: Probability = 0.99
    """Factor of the average over rounds (beta)."""
    ema_weight_on: Literal["past", "current"] = "past"
    """Side that beta weighs: the past, or the current prototypes (A3)."""

    @model_validator(mode="after")
    def _clusters_have_no_past(self) -> "I2PFLParams":
        if self.inter_proto == "finch" and self.use_ema:
            raise ValueError("inter_proto=finch needs use_ema=false: clusters have no identity from round to round")
        return self

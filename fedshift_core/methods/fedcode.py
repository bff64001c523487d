"""Parameters of FedCode."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, model_validator

from fedshift_core.clustering import Partition
from fedshift_core.params import Params


class FedCodeParams(Params):
    """Parameters of FedCode. Values are the paper's for Digit5; a weight at 0 turns its terms off."""

    alpha: NonNegativeFloat = 20.0
    """Weight of SemCL and of StyCL: 20 for Digit5, 100 for PACS; 0: both off."""
    beta: NonNegativeFloat = 1.0
    """Weight of FDR; 0: off."""
    tau: PositiveFloat = 0.5
    """Temperature of Eq. 10; the paper gives none."""
    use_semcl: bool = True
    """Whether the term SemCL is used (Tables 5 and 6)."""
    use_stycl: bool = True
    """Whether the term StyCL is used (Tables 5 and 6)."""
    use_fdr: bool = True
    """Whether the term FDR is used (Tables 5 and 6)."""
    use_sain: bool = True
    """Whether the style encoder has SAIN layers (Fig. 6); false: it is the ordinary network, BatchNorm included."""
    share_head: bool = False
    """Whether the head travels and is averaged (Fig. 7)."""
    fdr_form: Literal["abs_cos", "sum_abs", "literal"] = "abs_cos"
    """Form of FDR (A3)."""
    style_in_negatives: bool = True
    """Whether z_s repels z_c in SemCL, and z_c repels z_s in StyCL."""
    center_in_negatives: bool = True
    """Whether the mean of P repels z_c in SemCL, and the mean of G repels z_s in StyCL."""
    negatives_stop_grad: bool = False
    """Whether z_s in SemCL and z_c in StyCL are constants (A8)."""
    proto_source: Literal["after_training", "last_epoch"] = "after_training"
    """Features behind the prototypes: of a pass after training, or of the last epoch (A10)."""
    global_model: Literal["off", "average_heads"] = "off"
    """Whether the encoder is scored with the mean head as well (Fig. 5, A13)."""
    finch_partition: Partition = "last"
    """Partition of FINCH that makes the clusters: the coarsest (last), or the first (A6)."""

    @model_validator(mode="after")
    def _one_global_model(self) -> "FedCodeParams":
        if self.share_head and self.global_model == "average_heads":
            raise ValueError(
                "global_model=average_heads needs share_head=false: with share_head=true the ordinary score is "
                "the global model's"
            )
        return self

    @property
    def contrasts(self) -> bool:
        """Whether SemCL or StyCL is on, so that prototypes travel."""
        return self.alpha > 0 and (self.use_semcl or self.use_stycl)

    @property
    def decouples(self) -> bool:
        """Whether FDR is on."""
        return self.beta > 0 and self.use_fdr

    @property
    def has_style(self) -> bool:
        """Whether there is a style encoder at all."""
        return self.contrasts or self.decouples

    @property
    def loss_needs_style(self) -> bool:
        """Whether a loss term looks at z_s."""
        contrast = self.alpha > 0 and (self.use_stycl or (self.use_semcl and self.style_in_negatives))
        return contrast or self.decouples

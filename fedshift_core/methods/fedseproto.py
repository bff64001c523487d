"""Parameters of FedSeProto."""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat

from fedshift_core.params import Params, Rounds

#: Over the D dimensions: the sum as Eqs 10 and 13 are printed, or the mean, whose size does not depend on D (A8).
Reduction = Literal["mean", "sum"]


class FedSeProtoParams(Params):
    """Parameters of FedSeProto. The paper's own values are unknown; these are recommendations."""

    schedule: Literal["two_phase_each_round", "phase1_first_round_only", "joint"] = "two_phase_each_round"
    """Phases: 1 trains H(F(x)), 2 freezes H and minimises Eq. 15; both in each round, phase 1 in the first round only,
    or Eq. 15 throughout (joint, algorithm 1).
    """
    phase1_epochs: Rounds = 1
    """Epochs of phase 1, out of train.epochs (E_1)."""
    use_kd: bool = True
    """Whether the term KD is used (Fig. 3)."""
    use_mi: bool = True
    """Whether the term MI is used (Fig. 3)."""
    use_proto: bool = True
    """Whether the term Proto is used (Fig. 3)."""
    alpha: NonNegativeFloat = 1.0
    """Weight of KD; 0: off."""
    beta: NonNegativeFloat = 0.01
    """Weight of MI; 0: MI and the sampling are off."""
    lambda_proto: NonNegativeFloat = 1.0
    """Weight of Proto (lambda); 0: off."""
    kd_temperature: PositiveFloat = 1.0
    """Temperature of KD."""
    kd_form: Literal["corrected", "printed"] = "corrected"
    """Form of KD: corrected, or as printed (A1)."""
    kl_direction: Literal["teacher_student", "student_teacher"] = "teacher_student"
    """Direction of the divergence in KD (A3)."""
    mi_form: Literal["gaussian", "batch_moment", "l2"] = "gaussian"
    """Form of MI (A7)."""
    mi_stopgrad: bool = False
    """Whether the gradient of MI is kept out of F (A10)."""
    reduction: Reduction = "mean"
    """Reduction over the D dimensions in Eqs 10 and 13: the mean, or the sum as printed (A8)."""
    proto_reduction: Literal["sample_mean", "class_mean"] = "sample_mean"
    """Mean of the term Proto: over images, or over classes (A12)."""
    semantic_start: Literal["random", "identity"] = "random"
    """Initial F^s: random, or identity, which passes z on, so that phase 1 trains the path that predicts."""

    @property
    def has_mi(self) -> bool:
        """Whether the MI term is on."""
        return self.use_mi and self.beta > 0

    @property
    def samples(self) -> bool:
        """Whether codes are drawn from a distribution; else they are points."""
        return self.has_mi and self.mi_form == "gaussian"

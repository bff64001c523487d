"""Parameters of FedICON."""

from typing import Literal

from pydantic import PositiveFloat, model_validator

from fedshift_core.params import Params, Rounds


class FedICONParams(Params):
    """Parameters of FedICON."""

    lie: bool = True
    """Whether local training learns invariance by contrast (Eq. 2); false: cross-entropy end to end on one view (Table
    8).
    """
    gis: bool = True
    """Whether weights travel; false: none ever leaves a node (Table 8)."""
    supervised: bool = True
    """Whether the contrast uses labels (Eq. 2); false: FedICON-us, Eq. 5 (Table 9)."""
    tau: PositiveFloat = 0.07
    """Temperature of Eqs 2 and 5; the paper gives none, 0.07 is SupCon's."""
    projection: Literal["none", "mlp"] = "none"
    """Contrast of the features themselves (none), or behind a two-layer head that travels (mlp)."""
    classifier_training: Literal["federated_personal", "federated", "local"] = "federated_personal"
    """Training of the classifier: federated rounds and then personal epochs, federated rounds only, or personal epochs
    only from the initial classifier (local, section 3.1).
    """
    classifier_epochs: Rounds = 1
    """Local epochs of a classifier round."""
    personal_epochs: Rounds = 5
    """Epochs of the personal classifier, with train.lr."""
    classifier_rounds: Rounds = 10
    """Last rounds of the run, which train the classifier; not used with local and with lie=false."""

    @model_validator(mode="after")
    def _projection_is_trained(self) -> "FedICONParams":
        if self.projection != "none" and not self.lie:
            raise ValueError(f"projection={self.projection} needs lie=true: nothing else trains it")
        return self

    @property
    def personalises(self) -> bool:
        """Whether each node makes the classifier its own."""
        return self.lie and self.classifier_training != "federated"

    @property
    def last_rounds(self) -> int:
        """How many rounds at the end of the run train the classifier."""
        return self.classifier_rounds if self.lie and self.classifier_training != "local" else 0

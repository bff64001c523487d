"""Parameters of StableFDG."""

from pydantic import Field

from fedshift_core.params import Params, Probability


class StableFDGParams(Params):
    """Parameters of StableFDG; values are its code's."""

    shift: Probability = 0.5
    """Probability with which a batch is shifted to another node's style; 0: off, and no style travels."""
    explore: Probability = 0.5
    """Probability, for each of the lower stages, with which styles are explored and mixed; 0: off."""
    exploration_level: float = Field(3.0, ge=0, le=100)
    """How far an added image's style is led away from the mean (alpha); 0: it stays."""
    oversampling: float = Field(1.0, ge=0, le=4)
    """Images that exploration adds to a batch, as a share of it; 0: styles are only mixed."""
    mix_alpha: float = Field(0.1, gt=0, le=100)
    """Of Beta(a, a), from which lambda of the mix is drawn."""
    attention: bool = True
    """Whether features are doubled by what the attention picks."""
    attention_width: int = Field(30, ge=1, le=4096)
    """Width of the attention's queries and keys."""
    least_images: int = Field(5, ge=1, le=10**6)
    """Least number of training images of a node that tells its style."""

    @property
    def active(self) -> bool:
        """Whether anything differs from FedAvg."""
        return self.shift > 0 or self.explore > 0 or self.attention

"""Parameters of the modules. No torch: each command reads them."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from fedshift_core.params import Fraction, Params, Probability

#: Numbers of stages, from 1.
Numbers = tuple[Annotated[int, Field(ge=1)], ...]
#: ``lower``: all before the last, three at most; ``all``; or numbers of stages.
Where = Literal["lower", "all"] | Numbers


def _in_order(stages: str | Numbers) -> str | Numbers:
    """Return different numbers of stages in their order; a word as it is."""
    if isinstance(stages, str):
        return stages
    if not stages or len(set(stages)) != len(stages):
        raise ValueError(f"expected different numbers of stages from 1, found {list(stages)}")
    return tuple(sorted(stages))


class StageParams(Params):
    """Parameters of all modules of this kind."""

    probability: Probability = 0.5
    """Probability with which a map changes; 0: off."""
    stages: Where = "all"
    """Stages whose maps change, counted from 1; all, or all before the last."""

    _different_stages = field_validator("stages")(_in_order)


class FedFAParams(StageParams):
    """The parameters; values are the paper's."""

    probability: Probability = 0.5
    """Probability with which a map is augmented; 0: off."""
    momentum: Fraction = 0.99
    """Momentum alpha of a node's running statistics."""
    sharing: bool = True
    """Whether gamma follows what nodes differ in (paper); false: gamma is 1 and nothing more travels, which is what the
    released code computes.
    """
    stages: Where = "all"
    """Stages whose maps are augmented, counted from 1: all, lower, or a list."""


class MixStyleParams(StageParams):
    """The parameters; values are the paper's."""

    probability: Probability = 0.5
    """Probability with which a map is mixed; 0: off."""
    alpha: float = Field(0.1, gt=0, le=100)
    """Of Beta(alpha, alpha), from which lambda is drawn."""
    mix: Literal["random", "crossdomain"] = "random"
    """Partner of an image in its batch: any (random), or one of another domain (crossdomain)."""
    stages: Where = "lower"
    """Stages whose maps are mixed, counted from 1: all before the last, three at most (lower), all, or a list."""


TestFeature = Literal["fused", "f_plus", "f_minus", "f_star"]

Noise = Literal["logistic_pair", "gumbel_pair"]


class F2DCParams(Params):
    """The modules' parameters; values are the paper's. Both ``use_`` switches off: no modules at all."""

    use_dfd_loss: bool = True
    """Whether the loss L_DFD is used (Table 6)."""
    use_dfc_loss: bool = True
    """Whether A_C and the loss L_DFC are used (Table 6); false: f* = f-, so f~ = f."""
    lambda1: NonNegativeFloat = 0.8
    """Weight of L_DFD; 0: off."""
    lambda2: NonNegativeFloat = 1.0
    """Weight of L_DFC; 0: the loss is off, A_C stays."""
    tau: PositiveFloat = 0.06
    """Temperature of the separability."""
    sigma: PositiveFloat = 0.1
    """Smoothness of the mask (Table 5)."""
    conv_layers: Literal[2, 3] = 2
    """Convolutional layers of A_D and A_C; 3 in the code since June 2026."""
    hidden: int = Field(64, ge=1, le=4096)
    """Inner width of A_D and A_C; 50 in the code since June 2026."""
    insert_after: Literal["last"] | Numbers = "last"
    """Stages after which the modules stand, counted from 1, or the last (Eq. 9)."""
    noise: Noise = "logistic_pair"
    """Noise of the mask: the paper's (logistic_pair), or the code's (gumbel_pair) (A3)."""
    eval_noise: bool = False
    """Whether there is noise at test too (A2)."""
    y_hat_from: Literal["classifier", "aux"] = "classifier"
    """Source of the most confident wrong class: the classifier h(l~), or the auxiliary one m(l-) (A6)."""
    test_feature: TestFeature = "fused"
    """Map that is classified at test: f~ (fused), f+, f-, or f* (Table 7)."""
    local_modules: Literal["local", "aggregate"] = "aggregate"
    """Whether A_D, A_C and m stay on the node (local), or are averaged (aggregate) (A1)."""
    eval_modules: Literal["none", "client_mean", "aggregated"] = "aggregated"
    """Modules that score a model (A1): none (f~ = f), each node's own with scores averaged (client_mean), or the
    averaged ones.
    """

    @property
    def active(self) -> bool:
        """Whether there are any modules."""
        return self.use_dfd_loss or self.use_dfc_loss

    _different_stages = field_validator("insert_after")(_in_order)

    @model_validator(mode="after")
    def _modules_are_where_they_are_needed(self) -> "F2DCParams":
        if self.local_modules == "local" and self.eval_modules == "aggregated":
            raise ValueError(
                "eval_modules=aggregated needs local_modules=aggregate; with local ones there are none, client_mean"
            )
        if self.local_modules == "aggregate" and self.eval_modules == "client_mean":
            raise ValueError(
                "eval_modules=client_mean needs local_modules=local; averaged ones are the same on every node"
            )
        if self.test_feature != "fused" and (self.eval_modules == "none" or not self.active):
            raise ValueError(f"test_feature={self.test_feature} needs modules at test; without them there is only f")
        if self.eval_noise and self.eval_modules == "none":
            raise ValueError("eval_noise=true needs modules at test, but eval_modules=none")
        return self


class WithinDomainsParams(Params):
    """Weights of the terms; 0: the term is off."""

    coral: NonNegativeFloat = 0.0
    """Weight of CORAL (DomainBed: 1)."""
    mmd: NonNegativeFloat = 0.0
    """Weight of MMD with Gaussian kernels (DomainBed: 1)."""
    irm: NonNegativeFloat = 0.0
    """Weight of IRMv1's penalty (DomainBed: 100, after 500 steps at 1, with Adam; with SGD begin at 1)."""
    rex: NonNegativeFloat = 0.0
    """Weight of V-REx (DomainBed: 10, after 500 steps at 1, with Adam; with SGD begin at 1)."""

    @model_validator(mode="after")
    def _one_is_on(self) -> "WithinDomainsParams":
        if not any(self.model_dump().values()):
            raise ValueError("one weight must be above 0: coral, mmd, irm or rex; found none")
        return self

"""``model.projection``: a trainable layer at the end of an encoder, whose output is the feature of every method."""

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fedshift_clients.models.stages import Stages

PART = "projection"  # its name in the encoder


class Projection(nn.Sequential):
    """Maps features (B, D) to (B, E): a linear layer and ReLU.

    Attributes:
        width_in: Width of what it is given (D).
    """

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__(nn.Linear(width_in, width), nn.ReLU())
        self.width_in = width_in

    @property
    def activation(self) -> nn.Module:
        """The layer that gives the feature."""
        return self[1]


if TYPE_CHECKING:
    _Encoder = nn.Module
else:
    _Encoder = object


class Projected(_Encoder):
    """What a projected encoder does in addition to its own class, which comes after this one.

    Attributes:
        projection: Its last layer.
    """

    projection: Projection

    def forward(self, x: Any) -> Tensor:
        """Map images (B, 3, H, W) to features (B, E)."""
        features: Tensor = self.projection(self.unprojected(x))
        return features

    def unprojected(self, x: Any) -> Tensor:
        """Map images (B, 3, H, W) to the features (B, D) that the projection is given."""
        features: Tensor = super().forward(x)
        return features

    def feature_stages(self) -> Stages | None:
        """Return the stages of the encoder; what comes after the last map ends in the projection."""
        own = getattr(super(), "feature_stages", None)
        stages: Stages | None = None if own is None else own()
        if stages is None:
            return None
        rest = stages.rest
        return Stages(stages.maps, stages.widths, lambda h: self.projection(rest(h)))

    def feature_levels(self) -> tuple[nn.Module, ...] | None:
        """Return the activations of the encoder at its levels, and the projection's."""
        own = getattr(super(), "feature_levels", None)
        levels: tuple[nn.Module, ...] | None = None if own is None else own()
        return None if levels is None else (*levels, self.projection.activation)


def put_into(encoder: nn.Module, projection: Projection) -> None:
    """Put a projection at the end of an encoder; the names of the encoder's own weights stay."""
    encoder.add_module(PART, projection)
    if not isinstance(encoder, nn.Sequential):  # there it is the last of the row already
        kind = type(encoder)
        encoder.__class__ = type(f"Projected{kind.__name__}", (Projected, kind), {})


def projection_of(encoder: nn.Module) -> Projection | None:
    """Return an encoder's projection; None if it has none."""
    part = getattr(encoder, PART, None)
    return part if isinstance(part, Projection) else None


def unprojected(encoder: nn.Module, x: Tensor) -> Tensor:
    """Map images (B, 3, H, W), or what is kept of them, to the features (B, D) that a projection is given."""
    if isinstance(encoder, Projected):
        return encoder.unprojected(x)
    assert isinstance(encoder, nn.Sequential)
    features: Tensor = encoder[:-1](x)
    return features

"""A moving average of the merged weights, which is scored and saved (``server.ema``)."""

from pydantic import Field

from fedshift_core.features import Feature, FeatureOptions, Need


class Options(FeatureOptions):
    """The key of the moving average."""

    section = "server"
    ema: float = Field(0.0, ge=0, lt=1)
    """Decay d of a moving average of the global weights, d * average + (1 - d) * weights after each round, which is
    scored and saved in their place while training goes on from the weights; 0: none.
    """


FEATURE = Feature(
    "server-ema",
    "A moving average of the merged weights, scored and saved",
    "server.ema",
    "fedshift_app.features.server_ema.server:MovingAverage",
    place=25,  # around all that changes the weights, and before statistics of those that are scored
    options=Options,
    needs=(Need("one global model"),),
)

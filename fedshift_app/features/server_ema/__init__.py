"""A moving average of the merged weights, which is scored and saved (``server.ema``)."""

from fedshift_core.features import Feature, FeatureOptions, Need
from fedshift_core.params import Fraction


class Options(FeatureOptions):
    """The key of the moving average."""

    section = "server"
    ema: Fraction = 0.0
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

"""What nodes tell once of their images (``statistics``). Pydantic only: the command line reads it without NumPy."""

from typing import Annotated, Literal

from pydantic import Field

from fedshift_core.params import OFF_IS_A_WORD, ConfigModel

BINS = 16  # of a histogram, for each channel
MOST_STYLES = 2000  # images of a node whose statistics are sent one by one


class StatisticsConfig(ConfigModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What each node tells once, before it trains, of the pixels and files of its training images."""

    #: A real node's owner lets them out by ``statistics`` of the policy; else the run goes on without the node's.
    share: Annotated[Literal["off", "server", "nodes"], OFF_IS_A_WORD] = Field(
        "off",
        description="Who learns means, variances, percentiles and histograms of each node's training images: nobody "
        "(off), the server (server), or the server and, of means and variances, all nodes (nodes).",
    )
    least_images: int = Field(
        20,
        ge=2,
        le=10**6,
        description="Least number of training images behind a node's statistics, and behind a size or mode of its "
        "files; a node with fewer tells none.",
    )
    #: A real node's owner lets them out by ``image_statistics`` of the policy.
    image_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of a node's training images of which it tells channel means and deviations one by one, for "
        "a method that mixes styles of other nodes' images; needs share=nodes. 0: of none.",
    )

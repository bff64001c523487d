"""What goes with statistics of the nodes' images (``statistics.share``), and what needs them."""

from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError


def check(config: RunConfig, client_class: Any) -> None:
    """Refuse statistics of single nodes where the server must see none, and a method that lacks them.

    Args:
        config: The configuration.
        client_class: The class of the method's clients.

    Raises:
        ConfigError: With the key and what is allowed.
    """
    share = config.statistics.share
    if share != "off":
        setting = f"statistics.share={share}: a node tells means and histograms of its images"
        if config.privacy.name != "none":
            raise ConfigError(f"{setting} without noise, but privacy.name={config.privacy.name}; allowed is off")
        if config.federation.secure_sums:
            raise ConfigError(
                f"{setting}, but with federation.secure_sums=on the server sees sums alone; allowed is off"
            )
    _check_normalization(config)
    if client_class.uses_statistics and share != "nodes":
        raise ConfigError(
            f"statistics.share={share}: the method {config.method['name']!r} needs means and variances of all nodes' "
            "images; allowed is statistics.share=nodes"
        )


def _check_normalization(config: RunConfig) -> None:
    images, share = config.images, config.statistics.share
    setting = f"images.normalization={images.normalization}"
    if images.normalization != "fedrdn" and images.normalization_draw != "image":
        raise ConfigError(
            f"images.normalization_draw={images.normalization_draw} needs images.normalization=fedrdn, "
            f"found {images.normalization}"
        )
    if images.normalization == "fixed":
        return
    if share != "nodes":
        raise ConfigError(f"{setting} needs means and variances of all nodes: statistics.share=nodes, found {share}")
    if config.model.precompute:
        raise ConfigError(
            f"{setting} changes images that model.precompute=on computes features of once; allowed is "
            "model.precompute=off"
        )

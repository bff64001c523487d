"""What goes with statistics of the nodes' images (``statistics.share``), and what needs them."""

from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.params import Params


def check(config: RunConfig, client_class: Any, params: Params) -> None:
    """Refuse statistics of single nodes where the server must see none, and a method that lacks them.

    Args:
        config: The configuration.
        client_class: The class of the method's clients.
        params: Their parameters.

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
    _check_single_images(config, client_class.needs_image_styles(params))


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


def _check_single_images(config: RunConfig, needed: bool) -> None:
    """Refuse statistics of single images that nothing uses, and a method that lacks them."""
    share, method = config.statistics.image_share, config.method["name"]
    setting = f"statistics.image_share={share:g}"
    if share > 0 and config.statistics.share != "nodes":
        raise ConfigError(f"{setting} needs statistics.share=nodes, found {config.statistics.share}")
    if share > 0 and not needed:
        raise ConfigError(
            f"{setting}: the method {method!r}, as it is configured, uses no statistics of single images, which nodes "
            "would tell for nothing; allowed is 0"
        )
    if needed and share == 0:
        raise ConfigError(
            f"{setting}: the method {method!r} needs channel means and deviations of single images of other nodes; "
            "allowed is statistics.share=nodes statistics.image_share=0.1, for example"
        )

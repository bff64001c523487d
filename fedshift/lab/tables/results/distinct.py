"""Numbers of distinct test images for runs of earlier versions, whose results lack them."""

from collections.abc import Sequence

from fedshift_app.features.figures.show import Figures, Of
from fedshift_app.run.files import ON_ALL

GLOBAL = "global model"


def filled(figures: Figures, evaluated: str, holders: Sequence[str], own_images: bool) -> Figures:
    """Return figures with the number of distinct images of each domain, where it can be computed.

    A global model is scored once on each image. Of personal models each node of a domain scores all its test images;
    those of a domain that no node holds, and of all domains with ``evaluate.personal_on=all_domains``, every node.

    Args:
        figures: As ``results.json`` has them.
        evaluated: Which models were scored.
        holders: The domain of each node.
        own_images: The test images are not the same for all nodes: of a deployment, or drawn for each node.
    """
    domains = {
        name: figure and figure.model_copy(update={"images": _images(figure, name, evaluated, holders, own_images)})
        for name, figure in figures.domains.items()
    }
    return figures.model_copy(update={"domains": domains})


def _images(figure: Of, domain: str, evaluated: str, holders: Sequence[str], own_images: bool) -> int | None:
    if figure.images is not None:
        return figure.images
    if evaluated == GLOBAL:
        return figure.n
    models = len(holders) if evaluated == ON_ALL else holders.count(domain) or len(holders)
    if own_images or not models or figure.n % models:
        return None
    return figure.n // models

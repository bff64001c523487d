"""Distinct test images behind the scores of runs whose results do not say them: those of earlier versions."""

from collections.abc import Sequence

from fedshift_app.run.figures import Figures, Of
from fedshift_app.run.folder import ON_ALL

GLOBAL = "global model"


def filled(figures: Figures, evaluated: str, holders: Sequence[str], own_images: bool) -> Figures:
    """Return figures with the number of distinct images of each domain, where it can be worked out.

    A global model is scored once on each image. Of personal models each node of a domain scores all its test images;
    those of a domain that no node holds, and of all domains with ``evaluate.personal_on=all_domains``, every node.

    Args:
        figures: As ``results.json`` has them.
        evaluated: Which models were scored.
        holders: The domain of each node.
        own_images: The test images are not the same for all nodes: of a deployment, or drawn for each node.
    """
    domains = {
        name: one and one.model_copy(update={"images": _images(one, name, evaluated, holders, own_images)})
        for name, one in figures.domains.items()
    }
    return figures.model_copy(update={"domains": domains})


def _images(one: Of, domain: str, evaluated: str, holders: Sequence[str], own_images: bool) -> int | None:
    if one.images is not None:
        return one.images
    if evaluated == GLOBAL:
        return one.n
    models = len(holders) if evaluated == ON_ALL else holders.count(domain) or len(holders)
    if own_images or not models or one.n % models:
        return None
    return one.n // models

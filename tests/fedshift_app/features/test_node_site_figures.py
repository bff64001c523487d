"""Figures of a site on the node: of whole test sets, also where nodes share one out, with patients, in its log."""

from typing import Any

import numpy as np
import pytest
import torch
from support import fedavg, image_set, scored

from fedshift_app.features.site_figures import numbers as site_numbers
from fedshift_app.features.site_figures.node import Watching
from fedshift_app.features.site_figures.numbers import Scored
from fedshift_clients.adapt.base import Adaptation
from fedshift_core.arrays import Arrays
from fedshift_core.params import Params
from fedshift_core.wire.names import ASK_SITE_FIGURES, DOMAINS, DRAWN, FIGURES, SITE_FIGURES, STARTS, STOPS
from fedshift_core.wire.site_figures import SiteNumbers, from_arrays
from fedshift_datasets.base import ImageSet

ASK = {ASK_SITE_FIGURES: True}
ALL = {DOMAINS: ["a"], DRAWN: [11], STARTS: [0], STOPS: [11]}


def with_groups(images: ImageSet, groups: list[str]) -> ImageSet:
    return ImageSet(images.x, images.y, groups=np.array(groups))


def sent(made: Any, request: dict[str, Any], domain: str = "a") -> SiteNumbers:
    return from_arrays(scored(made, request | ASK).records[SITE_FIGURES], domain)


def slow(made: Any, images: ImageSet, domain: str = "a") -> Arrays:
    """Return the figures of the model's own logits, image by image."""
    made.model.eval()
    with torch.no_grad():
        logits = torch.cat([made.classify(x) for x, _ in made.plain_batches(images, size=1)]).double()
    scored = Scored(logits.softmax(dim=1).numpy(), logits.argmax(dim=1).numpy(), images.y, images.groups)
    return site_numbers.figures(scored).arrays(domain)


def close(mine: Arrays, other: Arrays) -> bool:
    return mine.keys() == other.keys() and all(np.allclose(mine[name], other[name], atol=1e-5) for name in mine)


def test_a_client_works_out_figures_only_where_it_is_asked_and_its_scores_stay() -> None:
    made = fedavg(test_set=lambda domain: image_set(11))
    plain, result = scored(made, ALL), scored(made, ALL | ASK | {FIGURES: True})
    assert plain.records == scored(made, ALL | {STARTS: [4]} | ASK).records == {}  # who has the first part works it out
    assert result.metrics == plain.metrics and result.records.keys() == {SITE_FIGURES, "counts"}
    assert close(result.records[SITE_FIGURES], slow(made, image_set(11)))
    assert close(scored(made, ALL | {STOPS: [4]} | ASK).records[SITE_FIGURES], result.records[SITE_FIGURES])


class Backwards(Adaptation[Params]):
    """Scores the images from the last to the first, in two parts."""

    def adapt(self, client: Any, x: Any) -> Any:
        places = np.arange(len(x))[::-1]
        yield places[:4]
        yield places[4:]


def test_patients_go_with_their_images_in_whatever_order_they_are_scored() -> None:
    groups = ["p"] * 4 + ["q"] * 5 + ["", ""]
    images = with_groups(image_set(11), groups)
    plain, adapted = (fedavg(test_set=lambda domain: images, adaptation=each) for each in (None, Backwards(Params())))
    first, second = sent(plain, ALL), sent(adapted, ALL)
    assert first.patients == second.patients == 4
    assert close(first.arrays("a"), slow(plain, images))
    assert not close(first.arrays("a"), slow(plain, with_groups(image_set(11), groups[::-1])))
    seen: list[Any] = []
    total = Watching.total
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watching, "total", lambda self: seen.append(total(self)) or seen[-1])
        sent(adapted, ALL)
    assert [group for part in seen for group in part.scored.groups.tolist()] == groups[::-1]

"""Figures of a site on the node: of whole test sets, also where nodes share one out, with patients, in its log."""

import logging
from dataclasses import replace
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
    assert plain.records == {}
    assert result.metrics == plain.metrics and result.records.keys() == {SITE_FIGURES, "counts"}
    assert close(result.records[SITE_FIGURES], slow(made, image_set(11)))
    assert from_arrays(result.records[SITE_FIGURES], "a").overall[0, 0] * 11 == result.metrics["correct/a"]
    assert scored(made, ALL).records == {}


def test_the_node_with_the_first_part_of_a_test_set_works_out_those_of_the_whole() -> None:
    made = fedavg(test_set=lambda domain: image_set(11))
    whole = sent(made, ALL)
    first = sent(made, ALL | {STOPS: [4]})
    assert close(first.arrays("a"), whole.arrays("a"))
    assert scored(made, ALL | {STARTS: [4]} | ASK).records == {}
    both = {DOMAINS: ["a", "b"], DRAWN: [11, 11], STARTS: [0, 0], STOPS: [11, 6]}
    figures = scored(made, both | ASK).records[SITE_FIGURES]
    assert {name.partition("/")[2] for name in figures} == {"a", "b"}
    assert from_arrays(figures, "b").images == 11


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
    seen: list[Any] = []
    total = Watching.total
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watching, "total", lambda self: seen.append(total(self)) or seen[-1])
        sent(adapted, ALL)
    assert [group for part in seen for group in part.scored.groups.tolist()] == groups[::-1]
    assert sent(fedavg(test_set=lambda domain: image_set(11)), ALL).patients == -1


def test_a_policy_hides_figures_of_few_images_and_the_log_shows_what_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """A real node, which scores all its images, says in its log what it sends; a simulated one says nothing."""
    images = image_set(14, classes=3)
    chosen = images.select(np.flatnonzero((images.y < 2) | (np.arange(14) < 6)))  # of class 2 two images
    made = fedavg(test_set=lambda domain: chosen)
    made.setup = replace(made.setup, least_images=3)
    made.class_names = ("bar", "cross", "disc", "none")
    with caplog.at_level(logging.INFO, "fedshift"):
        numbers = sent(made, {DOMAINS: ["a"], DRAWN: [len(chosen)]})
    assert numbers.of_class.tolist() == [-1, 5, -1, -1]  # two of disc follow from the total, but for those of bar
    first, *others = [record.getMessage() for record in caplog.records]
    assert f"{len(chosen)} test images" in first
    assert [("too few" in line) for line in others] == [True, False, True, True]
    caplog.clear()
    with caplog.at_level(logging.INFO, "fedshift"):
        sent(made, {DOMAINS: ["a"], DRAWN: [len(chosen)], STARTS: [0], STOPS: [len(chosen)]})
    assert caplog.records == []

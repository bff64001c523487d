"""Figures of sites on the server: taken whole or refused with a reason; over all sites; how class mixes differ."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from refusals import refused
from support import fedavg, image_set, scored, server_feature
from support import node as node_of

from fedshift_app.features.site_figures import numbers as site_numbers
from fedshift_app.features.site_figures import server as site_figures
from fedshift_app.features.site_figures import show as site_section
from fedshift_app.features.site_figures.node import Watching
from fedshift_app.features.site_figures.numbers import Scored, figures
from fedshift_app.features.site_figures.show import POOLED, Sites
from fedshift_clients.adapt.base import Adaptation
from fedshift_core.arrays import Arrays
from fedshift_core.limits import Refused
from fedshift_core.params import Params
from fedshift_core.wire.names import ASK_SITE_FIGURES, DOMAINS, DRAWN, FIGURES, SITE_FIGURES, STARTS, STOPS
from fedshift_core.wire.records import encode
from fedshift_core.wire.scores import DomainScore, Part
from fedshift_core.wire.site_figures import UNKNOWN, SiteNumbers, from_arrays
from fedshift_datasets.base import ImageSet
from fedshift_strategies.federation.evaluation import Answer

C, N = 3, 30


def scores(n: int = N, seed: int = 0, mix: tuple[float, ...] | None = None) -> Scored:
    rng = np.random.default_rng(seed)
    y = rng.choice(C, n, p=mix)
    p = rng.dirichlet(np.ones(C), n)
    p[np.arange(n), y] += 0.5
    p /= p.sum(axis=1, keepdims=True)
    return Scored(p, p.argmax(axis=1), y, None)


def honest(n: int = N, seed: int = 0, least: int = 1, mix: tuple[float, ...] | None = None) -> SiteNumbers:
    return figures(scores(n, seed, mix), least)


def right(numbers: SiteNumbers) -> float:
    return float(round(numbers.overall[0, 0] * numbers.images))


def answers(numbers: SiteNumbers, start: int = 0, stop: int = N) -> list[Answer]:
    score = DomainScore(right(numbers), stop - start, 1.0)
    return [Answer(node_of(0, domain="a"), Part("a", N, start, stop), score)]


def read(arrays: Arrays, given: list[Answer]) -> dict[str, SiteNumbers]:
    return server_feature(site_figures.SiteFigures, num_classes=C).numbers(
        RecordDict({"site-figures": encode(arrays)}), given
    )


@pytest.mark.parametrize(
    ("name", "place", "to", "named"),
    [
        ("images/a", 0, 31, "31 images"),
        ("images/a", 1, 31, "31 patients"),
        ("images/a", 1, 0, "0 patients"),
        ("images/a", 2, 29, "a"),
        ("images/a", 3, -2, "a"),
        ("images/a", 2, UNKNOWN, "class"),
        ("numbers/a", (0, 0), 0.0, "accuracy"),
        ("numbers/a", (2, 2), 1.5, "auroc"),
        ("numbers/a", (4, 1), -0.1, "brier"),
        ("numbers/a", (5, 1), math.nan, "ece"),
        ("numbers/a", (13, 1), 1.0, "auroc"),
        ("numbers/a", (6, 0), 0.5001, "sensitivity"),
        ("numbers/a", (10, 0), 0.7001, "specificity"),
        ("numbers/a", (0, 1), 0.6, "narrower"),
        ("numbers/a", (6, 2), 0.8, "narrower"),
        ("marks/a", 7, 9, "sensitivity"),
        ("marks/a", 4, 1, "brier"),
    ],
)
def test_a_number_that_cannot_be_is_refused(name: str, place: Any, to: float, named: str) -> None:
    made = honest()
    arrays = made.arrays("a")
    arrays[name] = arrays[name].copy()
    arrays[name][place] = to
    with refused(Refused, named):
        read(arrays, answers(made))


def test_figures_that_do_not_go_with_the_score_or_with_each_other_are_refused() -> None:
    made = honest()
    given, arrays = answers(made), made.arrays("a")
    other = [Answer(given[0].node, given[0].part, DomainScore(right(made) - 1, N, 1.0))]
    hidden = {name: array.copy() for name, array in arrays.items()}
    hidden["marks/a"][1], hidden["numbers/a"][1] = 1, 0
    for record, answered, named in (
        (encode(arrays | {"numbers/a": arrays["numbers/a"][:-1]}), given, "(17"),  # names and types: test_figures.py
        (encode(arrays), other, "score"),
        (encode(hidden), given, "balanced_accuracy"),
        (encode(arrays), answers(made, start=10, stop=30), "unknown"),  # of a part that is not the first
    ):
        with refused(Refused, named):
            server_feature(site_figures.SiteFigures, num_classes=C).numbers(
                RecordDict({"site-figures": record}), answered
            )
    assert read(arrays, answers(made, stop=10))  # of the first part, of the whole


# --- when nodes are asked ------------------------------------------------------------------------------


# --- over all sites ------------------------------------------------------------------------------------


def content(sites: list[SiteNumbers], domains: str = "abcd") -> Sites:
    made = site_section.content([(i, domains[i], each) for i, each in enumerate(sites)], 7, ("x", "y", "z"))
    return Sites.model_validate(made)


def test_over_all_sites_proportions_and_brier_are_those_of_all_images_together() -> None:
    sets = [scores(n, seed) for seed, n in enumerate((20, 50, 31))]
    overall = content([figures(each) for each in sets]).overall
    together = figures(sets[0] + sets[1] + sets[2])
    assert overall is not None and overall.images == 101
    assert list(overall.images_of_class) == together.of_class.tolist()
    for row, name in ((0, "accuracy"), (1, "balanced_accuracy"), (4, "brier")):
        made = overall.figure(name)
        assert (made.value, made.how) == (pytest.approx(together.overall[row, 0]), POOLED)
    assert [overall.accuracy.low, overall.accuracy.high] == pytest.approx(together.overall[0, 1:].tolist(), abs=1e-6)
    for row, name in enumerate(("sensitivity", "specificity")):
        of_class = overall.per_class[name]
        assert of_class.value == pytest.approx(together.by_class[row, :, 0].tolist())
        assert of_class.low == pytest.approx(together.by_class[row, :, 1].tolist(), abs=1e-6)


def test_what_a_site_hides_is_null_with_a_mark_and_left_out_of_the_others() -> None:
    few, many = honest(20, 1, least=8, mix=(0.7, 0.2, 0.1)), honest(60, 2)
    made = content([few, many])
    first, overall = made.sites[0], made.overall
    hidden = np.flatnonzero(few.of_class == UNKNOWN).tolist()
    assert hidden and overall is not None
    for k in hidden:
        figure = first.per_class["sensitivity"].at(k)
        assert (figure.value, figure.low, figure.high, figure.mark) == (None, None, None, "too few")
        assert (first.images_of_class[k], overall.images_of_class[k]) == (None, many.of_class[k])
        assert overall.per_class["sensitivity"].value[k] == many.by_class[0, k, 0]
    assert first.balanced_accuracy.classes == C - len(hidden)
    none = honest(20, 1, least=40)
    made = content([none, many])
    assert made.sites[0].accuracy.mark == "too few"
    assert made.overall is not None and made.overall.accuracy.how == f"{POOLED}, 1 of 2 sites"
    assert content([none] * 2).overall.accuracy.value is None  # type: ignore[union-attr]


# --- class mixes ---------------------------------------------------------------------------------------


# --- on the node --------------------------------------------------------------------------------------

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
    assert [group for part in seen for group in part.rows.groups.tolist()] == groups[::-1]

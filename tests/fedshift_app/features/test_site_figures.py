"""Figures of sites on the server: taken whole or refused with a reason; over all sites; how class mixes differ."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from support import node as node_of
from support import phase, server_feature

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import EvaluateConfig
from fedshift_app.features.site_figures import server as site_figures
from fedshift_app.features.site_figures import show as site_section
from fedshift_app.features.site_figures.numbers import Scored, figures
from fedshift_app.features.site_figures.show import AVERAGED, MIX_BOUND, POOLED, Sites
from fedshift_core.arrays import Arrays
from fedshift_core.intervals import pooled
from fedshift_core.limits import Refused
from fedshift_core.shown import History, Named
from fedshift_core.wire.records import encode
from fedshift_core.wire.scores import DomainScore, Part
from fedshift_core.wire.site_figures import KNOWN, UNKNOWN, SiteNumbers
from fedshift_strategies.features.base import Scoring
from fedshift_strategies.features.catalog import Around
from fedshift_strategies.federation.context import RoundResult
from fedshift_strategies.federation.evaluation import Answer, Evaluation

C, N = 3, 30


def scores(n: int = N, seed: int = 0, classes: int = C, mix: tuple[float, ...] | None = None) -> Scored:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, n, p=mix)
    p = rng.dirichlet(np.ones(classes), n)
    p[np.arange(n), y] += 0.5
    p /= p.sum(axis=1, keepdims=True)
    return Scored(p, p.argmax(axis=1), y, None)


def honest(n: int = N, seed: int = 0, least: int = 1, mix: tuple[float, ...] | None = None) -> SiteNumbers:
    return figures(scores(n, seed, mix=mix), least)


def right(numbers: SiteNumbers) -> float:
    return float(round(numbers.overall[0, 0] * numbers.images))


def answers(numbers: SiteNumbers, start: int = 0, stop: int = N, drawn: int = N) -> list[Answer]:
    score = DomainScore(right(numbers), stop - start, 1.0)
    return [Answer(node_of(0, domain="a"), Part("a", drawn, start, stop), score)]


def read(arrays: Arrays, given: list[Answer]) -> dict[str, SiteNumbers]:
    return site_figures.read(RecordDict({"site-figures": encode(arrays)}), given, C)


@pytest.mark.parametrize("least", [1, 5, 12, 40])
def test_what_a_node_sends_is_taken_as_it_is(least: int) -> None:
    made = honest(least=least)
    taken = read(made.arrays("a"), answers(made))["a"]
    assert all(np.array_equal(mine, its) for mine, its in zip(vars(taken).values(), vars(made).values(), strict=True))
    assert site_figures.read(RecordDict(), answers(made), C) == {}


Lie = Callable[[Arrays], Any]


def put(name: str, *place: int, to: float) -> Lie:
    def lie(arrays: Arrays) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][place] = to

    return lie


LIES: list[tuple[Lie, str]] = [
    (lambda arrays: arrays.pop("marks/a"), "site-figures: 'marks/a' is missing"),
    (lambda arrays: arrays.update({"numbers/z": arrays["numbers/a"]}), "site-figures: 'numbers/z' is unknown"),
    (lambda arrays: arrays.update({"\x1b[2J": arrays["numbers/a"]}), "site-figures: ' [2J' is unknown"),
    (lambda arrays: arrays.update({"numbers/a": arrays["numbers/a"][:-1]}), "site-figures: numbers/a has shape (17"),
    (lambda arrays: arrays.update({"marks/a": arrays["marks/a"].astype(int)}), "site-figures: marks/a has shape"),
    (put("images/a", 0, to=31), "the metrics of a are of 31 images, asked were 30"),
    (put("images/a", 1, to=31), "the metrics of a are of 31 patients with 30 images"),
    (put("images/a", 1, to=0), "the metrics of a are of 0 patients"),
    (put("images/a", 2, to=29), "the metrics of a are of"),
    (put("images/a", 3, to=-2), "the metrics of a are of"),
    (put("images/a", 2, to=UNKNOWN), "the metrics of a have a number of a class whose images they do not tell"),
    (put("numbers/a", 0, 0, to=0.0), "accuracy of a is not in its interval"),
    (put("numbers/a", 2, 2, to=1.5), "auroc of a is not between 0 and 1"),
    (put("numbers/a", 4, 1, to=-0.1), "brier of a is not between 0 and 1"),
    (put("numbers/a", 5, 1, to=math.nan), "ece of a is not between 0 and 1"),
    (put("numbers/a", 13, 1, to=1.0), "auroc of a is not in its interval"),
    (put("numbers/a", 6, 0, to=0.5001), "the metrics of a have a sensitivity that no number of right images gives"),
    (put("numbers/a", 10, 0, to=0.7001), "the metrics of a have a specificity that no number of right images gives"),
    (put("numbers/a", 0, 1, to=0.6), "the metrics of a: accuracy has an interval that is narrower than that of"),
    (put("numbers/a", 6, 2, to=0.8), "the metrics of a: sensitivity has an interval that is narrower than that of"),
    (put("marks/a", 7, to=9), "sensitivity of a has an unknown mark"),
    (put("marks/a", 4, to=1), "brier of a has a number though it is marked"),
]  # fmt: skip


@pytest.mark.parametrize(("lie", "reason"), LIES, ids=[reason for _, reason in LIES])
def test_anything_else_is_refused(lie: Lie, reason: str) -> None:
    made = honest()
    arrays = made.arrays("a")
    lie(arrays)
    with pytest.raises(Refused) as caught:
        read(arrays, answers(made))
    assert str(caught.value).startswith(reason)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_figures_that_do_not_go_with_the_score_or_with_each_other_are_refused() -> None:
    made = honest()
    given = answers(made)
    other = [Answer(given[0].node, given[0].part, DomainScore(right(made) - 1, N, 1.0))]
    with pytest.raises(Refused, match=r"the metrics of a say that 0\.\d+ of 30 are right, its score says"):
        read(made.arrays("a"), other)
    with pytest.raises(Refused, match="is unknown"):  # of a part that is not the first
        read(made.arrays("a"), answers(made, start=10, stop=30))
    assert read(made.arrays("a"), answers(made, stop=10))  # of the first part, of the whole
    hidden = made.arrays("a")
    hidden["marks/a"] = hidden["marks/a"].copy()
    hidden["marks/a"][1], hidden["numbers/a"] = 1, hidden["numbers/a"].copy()
    hidden["numbers/a"][1] = 0
    with pytest.raises(Refused, match="balanced_accuracy does not go with the metrics of classes"):
        read(hidden, given)
    with pytest.raises(Refused, match="is not one of arrays"):
        site_figures.read(RecordDict({"site-figures": ConfigRecord({"a": 1})}), given, C)


# --- when nodes are asked ------------------------------------------------------------------------------


def asked(server_round: int, *, share: float = 1.0, **more: Any) -> dict[str, Any]:
    feature = server_feature(site_figures.SiteFigures, domains=("a",), num_classes=C, **more)
    images = N if share == 1 else 4 * N  # of so few that a sample would leave, all are scored
    nodes = [node_of(0, (5,), "a", images, shared_test=False)]
    scoring = phase(Scoring, nodes, server_round=server_round)
    around = Around([(feature.name, feature.on_scores(scoring))])
    scoring.evaluation = Evaluation(("a",), nodes, personal=False, share=share, batch=N // 2, extras=around.asked)
    return around.options(nodes[0])


def test_nodes_are_asked_in_the_last_round_or_in_each_that_may_be_kept() -> None:
    ask = {"site-figures": True}
    assert asked(3, rounds=3) == ask and asked(2, rounds=3) == {}
    assert asked(2, rounds=3, keep="best-validation") == asked(2, rounds=3, evaluate=EvaluateConfig(patience=1)) == ask
    assert asked(3, rounds=3, evaluate=EvaluateConfig(site_figures=False)) == {}
    assert asked(3, rounds=3, share=0.5) == {}


# --- over all sites ------------------------------------------------------------------------------------


def content(sites: list[SiteNumbers], domains: str = "abcd", classes: tuple[str, ...] = ("x", "y", "z")) -> Sites:
    made = site_section.content([(i, domains[i], each) for i, each in enumerate(sites)], 7, classes)
    return Sites.model_validate(made)


def test_over_all_sites_proportions_and_brier_are_those_of_all_images_together() -> None:
    sets = [scores(n, seed) for seed, n in enumerate((20, 50, 31))]
    made = content([figures(each) for each in sets])
    together = figures(sets[0] + sets[1] + sets[2])
    overall = made.overall
    assert overall is not None and overall.images == 101
    accuracy = overall.accuracy
    assert accuracy.value == together.overall[0, 0]
    assert [accuracy.low, accuracy.high] == pytest.approx(together.overall[0, 1:].tolist(), abs=1e-6)
    assert overall.balanced_accuracy.value == pytest.approx(together.overall[1, 0])
    assert overall.brier.value == pytest.approx(together.overall[4, 0])
    assert [overall.figure(name).how for name in ("accuracy", "balanced_accuracy", "brier")] == [POOLED] * 3
    for row, name in enumerate(("sensitivity", "specificity")):
        assert overall.per_class[name].value == pytest.approx(together.by_class[row, :, 0].tolist())
        assert overall.per_class[name].low == pytest.approx(together.by_class[row, :, 1].tolist(), abs=1e-6)
    assert list(overall.images_of_class) == together.of_class.tolist()


def test_over_all_sites_ranks_are_a_mean_that_is_called_so() -> None:
    sites = [honest(20, 1), honest(60, 2)]
    made = content(sites).overall
    assert made is not None and made.auroc.how == made.auprc.how == made.ece.how == AVERAGED
    triples = np.array([site.overall[2] for site in sites])
    assert [made.auroc.value, made.auroc.low, made.auroc.high] == pooled(triples, np.array([0.25, 0.75])).tolist()


def test_what_a_site_hides_is_null_with_a_mark_and_left_out_of_the_others() -> None:
    few, many = honest(20, 1, least=8, mix=(0.7, 0.2, 0.1)), honest(60, 2)
    made = content([few, many])
    hidden = [k for k in range(C) if few.of_class[k] == UNKNOWN]
    assert hidden
    first = made.sites[0]
    for k in hidden:
        figure = first.per_class["sensitivity"].at(k)
        assert (figure.value, figure.low, figure.high, figure.mark) == (None, None, None, "too few")
        assert first.images_of_class[k] is None
        assert made.overall is not None
        assert made.overall.images_of_class[k] == many.of_class[k]
        assert made.overall.per_class["sensitivity"].value[k] == many.by_class[0, k, 0]
    assert first.balanced_accuracy.classes == C - len(hidden)
    assert content([honest(20, 1, least=19), many]).overall.balanced_accuracy.how == (  # type: ignore[union-attr]
        f"{POOLED}, 1 of 2 sites"
    )
    none = content([honest(20, 1, least=40), many])
    assert none.sites[0].accuracy.mark == "too few" and none.overall is not None
    assert none.overall.accuracy.how == f"{POOLED}, 1 of 2 sites"
    assert content([honest(20, 1, least=40)] * 2).overall.accuracy.value is None  # type: ignore[union-attr]


def test_sites_are_called_by_their_domain_or_by_their_node_too() -> None:
    made = content([honest(), honest(seed=1), honest(seed=2)], "aab")
    assert [site.site for site in made.sites] == ["a (node 0)", "a (node 1)", "b"]
    assert content([honest()]).overall is None


# --- class mixes ---------------------------------------------------------------------------------------


def of_classes(*images: int) -> SiteNumbers:
    empty: Any = np.zeros(0)
    total = sum(abs(number) for number in images)  # a negative number is not shown
    shown = np.array([number if number > 0 else UNKNOWN for number in images])
    return SiteNumbers(total, UNKNOWN, shown, empty, empty, empty, empty)


def mix_of(*sites: SiteNumbers) -> site_section.Mix:
    named = [Named("abcdefgh"[i], i, "abcdefgh"[i], site) for i, site in enumerate(sites)]
    return site_section.mix(named, ("x", "y", "z"))


@given(st.lists(st.lists(st.integers(-30, 30), min_size=3, max_size=3), min_size=2, max_size=6))
def test_the_distance_of_class_mixes_is_the_largest_total_variation(rows: list[list[int]]) -> None:
    """By the slow definition: half the sum of the differences, classes that one of both does not tell as one."""
    slow = 0.0
    for i, p in enumerate(rows):
        for q in rows[:i]:
            if not (any(p) and any(q)):
                continue
            n, m = sum(map(abs, p)), sum(map(abs, q))
            shown = [(a / n, b / m) for a, b in zip(p, q, strict=True) if a > 0 and b > 0]
            rest = abs((1 - sum(a for a, _ in shown)) - (1 - sum(b for _, b in shown)))
            slow = max(slow, (sum(abs(a - b) for a, b in shown) + rest) / 2)
    made = mix_of(*(of_classes(*row) for row in rows))
    assert made.distance == pytest.approx(slow, abs=1e-12)


def test_a_warning_says_where_class_mixes_differ() -> None:
    alike = mix_of(of_classes(10, 10, 10), of_classes(20, 19, 21))
    assert alike.warning == "" and alike.distance is not None and alike.distance < MIX_BOUND
    far = mix_of(of_classes(10, 10, 10), of_classes(10, 11, 9), of_classes(28, 1, 1))
    assert far.warning.startswith("class mixes of sites differ (0.60 between a and c, above 0.2): ")
    lacking = mix_of(of_classes(10, 10, 0), of_classes(9, 9, 2))
    assert "a has no image, or too few, of z" in lacking.warning and lacking.distance == pytest.approx(0.1)
    assert mix_of(of_classes(10, 10, 0), of_classes(9, 11, 0)).warning == ""  # both lack it
    assert mix_of(of_classes(10, 0, 0)).distance is None
    hidden = mix_of(of_classes(-4, -4, -4), of_classes(9, 9, 9), of_classes(10, 10, 10))
    assert hidden.warning == (
        "the class mix of a is not known, as no class there has enough images to be shown: means over classes are of "
        "the other sites"
    )
    assert mix_of(of_classes(-4, -4, -4), of_classes(-5, -5, -5)).warning == ""
    both = mix_of(of_classes(-4, -4, -4), of_classes(9, 9, 0), of_classes(10, 10, 10)).warning
    assert both.startswith("the class mix of a is not known") and "; class mixes of sites differ (" in both
    assert "b has no image, or too few, of z" in both and "a has no" not in both
    many = mix_of(*(of_classes(*np.roll((9, 9, 0), i).tolist()) for i in range(5)))
    assert " and 2 more): " in many.warning


def test_a_run_without_figures_has_no_section() -> None:
    def section(result: RoundResult) -> Any:
        return site_section.show(History(resolve({}), (result,), classes=("x", "y", "z"))).section

    assert section(RoundResult(3)) is None
    given = site_figures.OfNode(node_of(4, domain="a"), "a", honest())
    made = section(RoundResult(3, passing={"site_figures": [given]}))
    assert made is not None and made["round"] == 3 and made["sites"][0]["node"] == 4
    assert (honest().overall_marks == KNOWN).all() and made["sites"][0]["accuracy"]["value"] is not None

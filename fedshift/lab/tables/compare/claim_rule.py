"""The rule of ``fedshift claims``: what counts as a test of a printed gain, and its verdict.

docs/guide/compare.md (Claims) says when each part of it was written down, and which kept runs are older.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedshift.lab.tables.compare.rows import PaperRow, Row
from fedshift.lab.tables.papers.deviations import SIZE, Altered
from fedshift.lab.tables.results.statistics import LEAST_FOR_TEST, Paired, corrected
from fedshift_app.config import registry

SIMILAR, OTHER_SIZE = "same sign, similar size", "same sign, other size"
NO_DIFFERENCE, OPPOSITE = "no difference seen", "opposite"
NOT_TESTED, NOT_COMPARABLE = "not tested", "not comparable"
#: The verdicts, in the order in which notes count them.
VERDICTS = (SIMILAR, OTHER_SIZE, NO_DIFFERENCE, OPPOSITE, NOT_TESTED, NOT_COMPARABLE)
ON_PRETRAINED = "on pretrained features"
LEVEL = 0.05  # of p
LEAST_DOMAINS = 2
#: Settings that define another task, whatever the network: the corruption of the test images.
OTHER_IMAGES = ("shift.name", "shift.corruption", "shift.severity")
#: The same where the features are not pretrained.
ANOTHER_TASK = ("model.name", *OTHER_IMAGES)
#: Settings that say that a network started from pretrained weights.
DIGEST, DOWNLOAD = "model.weights_sha256", "model.download"
NO_WEIGHTS = ("", "false", "none")  # of the two, as a deviation has them
PRECISION, PAPER_PRECISION = "train.precision", "float32"
UNRECORDED = "arithmetic not recorded"
SIMILAR_WITHIN = 2.0  # factor between two gains of similar size
RULE = (
    "gain: accuracy less FedAvg's in the same table, mean over the domains that table and runs have",
    f"{NOT_COMPARABLE}: no seed that the row and FedAvg share, fewer than {LEAST_DOMAINS} common domains, another "
    "network or other corruptions than the paper's, an approximation, a label that is a reading, or no gain printed",
    f"{NOT_TESTED}: fewer than {LEAST_FOR_TEST} common seeds",
    f"{NO_DIFFERENCE}: p >= {LEVEL} of a two-sided paired t-test over seeds, which does not refute the gain: few seeds "
    "have little power; where all seeds differ by the same, to which there is no test, the sign decides",
    f"similar size: between half and twice the printed gain, as the mean has it: an interval of {LEAST_FOR_TEST} seeds "
    "is so wide that noise would make sizes similar",
    "p (Holm): corrected for all rows that were tested; verdicts go by p, each for its row alone",
)
PRETRAINED_RULE = (
    f"{ON_PRETRAINED} (of runs that started from pretrained weights where the paper starts from none) any network "
    "compares, and each printed gain has one row, of the runs with the most common seeds, then the fewest other values",
)


@dataclass(frozen=True)
class Claim:
    """A printed gain over FedAvg and ours.

    Attributes:
        table: Id of the printed table.
        row: Its label in that table.
        own: Whether the paper proposes the method; otherwise it is a baseline of the paper.
        printed_gain: The printed gain in points.
        our_gain: Our gain, seed by seed.
        domains: Over which both are means.
        all_domains: Whether these are all domains that the table prints.
        runs: The folders of our runs and FedAvg's, and our row.
        differ: How many values of our runs are not the paper's.
        left_open: How many others, which the paper leaves open, are not our reading of it.
        verdict: One of ``VERDICTS``.
        why: Reason why the row is not comparable; empty otherwise.
        unlike: Image size, pretrained weights and arithmetic that are not the paper's, each in words.
        pretrained: Whether our runs started from pretrained weights where the paper's did not.
        rounds: The rounds that our accuracies are means over, in words, where they are not the last five.
    """

    table: str
    row: str
    own: bool
    printed_gain: float
    our_gain: Paired
    domains: tuple[str, ...]
    all_domains: bool
    runs: str
    differ: int
    left_open: int
    verdict: str
    why: str
    unlike: tuple[str, ...]
    pretrained: bool
    rounds: str

    @property
    def verdict_line(self) -> str:
        """The verdict, with the reason why a row is not comparable."""
        return f"{self.verdict}: {self.why}" if self.why else self.verdict

    @property
    def tested(self) -> bool:
        """Whether its verdict is that of a test."""
        return self.verdict not in (NOT_TESTED, NOT_COMPARABLE)


def is_pretrained(row: Row, printed: PaperRow) -> bool:
    """Return whether the runs of a row started from pretrained weights where the paper's started from none."""
    ours, papers = _started(row, _deviations(printed))
    return ours and not papers


def unlike(row: Row, printed: PaperRow) -> tuple[str, ...]:
    """Return image size, pretrained weights and arithmetic of our runs that are not the paper's, each in words."""
    deviations = _deviations(printed)
    texts = []
    if SIZE in deviations:
        size = deviations[SIZE]
        texts.append(f"{' and '.join(size.ours)} pixels ({_whose(size)}{size.paper})")
    ours, papers = _started(row, deviations)
    weights = deviations.get(DIGEST) or deviations.get(DOWNLOAD)
    if weights and ours and papers:
        texts.append("other pretrained weights")
    elif weights and ours != papers:
        words = {True: "pretrained", False: "from scratch"}
        texts.append(f"{words[ours]} ({_whose(weights)}{words[papers]})")
    stated = deviations.get(PRECISION)
    theirs = str(row.runs[0].config.get(PRECISION)) if stated is None else stated.paper
    theirs = PAPER_PRECISION if theirs == "auto" else theirs  # no paper names its arithmetic
    known = {_format(run.config, run.surroundings) for run in row.runs}
    if known == {""}:
        texts.append(UNRECORDED)
    elif known != {theirs}:
        formats = " and ".join(sorted(number_format or "not recorded" for number_format in known))
        texts.append(f"{formats} ({'' if stated is None else _whose(stated)}{theirs})")
    return tuple(texts)


def verdict(gain: float, our_gain: Paired, row: Row, printed: PaperRow, domains: int) -> tuple[str, str]:
    """Return the verdict on a row by ``RULE``, and the reason if it is not comparable.

    Args:
        gain: The printed gain.
        our_gain: Our gain. Its size is similar to the printed one between half and twice it.
        row: Our row.
        printed: The printed row.
        domains: Over how many domains both gains are means.
    """
    task = OTHER_IMAGES if is_pretrained(row, printed) else ANOTHER_TASK
    other = [deviation.text for deviation in (*printed.altered, *printed.readings) if deviation.key in task]
    reasons = (
        (not our_gain.seeds, "no common seed"),
        (domains < LEAST_DOMAINS, f"{domains} common domain"),
        (bool(other), ", ".join(other)),
        (bool(registry.approximation_line(row.method)), "an approximation"),
        (not printed.certain, "the label is a reading"),
        (gain == 0, "no gain printed"),
    )
    if why := next((reason for holds, reason in reasons if holds), ""):
        return NOT_COMPARABLE, why
    if len(our_gain.seeds) < LEAST_FOR_TEST:
        return NOT_TESTED, ""
    ratio = (our_gain.difference.mean or 0.0) / gain
    if ratio == 0 or (our_gain.p is not None and our_gain.p >= LEVEL):  # p is None where all seeds differ by the same
        return NO_DIFFERENCE, ""
    if ratio < 0:
        return OPPOSITE, ""
    return (SIMILAR if 1 / SIMILAR_WITHIN <= ratio <= SIMILAR_WITHIN else OTHER_SIZE), ""


def chosen(comparisons: Iterable[Iterable[Claim]]) -> list[Claim]:
    """Return the claims to judge by: one for each printed gain of each comparison, on pretrained features of all."""
    best: dict[tuple[str, str, int | str], Claim] = {}
    for i, claims in enumerate(comparisons):
        for claim in claims:
            key = claim.table, claim.row, ON_PRETRAINED if claim.pretrained else i
            if _preference(claim) < _preference(best.setdefault(key, claim)):
                best[key] = claim
    return list(best.values())


def with_corrected(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims with p corrected for all that were tested."""
    gains = corrected([claim.our_gain if claim.tested else None for claim in claims])
    return [replace(claim, our_gain=gain or claim.our_gain) for claim, gain in zip(claims, gains, strict=True)]


def _preference(claim: Claim) -> tuple[bool, int, int, int, str]:
    """Return the order in which folders are preferred; the gain itself has no part in it."""
    seeds = -len(claim.our_gain.seeds)
    return claim.verdict == NOT_COMPARABLE, seeds, claim.differ, claim.left_open, claim.runs


def _deviations(printed: PaperRow) -> dict[str, Altered]:
    return {one.key: one for one in (*printed.readings, *printed.altered)}


def _whose(deviation: Altered) -> str:
    return "" if deviation.why else "paper "


def _started(row: Row, deviations: Mapping[str, Altered]) -> tuple[bool, bool]:
    """Return whether our runs, and whether the paper's, started from pretrained weights."""
    ours = {key: any(run.config.get(key) for run in row.runs) for key in (DIGEST, DOWNLOAD)}
    papers = [deviations[key].paper not in NO_WEIGHTS if key in deviations else value for key, value in ours.items()]
    return any(ours.values()), any(papers)


def _format(config: Mapping[str, Any], surroundings: Mapping[str, str]) -> str:
    """Return the number format of a run; empty if the run left it to the nodes and did not record it."""
    recorded = surroundings.get("arithmetic", "") or str(config.get(PRECISION, ""))
    number_format = recorded.partition("/")[0]
    return "" if number_format in ("auto", "hardware") else number_format

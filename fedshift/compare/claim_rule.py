"""The rule of ``fedshift claims``: what counts as a test of a printed gain, and its verdict.

The rule for runs like the paper's (``RULE``) was written down on 2026-11-23, that for runs on pretrained features
(``PRETRAINED_RULE``) on 2026-11-26; docs/guide/compare.md (Claims) says which kept runs are older.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedshift.compare.rows import PaperRow, Row
from fedshift.papers.deviations import SIZE, Altered
from fedshift.results.loading import Run
from fedshift.results.statistics import LEAST_FOR_TEST, Paired
from fedshift_app.config import registry

SEEN, NOT_SEEN, REVERSED, NOT_COMPARABLE = "seen", "not seen", "reversed", "not comparable"
#: Each verdict, as JSON has it, and its words in tables.
VERDICTS = {SEEN: "confirmed", NOT_SEEN: "not significant", REVERSED: "reversed", NOT_COMPARABLE: "not comparable"}
ON_PRETRAINED = "on pretrained features"  # follows the verdict on such runs
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
RULE = (
    "gain: accuracy less FedAvg's in the same table, mean over the domains that table and runs have",
    f"not comparable: fewer than {LEAST_FOR_TEST} seeds that the row and FedAvg share, fewer than {LEAST_DOMAINS} "
    "common domains, another network or other corruptions than the paper's, an approximation, a label that is a "
    "reading, or no gain printed",
    f"confirmed: the sign that is printed, with p < {LEVEL} of a two-sided paired t-test over seeds; reversed: the "
    "other sign with such a p; not significant: all else, which does not refute the gain: few seeds have little power",
    "where all seeds differ by the same, to which there is no test, the sign decides",
    "the size decides no verdict; p is not corrected for the number of rows",
)
PRETRAINED_RULE = (
    f"{ON_PRETRAINED}: the same words for runs that started from pretrained weights where the paper starts from none, "
    f"with any network; with fewer than {LEAST_FOR_TEST} seeds the sign is given, without a test; one row for each "
    "printed gain, of the folder with the most seeds, then the fewest other values; these runs decide no other verdict",
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
        runs: The folder of our runs, and our row.
        differ: How many values of our runs are not the paper's.
        left_open: How many others, which the paper leaves open, are not our reading of it.
        verdict: One of ``VERDICTS``.
        why: Reason why the row is not comparable, or was not tested; empty otherwise.
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
    why: str = ""
    unlike: tuple[str, ...] = ()
    pretrained: bool = False
    rounds: str = ""

    @property
    def verdict_line(self) -> str:
        """The verdict, on which features, and the reason."""
        on_pretrained = self.pretrained and self.verdict != NOT_COMPARABLE
        words = VERDICTS[self.verdict]
        verdict = f"{words} {ON_PRETRAINED}" if on_pretrained else words
        return f"{verdict}: {self.why}" if self.why else verdict

    @property
    def folder(self) -> str:
        """The name of the folder of our runs."""
        return self.runs.partition(": ")[0]

    @property
    def distance(self) -> tuple[int, int]:
        """How many values differ from the paper's values, then from our readings of open values."""
        return self.differ, self.left_open


def is_pretrained(row: Row, printed: PaperRow) -> bool:
    """Return whether the runs of a row started from pretrained weights where the paper's started from none."""
    ours, papers = _started(row, printed)
    return ours and not papers


def unlike(row: Row, printed: PaperRow) -> tuple[str, ...]:
    """Return image size, pretrained weights and arithmetic of our runs that are not the paper's.

    Each comes with the paper's value, or with our reading where the paper leaves it open.
    """
    texts = []
    if size := _deviation(printed, SIZE):
        texts.append(f"{' and '.join(size.ours)} pixels {_papers(size)}")
    ours, papers = _started(row, printed)
    weights = _deviation(printed, DIGEST) or _deviation(printed, DOWNLOAD)
    if weights and ours and papers:
        texts.append("other pretrained weights")
    elif weights and ours != papers:
        words = {True: "pretrained", False: "from scratch"}
        texts.append(f"{words[ours]} ({'' if weights.why else 'paper '}{words[papers]})")
    if arithmetic := _arithmetic(row, printed):
        texts.append(arithmetic)
    return tuple(texts)


def verdict(gain: float, our_gain: Paired, row: Row, printed: PaperRow, domains: int) -> tuple[str, str]:
    """Return the verdict on a row by ``RULE`` or ``PRETRAINED_RULE``, and the reason if there is one.

    Args:
        gain: The printed gain.
        our_gain: Our gain.
        row: Our row.
        printed: The printed row.
        domains: Over how many domains both gains are means.
    """
    pretrained = is_pretrained(row, printed)
    task = OTHER_IMAGES if pretrained else ANOTHER_TASK
    other = [deviation.text for deviation in (*printed.altered, *printed.readings) if deviation.key in task]
    seeds = len(our_gain.seeds)
    least = 1 if pretrained else LEAST_FOR_TEST
    count = f"{seeds} {'seed' if seeds == 1 else 'seeds'}"
    reasons = (
        (seeds < least, count),
        (domains < LEAST_DOMAINS, f"{domains} common domain"),
        (bool(other), ", ".join(other)),
        (bool(registry.approximation_line(row.method)), "an approximation"),
        (not printed.certain, "the label is a reading"),
        (gain == 0, "no gain printed"),
    )
    if why := next((reason for holds, reason in reasons if holds), ""):
        return NOT_COMPARABLE, why
    mean = our_gain.difference.mean or 0.0
    if seeds < LEAST_FOR_TEST:
        sign = "no gain" if mean == 0 else "the printed sign" if (mean > 0) == (gain > 0) else "the other sign"
        return NOT_SEEN, f"{sign}, {count}"
    if mean == 0 or (our_gain.p is not None and our_gain.p >= LEVEL):  # p is None where all seeds differ by the same
        return NOT_SEEN, ""
    return (SEEN if (mean > 0) == (gain > 0) else REVERSED), ""


def chosen(claims: Iterable[Claim]) -> list[Claim]:
    """Return the claims to judge by: of those on pretrained features one for each printed gain, all others."""
    kept: list[Claim] = []
    best: dict[tuple[str, str], Claim] = {}
    for claim in claims:
        if not claim.pretrained:
            kept.append(claim)
            continue
        other = best.setdefault((claim.table, claim.row), claim)
        if _preference(claim) < _preference(other):
            best[claim.table, claim.row] = claim
    return [*kept, *best.values()]


def _preference(claim: Claim) -> tuple[bool, int, tuple[int, int], str]:
    """Return the order in which folders are preferred; the gain itself has no part in it."""
    return claim.verdict == NOT_COMPARABLE, -len(claim.our_gain.seeds), claim.distance, claim.runs


def _started(row: Row, printed: PaperRow) -> tuple[bool, bool]:
    """Return whether our runs, and whether the paper's, started from pretrained weights."""
    configs = [run.config for run in _runs(row)]
    ours = {key: any(config.get(key) for config in configs) for key in (DIGEST, DOWNLOAD)}
    papers = {
        key: ours[key] if (deviation := _deviation(printed, key)) is None else deviation.paper not in NO_WEIGHTS
        for key in ours
    }
    return any(ours.values()), any(papers.values())


def _arithmetic(row: Row, printed: PaperRow) -> str:
    """Return the number formats of our runs if one is not the paper's; papers name none, which is read as float32."""
    runs = _runs(row)
    stated = _deviation(printed, PRECISION)
    papers = str(runs[0].config.get(PRECISION)) if stated is None else stated.paper
    papers = PAPER_PRECISION if papers == "auto" else papers
    known = {_format(run.config, run.surroundings) for run in runs}
    if known == {papers}:
        return ""
    if known == {""}:
        return UNRECORDED
    formats = " and ".join(sorted(number_format or "not recorded" for number_format in known))
    return f"{formats} ({'paper ' if stated is not None and not stated.why else ''}{papers})"


def _format(config: Mapping[str, Any], surroundings: Mapping[str, str]) -> str:
    """Return the number format of a run; empty if the run left it to the nodes and did not record it."""
    recorded = surroundings.get("arithmetic", "") or str(config.get(PRECISION, ""))
    number_format = recorded.partition("/")[0]
    return "" if number_format in ("auto", "hardware") else number_format


def _deviation(printed: PaperRow, key: str) -> Altered | None:
    return next((one for one in (*printed.altered, *printed.readings) if one.key == key), None)


def _papers(deviation: Altered) -> str:
    return f"({'' if deviation.why else 'paper '}{deviation.paper})"


def _runs(row: Row) -> Sequence[Run]:
    """Return the runs of a row one by one, also those that were joined."""
    return [part for run in row.runs for part in run.singles]

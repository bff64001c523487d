"""The claims as text, Markdown and JSON."""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from fedshift.lab.tables.compare import formats
from fedshift.lab.tables.compare.claim_rule import (
    LEVEL,
    NOT_COMPARABLE,
    ON_PRETRAINED,
    PRETRAINED_RULE,
    RULE,
    VERDICTS,
    Claim,
)
from fedshift.lab.tables.results import metrics as run_metrics
from fedshift.lab.tables.results.grouping import grouped
from fedshift_core.plural import plural

HEAD = ("table", "row", "paper's gain", "our gain", "n", "p", "p (Holm)", "verdict", "on", "differ", "runs")
COLUMN_NOTES = (
    "* mean over some of the printed domains alone; differ: values of our runs that are not the paper's, where it has "
    "one",
    "differ also names image size, pretrained weights and arithmetic that are not the paper's, each with the paper's "
    "value; without the word paper it is our reading, as no paper names its arithmetic",
)


@dataclass(frozen=True)
class Claims:
    """All claims, in the order of papers, tables and rows.

    Attributes:
        claims: The claims.
        score: The score of our runs that is compared.
        without: Number of printed gains without a run of ours.
        lacking: Folders whose runs lack this score.
        unreadable: Runs that were left out because they cannot be read, each with the reason.
        warnings: Runs with other images and runs whose results contradict their rounds.
        own: Whether only the rows of the papers' own methods are shown.
        comparable: Whether only rows that compare are shown.
    """

    claims: tuple[Claim, ...]
    score: str
    without: int
    lacking: tuple[str, ...]
    unreadable: tuple[str, ...]
    warnings: tuple[str, ...]
    own: bool = False
    comparable: bool = False

    @property
    def shown(self) -> tuple[Claim, ...]:
        """The claims to show; the counts in the notes include all claims."""
        return tuple(
            claim
            for claim in self.claims
            if (claim.own or not self.own) and not (self.comparable and claim.verdict == NOT_COMPARABLE)
        )

    def text(self) -> str:
        """Return aligned lines."""
        return formats.text_table(self._title(), HEAD, list(map(_cells, self.shown)), (), self._notes(), repeated=2)

    def markdown(self) -> str:
        """Return a table and its notes; rows of a paper's own method in bold."""
        rows = [list(map(formats.escaped, _cells(claim))) for claim in self.shown]
        for cells, claim in zip(rows, self.shown, strict=True):
            cells[1] = f"**{cells[1]}**" if claim.own else cells[1]
        return formats.markdown_table(self._title(), HEAD, rows, (), self._notes())

    def json(self) -> str:
        """Return the claims that are shown, with numbers in full, and the rule."""
        records = [_record(claim) for claim in self.shown]
        return json.dumps(
            {
                "score": self.score,
                "claims": records,
                "without_runs": self.without,
                "not_scored_so": self.lacking,
                "unreadable": self.unreadable,
                "warnings": self.warnings,
                "rule": RULE,
                "pretrained_rule": PRETRAINED_RULE,
            },
            indent=2,
        )

    def _title(self) -> str:
        return (
            f"gains over FedAvg that the papers print, and ours ({run_metrics.SCORES[self.score]}, or the rounds that "
            "stand after the runs)"
        )

    def _notes(self) -> list[str]:
        notes = []
        if len(self.shown) < len(self.claims):
            notes.append(f"{plural(len(self.claims), 'row')}, of which {len(self.shown)} are shown")
        notes += self._counts(pretrained=False)
        notes += self._gain_notes()
        notes += self._counts(pretrained=True)
        gains = [claim.our_gain for claim in self.claims if claim.tested]
        if tests := [(gain.p, gain.p_holm) for gain in gains if gain.p is not None and gain.p_holm is not None]:
            below, corrected = (sum(p < LEVEL for p in values) for values in zip(*tests, strict=True))
            notes.append(f"{plural(len(tests), 'test')}: p < {LEVEL} in {below}, p (Holm) < {LEVEL} in {corrected}")
        notes.append(f"printed gains without a run here: {self.without}")
        if self.lacking:
            notes.append(f"left out, not all scored {self.score}: {', '.join(self.lacking)}")
        notes += [*self.unreadable, *self.warnings]
        notes += RULE
        if any(claim.pretrained for claim in self.claims):
            notes += PRETRAINED_RULE
        notes += COLUMN_NOTES
        return notes

    def _counts(self, *, pretrained: bool) -> list[str]:
        """Return how many claims have which verdict, of one kind of features."""
        where = f"{ON_PRETRAINED}, " if pretrained else ""
        notes = []
        for who, own in (("the papers' own methods (bold)", True), ("baselines", False)):
            counted = Counter(c.verdict for c in self.claims if (c.own, c.pretrained) == (own, pretrained))
            counts = "; ".join(f"{counted[verdict]} {verdict}" for verdict in VERDICTS if counted[verdict])
            notes += [f"{where}{who}: {counts}"] if counts else []
        return notes

    def _gain_notes(self) -> list[str]:
        """Return notes on printed gains of which runs of several folders were tested."""
        verdicts = grouped(
            ((claim.table, claim.row), claim.verdict) for claim in self.claims if claim.tested and not claim.pretrained
        )
        rows = sum(map(len, verdicts.values()))
        if rows == len(verdicts):
            return []
        notes = [
            f"{plural(rows, 'tested row')}, of {plural(len(verdicts), 'printed gain')}: one for each comparison of runs"
        ]
        if split := [f"{table} {row}" for (table, row), same_gain in verdicts.items() if len(set(same_gain)) > 1]:
            notes.append(f"not the same verdict in all: {', '.join(split)}")
        return notes


def _cells(claim: Claim) -> tuple[str, ...]:
    gain = claim.our_gain
    return (
        claim.table,
        claim.row,
        f"{claim.printed_gain:+.2f}",
        formats.number(gain.difference, sign="+"),
        str(len(gain.seeds)),
        *formats.p_values(gain if claim.tested else None),
        claim.verdict_line,
        f"{', '.join(claim.domains)}{'' if claim.all_domains else ' *'}",
        _differ(claim),
        f"{claim.runs} ({claim.rounds})" if claim.rounds else claim.runs,
    )


def _differ(claim: Claim) -> str:
    return ": ".join([str(claim.differ), *([", ".join(claim.unlike)] if claim.unlike else [])])


def _record(claim: Claim) -> dict[str, Any]:
    gain = claim.our_gain
    return {
        "table": claim.table,
        "row": claim.row,
        "own": claim.own,
        "there": claim.printed_gain,
        "here": gain.difference.mean,
        "here_std": gain.difference.std,
        "seeds": gain.seeds,
        "p": gain.p,
        "p (Holm)": gain.p_holm,
        "interval": gain.interval,
        "domains": claim.domains,
        "all_printed_domains": claim.all_domains,
        "runs": claim.runs,
        "values_not_the_papers": claim.differ,
        "values_left_open": claim.left_open,
        "unlike": claim.unlike,
        "pretrained": claim.pretrained,
        "not_of_the_last_five_rounds": claim.rounds,
        "verdict": claim.verdict,
        "why": claim.why,
    }

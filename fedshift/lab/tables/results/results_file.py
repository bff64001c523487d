"""The part of ``results.json`` that comparisons use."""

import functools
from typing import Annotated, Any

from pydantic import Field

from fedshift_app.features.figures.show import Figures
from fedshift_app.features.site_figures.show import Sites
from fedshift_app.run.files import Changed
from fedshift_core.limits import MOST_ROUNDS
from fedshift_core.losses import Losses
from fedshift_core.rounds import LAST_ROUNDS
from fedshift_core.shown import FromFile
from fedshift_core.wire.names import AVERAGED

MOST_DOMAINS, MOST_OTHERS = 500, 100  # of a file

Percent = Annotated[float, Field(ge=0, le=100)]
#: A score by domain, in percent; None where it is missing.
Domains = Annotated[dict[str, Percent | None], Field(min_length=1, max_length=MOST_DOMAINS)]


class Chosen(FromFile):
    """A chosen round."""

    round: int
    domains: Domains


class Clients(FromFile):
    """Scores of client models, in percent."""

    lta: float | None
    ata: dict[str, float | None]
    gata: float | None
    gasa: float | None
    cprr: float | None
    averaged_rounds: int = LAST_ROUNDS
    by_domain: dict[str, float | None]

    def scores(self) -> dict[str, float | None]:
        """Return them by column: ATA by domain, the four measures, all client models on each domain and over all."""
        known = [value for value in self.by_domain.values() if value is not None]
        overall = sum(known) / len(known) if known and len(known) == len(self.by_domain) else None
        measures = {"LTA": self.lta, "GASA": self.gasa, "CPRR": self.cprr, "GATA": self.gata}
        return (
            {f"ATA {domain}": value for domain, value in self.ata.items()}
            | measures
            | {f"all on {domain}": value for domain, value in self.by_domain.items()}
            | {"all on AVG": overall}
        )


class Results(FromFile):
    """The part of ``results.json`` that comparisons use; accuracies in percent, None where missing."""

    method: str
    dataset: str
    seed: int
    evaluated: str  # global model, personal models
    rounds: int | None = Field(None, ge=0, le=MOST_ROUNDS)  # the last one, or of models scored again theirs
    bytes_up: int | None = None  # of all rounds, as bytes_down
    bytes_down: int | None = None
    averaged_rounds: int
    averaged_over: tuple[int, ...] = Field((), max_length=LAST_ROUNDS)  # only where these are not the last ones
    domains: Domains
    final: Domains
    best_test: Chosen
    best_validation: Chosen | None = None
    client_models: Clients | None = None
    others: dict[str, dict[str, float | None]] = Field(default_factory=dict, max_length=MOST_OTHERS)
    spread_over_nodes: dict[str, float | None] = Field(default_factory=dict, max_length=MOST_DOMAINS)
    scored_with: str = AVERAGED  # kind of evaluate.bn behind domains, final, best_test, best_validation
    figures: Figures | None = None  # of the last or chosen round; None if not requested, or old
    site_figures: Sites | None = None  # likewise
    lost: dict[str, list[int]] = Field(default_factory=dict)  # by round: nodes that gave no part
    unscored: dict[str, list[int]] = Field(default_factory=dict)  # by domain: averaged rounds without its score
    #: By averaged round and domain: test images that were scored, and those of all its nodes.
    missing_tests: dict[str, dict[str, tuple[int, int]]] = Field(default_factory=dict)
    changed: tuple[Changed, ...] = ()  # settings, between rounds
    nodes: tuple[dict[str, Any], ...]
    weights_sha256: str
    curve: dict[int, float] = Field(default_factory=dict, max_length=MOST_ROUNDS)  # only of a file that --keep wrote

    @functools.cached_property
    def losses(self) -> Losses:
        """Its account of what the run went without."""
        return Losses.of(vars(self))

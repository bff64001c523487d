"""Scores with other statistics of BatchNorm (``evaluate.bn``)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from fedshift_core.disclosure import SUM
from fedshift_core.features import Case, Feature, FeatureOptions, Key
from fedshift_core.limits import MOST_SHOWN, few, some
from fedshift_core.params import Former
from fedshift_core.plural import plural
from fedshift_core.shown import History, Shown
from fedshift_core.wire import names as wire
from fedshift_core.wire.names import AVERAGED, BATCH, BN_SCORE, OWN, RETAKEN

#: With which statistics of BatchNorm the same weights are scored.
BnStatistics = Literal["averaged", "retaken", "own", "batch"]
BN_STATISTICS_TEXT = {
    AVERAGED: "as they were averaged",
    RETAKEN: "re-estimated from the nodes' training images",
    OWN: "of each node's own training images",
    BATCH: "of each batch of test images",
}


def _takes_statistics(evaluate: Mapping[str, Any]) -> bool:
    return isinstance(ways := evaluate.get("bn"), list | tuple) and (OWN in ways or RETAKEN in ways)


class Options(FeatureOptions):
    """BatchNorm statistics that models are scored with."""

    section = "evaluate"
    #: Each further one costs as much as scoring once more; re-estimated and own ones also cost each node a pass over
    #: ``bn_images`` training images. They change the score alone. Statistics that stand still in training (FixBN, Zhong
    #: et al., arXiv 2303.06530) are not here.
    bn: tuple[BnStatistics, ...] = Field(("averaged",), min_length=1)
    """BatchNorm statistics of the scored models: averaged, re-estimated on all nodes (retaken), each node's own, or of
    each test batch; the first is the run's accuracy.
    """
    bn_images: int = Field(1000, ge=2, le=1_000_000)
    """Largest number of training images of a node behind re-estimated statistics."""
    bn_order: Annotated[Literal["shuffled", "listed"], Former("listed", _takes_statistics)] = "shuffled"
    """Order of these images, of which each batch is normalised by itself: shuffled, or listed as the data set has them,
    which may be class by class.
    """

    @field_validator("bn")
    @classmethod
    def _different(cls, names: tuple[BnStatistics, ...]) -> tuple[BnStatistics, ...]:
        if len(set(names)) != len(names):
            raise ValueError(f"expected different statistics, found {', '.join(names)}")
        return names

    def without_nodes(self, domains: Sequence[str]) -> str:
        """Return why accuracies of these domains, which no node holds, cannot be; empty if they can."""
        if self.bn[0] != OWN or not domains:
            return ""
        return (
            f"evaluate.bn=[{','.join(self.bn)}]: its first entry is own, but no node has training images of "
            f"{some(domains, MOST_SHOWN)}; put another first, or give these domains nodes"
        )


def _rules(case: Case) -> str:
    from fedshift_clients.models.catalog import NETWORKS, family_of

    config, statistics, kept = case.config, Options.read(case.config).bn, case.config.model.bn_keep
    if kept != AVERAGED and kept not in statistics:
        return f"model.bn_keep={kept}: the kept model must be scored; add {kept} to evaluate.bn"
    setting = f"evaluate.bn=[{','.join(statistics)}]"
    if config.keep != "last" and statistics[0] != kept and not case.finished:
        return (
            f"keep={config.keep} goes by the first entry of {setting}, but the kept model has model.bn_keep={kept}: "
            f"put {kept} first"
        )
    if statistics == (AVERAGED,):
        return ""
    if RETAKEN in statistics and (noise := config.privacy.name) != "none":
        return (
            f"privacy.name={noise} needs evaluate.bn without retaken: BatchNorm statistics would leave a node without "
            "noise"
        )
    if config.model.bn in ("freeze", "group"):
        return f"{setting} needs BatchNorm statistics, but model.bn={config.model.bn} has none"
    for name in (config.model.name, *config.model.per_node):
        whole_library = case.finished and family_of(name) is not None  # importing it takes seconds
        if not whole_library and not NETWORKS[name].batchnorm:
            return f"{setting}: the network {name} has no BatchNorm; allowed is [{AVERAGED}]"
    domains = config.dataset.domains
    held = config.allocation.held_domains(domains)
    return Options.read(config).without_nodes([domain for domain in domains if domain not in held])


def show(history: History) -> Shown:
    """Return the statistics of the accuracies, with a line where there are others than the averaged ones."""
    config, results, text = history.config, history.results, BN_STATISTICS_TEXT
    first = str(results.get("scored_with", AVERAGED))
    others = few(results.get("others", {}))
    kinds = [name.removeprefix(BN_SCORE) for name in others if name.startswith(BN_SCORE)]
    fields = {"scored_with": config.evaluate.bn[0]}
    if first == AVERAGED and not kinds:
        return Shown(fields)
    further = "".join(f"; bn={kind}: the same rounds with those {text.get(kind, kind)}" for kind in kinds)
    batch = f"; batches of {plural(config.images.eval_batch, 'test image')}" if BATCH in (first, *kinds) else ""
    line = f"BatchNorm's statistics: {first} ({text.get(first, first)}){further}{batch} (evaluate.bn)"
    return Shown(fields, notes=(line,)) if first == AVERAGED else Shown(fields, facts=(line,))


FEATURE = Feature(
    "bn-statistics",
    "Scores with other statistics of BatchNorm",
    "evaluate.bn",
    "fedshift_app.features.bn_statistics.server:BatchNormStatistics",
    "fedshift_app.features.bn_statistics.node:BatchNormStatisticsOnNode",
    show=show,
    place=30,
    options=Options,
    rules=_rules,
    evaluate=(
        Key(wire.TAKE_STATISTICS, "bool", "take statistics of training images in place of a score", True),
        Key(wire.BN_WAYS, "list of text", "statistics to score with, that of the accuracy first"),
        Key(wire.BN_IMAGES, "int", "largest number of training images behind statistics"),
    ),
    evaluate_reply=(Key(f"{wire.OTHER_CORRECT}{wire.BN_SCORE}", "int", "correct predictions with other statistics"),),
    records=(
        Key(wire.STATISTICS, "arrays (C,) float32", "to the node: re-estimated means and variances by layer"),
        Key(wire.KNOWLEDGE, "arrays (C,) float64", "to the server: sums and sums of squares by layer"),
    ),
    word=SUM,
    tells="sums over the node's training images of each channel, of at least two images",
)

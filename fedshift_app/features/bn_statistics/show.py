"""Shown of ``evaluate.bn``: the BatchNorm statistics behind its scores."""

from fedshift_app.features.bn_statistics import BN_STATISTICS_TEXT
from fedshift_core.limits import few
from fedshift_core.plural import plural
from fedshift_core.shown import History, Shown
from fedshift_core.wire.names import AVERAGED, BATCH, BN_SCORE


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

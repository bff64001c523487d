"""Shown of scores of client models: means over the last rounds that have any, and their table."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fedshift_core.accuracies import mean, percent
from fedshift_core.rounds import LAST_ROUNDS, last_rounds
from fedshift_core.shown import History, Shown, Table

KEY = "client_models"


def show(history: History) -> Shown:
    """Return the mean scores and their table."""
    lines = history.of_rounds(KEY)
    scores = mean_client_models(lines) if lines else history.results.get(KEY)
    if not scores:
        return Shown()
    rows = [(f"all on {domain}", percent(value)) for domain, value in scores["by_domain"].items()]
    rows += [(f"ATA {domain}", percent(value)) for domain, value in scores["ata"].items()]
    rows += [(name.upper(), percent(scores[name])) for name in ("lta", "gata", "gasa", "cprr")]
    head = ("client models (%)", last_rounds(scores.get("averaged_rounds", LAST_ROUNDS)))
    return Shown({KEY: scores}, tables=(Table(head, tuple(rows), 4),))


def mean_client_models(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean scores over the last five of the rounds (at least one) for ``results.json``.

    CPRR is the ratio of the averages, as in the paper's tables. ``by_domain`` is the mean over clients (FedSeProto,
    Table 3: the heterogeneous setting); None where a client has no score, as real nodes score their own domains alone.

    Args:
        lines: The scores of each round, as its line has them.
    """
    last = lines[-LAST_ROUNDS:]
    values_of: dict[str, dict[str, list[float]]] = {}
    for line in last:
        for index, accuracy in line["matrix"].items():
            for domain, value in accuracy.items():
                values_of.setdefault(index, {}).setdefault(domain, []).append(value)
    matrix = {i: {d: statistics.fmean(v) for d, v in values_of[i].items()} for i in sorted(values_of, key=int)}
    columns = {
        domain: [accuracy.get(domain) for accuracy in matrix.values()]
        for domain in dict.fromkeys(domain for accuracy in matrix.values() for domain in accuracy)
    }
    means: dict[str, Any] = {
        "averaged_rounds": len(last),
        "matrix": matrix,
        "by_domain": {domain: None if None in column else mean(column) for domain, column in columns.items()},
        "lta": mean(line["lta"] for line in last),
        "ata": {q: mean(line["ata"].get(q) for line in last) for q in last[-1]["ata"]},
    }
    gata, gasa = (mean(line[name] for line in last) for name in ("gata", "gasa"))
    return means | {"gata": gata, "gasa": gasa, "cprr": 100 * gata / gasa if gata is not None and gasa else None}

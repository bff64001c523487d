"""Job D of ``peers.py``: memory and time with so many clients registered, of which a few train in a round."""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from peer_runs import (
    ROOT,
    about,
    rounds_of,
    run,
)

#: D: nodes, of which so many train in a round, and by how much memory may grow from the first to the last.
REGISTERED, COHORT, GROWTH_MB = (1000, 100_000), 100, 50.0


def of_many(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job D; return its result."""
    rows: dict[tuple[str, int], list[dict[str, float]]] = {}
    engines = given.only.split(",") if given.only else ["inline1", "inline2"]
    for _ in range(given.turns):
        for engine in engines:
            for nodes in given.registered:
                rows.setdefault((engine, nodes), []).append(many(engine, nodes, given.rounds or 4))
                print("D", engine, nodes, rows[engine, nodes][-1], flush=True)
    print(f"\n{about(given)}\n")
    print("| engine | clients registered | start, s | s a round | memory in rounds, MB | largest, MB | processor s |")
    print("|---|---|---|---|---|---|---|")
    medians = {
        key: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for key, runs in rows.items()
    }
    for (engine, nodes), row in medians.items():
        print(f"| {engine} | {nodes:,} | {row['start']:.1f} | {row['round']:.2f} | {row['mb']:.0f} | "
              f"{row['largest']:.0f} | {row['cpu']:.1f} |")  # fmt: skip
    ratios = []
    few, most = given.registered[0], given.registered[-1]
    for engine in engines:
        grown = {name: medians[engine, most][name] - medians[engine, few][name] for name in ("mb", "largest")}
        ok = grown["mb"] < GROWTH_MB
        verdict = f"target: below {GROWTH_MB:.0f}: {'met' if ok else 'missed'}"
        ratios.append({"of": engine, "grown_mb": grown, "target": GROWTH_MB, "ok": ok})
        print(
            f"\n{engine}: from {few:,} to {most:,} clients memory grows by {grown['mb']:.0f} MB in rounds ({verdict}), "
            f"the largest by {grown['largest']:.0f} MB"
        )
    return {"runs": {f"{engine} {nodes}": runs for (engine, nodes), runs in rows.items()}, "ratios": ratios}


def many(engine: str, nodes: int, rounds: int) -> dict[str, float]:
    """Run FedAvg with so many nodes, of which ``COHORT`` train in a round, and return its figures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = ["engine=simulation"] if engine == "simulation" else ["engine=inline", f"workers={engine[6:]}"]
        command = [
            sys.executable, "-m", "fedshift", "run", "handwritten", f"nodes={nodes}", f"rounds={rounds}", *words,
            f"federation.participation={COHORT / nodes}", "allocation.with_replacement=true", "allocation.share=0.1",
            "train.epochs=1", "evaluate-every=1000", "evaluate.last=1", f"output-dir={folder}", "report=false",
        ]  # fmt: skip
        ran = run(command, folder, ROOT, lambda: len(rounds_of(folder)), {})
        seconds = [line["seconds"] for line in rounds_of(folder)]
    return {
        "start": ran.ends[0] - seconds[0] - ran.started, "round": statistics.median(seconds[1:-1] or seconds),
        "mb": statistics.median(mb for done, mb in ran.memory if done), "largest": ran.largest, "cpu": ran.cpu,
    }  # fmt: skip

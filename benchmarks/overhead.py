"""What each method costs beside FedAvg on the same node data: CPU seconds a round, bytes up and down, parameters.

All methods run the same experiment in this process with one thread, one after the other, after a round of FedAvg
that does not count; a round is local training on every node, averaging, and evaluation. Seconds are the process's own,
so that other work on the machine does not count. FedICON is given rounds of both its phases.

Run: python benchmarks/overhead.py [--model resnet10] [--nodes 4] [--rounds 4] [--set "allocation.share=0.1"]
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import torch

from fedshift_app import node, registry, runner
from fedshift_app.config import resolve

METHODS = ("fedavg", "i2pfl", "fedcode", "f2dc", "fedicon", "fedseproto")
TARGET = 5.0  # 20 rounds of FedAvg take about 45 s on two cores, and no method may take more than four minutes


def measure(method: str, flat: dict[str, Any], nodes: int) -> dict[str, Any]:
    """Run a method and return its costs."""
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = runner.run_inline(flat | {"method": method, "output-dir": folder}, nodes)
        lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    seconds = (time.process_time() - started) / len(lines)
    lines = lines[min(1, len(lines) - 1) :]  # what travels from round 2 on
    shared, private = parameters(method, flat)
    return {
        "method": method,
        "seconds": seconds,
        "up": statistics.mean(line["bytes_up"] for line in lines) / nodes,
        "down": statistics.mean(line["bytes_down"] for line in lines) / nodes,
        "shared": shared,
        "private": private,
    }


def parameters(method: str, flat: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of parameters that travel and that stay on the node."""
    config = resolve(flat | {"method": method})
    model = node.initial_model(config)
    client_class = registry.get(method).client_class()
    kept = client_class.kept_names(model, config.model, config.node_params(), node.plugin(config))
    counts = {name: p.numel() for name, p in model.named_parameters()}
    private = sum(count for name, count in counts.items() if name in kept)
    return sum(counts.values()) - private, private


def main() -> None:
    """Measure all methods; print a Markdown table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Costs of each method beside FedAvg.")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", default="")
    given = parser.parse_args()
    flat = {"experiment": "handwritten", "rounds": given.rounds, "set": f"model.name={given.model} {given.set}"}
    results: list[dict[str, Any]] = []
    torch.set_num_threads(1)
    measure("fedavg", flat | {"rounds": 1}, given.nodes)
    print("| method | CPU seconds a round | to FedAvg's | bytes up | bytes down | parameters that travel | that stay |")
    print("|---|---|---|---|---|---|---|")
    for method in METHODS:
        own = {"set": f"{flat['set']} method.classifier_rounds={given.rounds // 2}"} if method == "fedicon" else {}
        found = measure(method, flat | own, given.nodes)
        results.append(found)
        found["ratio"] = found["seconds"] / results[0]["seconds"]
        print(
            f"| `{method}` | {found['seconds']:.2f} | {found['ratio']:.2f} | {found['up']:,.0f} | {found['down']:,.0f} "
            f"| {found['shared']:,} | {found['private']:,} |"
        )
    slowest = max(results, key=lambda found: found["ratio"])
    head = {"name": "overhead", "ratio": slowest["ratio"], "target": TARGET, "ok": slowest["ratio"] <= TARGET}
    print(
        json.dumps(
            head | {"model": given.model, "nodes": given.nodes, "methods": results, "machine": machine.describe()}
        )
    )


if __name__ == "__main__":
    main()

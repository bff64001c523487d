"""Server time and memory to average 100 replies of a ResNet-10 (20 MB each).

Ours: ``DomainStrategy.aggregate_train`` on the messages of 100 nodes: it reads and checks them, averages them in
order and writes the record of the next round. Bound: the same bytes, already arrays, are read once from memory
(``np.max``) and then multiplied and added in blocks, without a check of names, shapes, types or numbers. Both in one
thread, in turns, on the same replies; before timing, both must give the same bits.

Memory: how far the resident high-water mark (VmHWM of /proc/self/status, reset by /proc/self/clear_refs; Linux) rises
above what is resident when the replies are there, in models. It is taken in the first round and with the replies kept
alive, so that nothing that is let go can make up for what is needed.

Run: python benchmarks/aggregate.py [--repeats 7] [--replies 100]     (needs 4 GB of memory)
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import machine
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fedshift.run.engine.inline import InlineGrid
from fedshift_app.config.resolving import resolve
from fedshift_clients.models import networks
from fedshift_core.params import Params
from fedshift_core.wire.names import (
    ARRAYS,
    CLASS_COUNTS,
    CONFIG,
    DOMAIN,
    KNOWLEDGE,
    METRICS,
    NUM_EXAMPLES,
    NUM_PARTITIONS,
    NUM_TEST,
    PARTITION_ID,
    SHARED_TEST,
)  # fmt: skip
from fedshift_core.wire.records import decode, encode
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.federation.context import Engine, ModelFacts, RunContext

TARGET_RATIO = 1.5
TARGET_MODELS = 2.0
BLOCK = 1 << 17  # numbers: the fastest of 2 ** 12 to 2 ** 17 where this was tried
CLASSES = 7

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Nodes:
    """A grid whose nodes reply at once with records made beforehand.

    Attributes:
        grid: Asks them.
        records: What each replies, by its place.
    """

    grid: InlineGrid
    records: list[ArrayRecord]


def make_nodes(model: Arrays, number: int) -> Nodes:
    """Return nodes whose replies differ from the model by noise."""
    rng = np.random.default_rng(0)
    records = [encode({name: _near(array, rng) for name, array in model.items()}) for _ in range(number)]
    app = ClientApp()

    @app.query()
    def query(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({
            CLASS_COUNTS: [_examples(_place(context))] + [0] * (CLASSES - 1), NUM_TEST: 1, SHARED_TEST: 1,
            PARTITION_ID: _place(context), NUM_PARTITIONS: number,
        })  # fmt: skip
        return Message(RecordDict({CONFIG: ConfigRecord({DOMAIN: "scan"}), METRICS: metrics}), reply_to=msg)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({NUM_EXAMPLES: _examples(_place(context))})
        content = RecordDict({ARRAYS: records[_place(context)], KNOWLEDGE: ArrayRecord(), METRICS: metrics})
        return Message(content, reply_to=msg)

    return Nodes(InlineGrid(app, number), records)


def _near(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    if array.dtype.kind != "f":
        return array
    return array + rng.standard_normal(array.shape, dtype=np.float32) / 100


def _place(context: Context) -> int:
    return int(str(context.node_config["partition-id"]))


def _examples(place: int) -> int:
    return 100 + 7 * place


# --- the two sides ---------------------------------------------------------------------------------


def server() -> DomainStrategy:
    """Return FedAvg's strategy."""
    config = resolve({"experiment": "handwritten"})
    federation = RunContext(config, ModelFacts(CLASSES, 512), Engine("simulation", node_timeout=1.0), "")
    return DomainStrategy(federation, Params(), lambda *result: None)


def ours(strategy: DomainStrategy, nodes: Nodes, start: ArrayRecord) -> tuple[float, ArrayRecord]:
    """Return the seconds of one ``aggregate_train`` and its average."""
    messages = strategy.configure_train(1, start, ConfigRecord(), nodes.grid)
    replies = list(nodes.grid.send_and_receive(messages))
    started = time.perf_counter()
    average, _ = strategy.aggregate_train(1, replies)
    seconds = time.perf_counter() - started
    assert average is not None
    return seconds, average


def bound(replies: list[Arrays], weights: list[float]) -> tuple[float, Arrays]:
    """Return the seconds to read all replies once and to multiply and add them once, and the sums."""
    started = time.perf_counter()
    for reply in replies:
        for array in reply.values():
            array.max()
    sums = {name: np.zeros(array.shape, _sum_type(array)) for name, array in replies[0].items()}
    scratch = {dtype: np.empty(BLOCK, dtype) for dtype in {total.dtype for total in sums.values()}}
    for reply, weight in zip(replies, weights, strict=True):
        for name, array in reply.items():
            flat, total = array.reshape(-1), sums[name].reshape(-1)
            terms = scratch[total.dtype]
            for i in range(0, flat.size, BLOCK):
                into = total[i : i + BLOCK]
                term = terms[: into.size]
                np.multiply(flat[i : i + BLOCK], weight, out=term)
                np.add(into, term, out=into)
    return time.perf_counter() - started, sums


def _sum_type(array: NDArray[Any]) -> "np.dtype[Any]":
    return array.dtype if array.dtype.kind == "f" else np.dtype(np.float64)


# --- memory ----------------------------------------------------------------------------------------


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def start_marking() -> int:
    """Give free memory back, set the high-water mark to what is resident, and return that, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


# --- the report ------------------------------------------------------------------------------------


def measure(repeats: int, number: int) -> dict[str, Any]:
    """Time both sides in turns and mark the memory of ours."""
    model = {name: t.numpy() for name, t in networks.build("resnet10", CLASSES, 0).state_dict().items()}
    start = encode(model)
    model_bytes = sum(len(array.data) for array in start.values())
    nodes, strategy = make_nodes(model, number), server()
    strategy.gather(nodes.grid)

    before = start_marking()
    _, average = ours(strategy, nodes, start)
    peak_models = (resident("VmHWM") - before) / model_bytes

    views = [decode(record) for record in nodes.records]
    sizes = [_examples(place) for place in range(number)]
    weights = [size / sum(sizes) for size in sizes]
    sums = bound(views, weights)[1]
    for name, array in decode(average).items():
        assert array.tobytes() == np.asarray(sums[name] if array.dtype.kind == "f" else np.rint(sums[name]),
                                             array.dtype).tobytes(), name  # fmt: skip
    del average, sums

    seconds: dict[str, list[float]] = {"ours": [], "bound": []}
    for _ in range(repeats):
        seconds["bound"].append(bound(views, weights)[0])
        seconds["ours"].append(ours(strategy, nodes, start)[0])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["ours"] / medians["bound"]
    return {
        "name": "aggregate",
        "ratio": round(ratio, 3),
        "target": TARGET_RATIO,
        "ok": ratio <= TARGET_RATIO and peak_models <= TARGET_MODELS,
        "replies": number,
        "reply_mb": round(model_bytes / 1e6, 2),
        "medians": {name: round(value, 4) for name, value in medians.items()},
        "spread": {name: [round(min(values), 4), round(max(values), 4)] for name, values in seconds.items()},
        "peak_models": round(peak_models, 2),
        "peak_models_target": TARGET_MODELS,
    }


def main() -> None:
    """Measure; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Server time and memory to average the replies of a round.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--replies", type=int, default=100)
    given = parser.parse_args()
    result = measure(given.repeats, given.replies)
    print(f"{given.replies} replies of {result['reply_mb']} MB, seconds")
    for name in ("bound", "ours"):
        low, high = result["spread"][name]
        print(f"{name:8} median {result['medians'][name]:.3f}  lowest {low:.3f}  highest {high:.3f}")
    print(f"ratio {result['ratio']:.2f} (at most {TARGET_RATIO:g})")
    print(f"memory above the replies: {result['peak_models']:.2f} models (at most {TARGET_MODELS:g})")
    print(json.dumps(result | {"machine": machine.describe()}))


if __name__ == "__main__":
    main()

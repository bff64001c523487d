"""Flower's simulation engine as it is, and as FedShift mends it. It shows where a run of 1,000 nodes spends its time.

    python benchmarks/engine.py [--turns 3] [--rounds 6] [--nodes 1000] [--participation 0.05] [--set "..."]
    python benchmarks/engine.py --store [--nodes 1000] [--clients 50]

Without `--store`: `fedshift run handwritten` with the two-layer CNN, 36 images a node, in turns with
`FEDSHIFT_PLAIN_FLOWER=1` and without. Start is from the command to the beginning of round 1, all nodes having said what
they are; round 1 has the workers' first steps in it; a round is the median of the others. End is from the last line of
`metrics.jsonl` to the end of the command, without a report. The weights of all runs must have one SHA-256.

With `--store`: no Ray and no training, only Flower's store of messages, its grid, and two threads that answer a message
10 ms after they get it; printed is the processor time of one question to all nodes, and of a round.
The last line is one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any
from uuid import uuid4

import machine

ROOT = Path(__file__).resolve().parent.parent
PLAIN = "FEDSHIFT_PLAIN_FLOWER"
ENGINES = {"plain": "1", "mended": "0"}
POLL_SECONDS = 0.05
ANSWER_SECONDS = 0.01
#: Seconds from the command to round 1, and from the last round to the end of the command.
TARGETS = {"start": 10.0, "end": 5.0}


def run_once(engine: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run the command once; return its times in seconds and the hash of its weights."""
    with tempfile.TemporaryDirectory() as name:
        command = [
            sys.executable, "-m", "fedshift", "run", "handwritten", "method=fedavg", "model.name=cnn",
            f"nodes={given.nodes}", f"rounds={given.rounds}", f"federation.participation={given.participation}",
            "allocation.with_replacement=true", "allocation.share=0.1", "train.epochs=1", f"output-dir={name}",
            "report=false", *given.set.split(),
        ]  # fmt: skip
        env = os.environ | {PLAIN: ENGINES[engine], "PYTHONPATH": str(ROOT)}
        began = time.time()
        run = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
        last = lines = 0.0
        while run.poll() is None:
            time.sleep(POLL_SECONDS)
            files = list(Path(name).glob("*/metrics.jsonl"))
            number = files[0].read_text().count("\n") if files else 0
            if number > lines:
                last, lines = time.time(), number
        ended = time.time()
        if run.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {run.returncode}")
        (folder,) = Path(name).iterdir()
        rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        results = json.loads((folder / "results.json").read_text())
    seconds = [line["seconds"] for line in rounds]
    median = statistics.median(seconds[1:])
    return {
        "start": round(last - sum(seconds) - began, 2),
        "first_round": round(seconds[0], 2),
        "round": round(median, 3),
        "ms_per_client": round(1000 * median / len(rounds[-1]["nodes"]), 2),
        "end": round(ended - last, 2),
        "weights_sha256": results["weights_sha256"],
    }


def complete_runs(given: argparse.Namespace) -> dict[str, Any]:
    """Run both engines in turns; return the medians."""
    runs_of: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    for _ in range(given.turns):
        for engine, runs in runs_of.items():
            runs.append(run_once(engine, given))
            print(engine, ", ".join(f"{key} {value}" for key, value in runs[-1].items()), flush=True)
    keys = ("start", "first_round", "round", "ms_per_client", "end")
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in keys} for name, runs in runs_of.items()
    }
    same = len({run["weights_sha256"] for runs in runs_of.values() for run in runs}) == 1
    in_time = all(medians["mended"][key] <= target for key, target in TARGETS.items())
    return medians | {"targets": TARGETS, "same_weights": same, "ok": same and in_time}


def store(nodes: int, clients: int, *, mended: bool) -> dict[str, float]:
    """Return the processor time of a question to all nodes, and of a round, in this process."""
    from flwr.app import Message, RecordDict
    from flwr.proto.task_pb2 import Task
    from flwr.server.superlink.fleet.vce import vce_api
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.server.superlink.linkstate.in_memory_linkstate import RunRecord
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.run import Run
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.grid import InMemoryGrid

    from fedshift_app.flower import internals, simulation_queue

    internals.identify_process()
    if mended:
        simulation_queue.install()
    factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
    state: Any = factory.state()
    run = Run.create_empty(1)
    run.federation_id, run.primary_task_id = NOOP_FEDERATION_ID, 1
    state.run_ids[1], state.task_store[1] = RunRecord(run=run), Task(task_id=1, run_id=1)
    mapping = vce_api._register_nodes(nodes, factory)
    grid = InMemoryGrid(factory)
    grid.set_run(run)
    requests, replies, stop = Queue[Message](), Queue[Message](), threading.Event()

    def answer() -> None:
        while not stop.is_set():
            try:
                message = requests.get(timeout=0.2)
            except Empty:
                continue
            time.sleep(ANSWER_SECONDS)
            reply = Message(RecordDict(), reply_to=message)
            reply.metadata.__dict__["_message_id"] = str(uuid4())
            replies.put(reply)

    threads = [threading.Thread(target=answer) for _ in range(2)]
    threads.append(threading.Thread(target=vce_api.add_messages_to_queue, args=(state, requests, mapping, stop)))
    threads.append(threading.Thread(target=vce_api.put_message_into_state, args=(state, replies, stop)))
    for thread in threads:
        thread.start()

    def ask(number: int) -> float:
        before = time.process_time()
        sent = [Message(RecordDict(), node, "query") for node in list(mapping)[:number]]
        assert len(list(grid.send_and_receive(sent))) == number
        return round(time.process_time() - before, 3)

    seconds = {"all_nodes": ask(nodes), "round": statistics.median(ask(clients) for _ in range(5))}
    stop.set()
    for thread in threads:
        thread.join()
    return seconds


def main() -> None:
    """Measure one or the other; print, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Flower's simulation engine, plain and mended.")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--participation", type=float, default=0.05)
    parser.add_argument("--set", default="")
    parser.add_argument("--store", action="store_true")
    parser.add_argument("--clients", type=int, default=50)
    given = parser.parse_args()
    if given.store:
        results: dict[str, Any] = {
            name: store(given.nodes, given.clients, mended=name == "mended") for name in ENGINES  # plain stays
        }  # fmt: skip
    else:
        results = complete_runs(given)
    print(json.dumps({"name": "engine", **results, "machine": machine.describe()}))


if __name__ == "__main__":
    main()

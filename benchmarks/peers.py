"""FedShift compared with pfl-research, BlazeFL, plain Flower and bare PyTorch, job by job, in a table.

    python benchmarks/peers.py --job A      # or B, C, D; one command each, some 8 minutes on two quiet cores

| job | what | target |
|---|---|---|
| A | 1,000 clients of 36 images, 50 a round, two-layer CNN, batches of 32 | 0.9 of the best peer |
| B | ten clients of 512 images, ResNet-10, batches of 64 | 0.95 of the best peer |
| C | ten nodes, ten epochs, a frozen network and a layer that trains | 1.3 bare loops, 1/50 of every peer |
| D | 1,000 and 100,000 clients registered, 100 a round | memory grows by less than 50 MB |

In C ours computes what is frozen once, as the bare loop does (`benchmarks/frozen.py`); peers compute it in each step.

Peers have Python environments of their own, ``pfl`` and ``blazefl`` in the folder ``--venvs`` (else
$FEDSHIFT_PEERS_VENVS, else ../peers-venvs next to the repository); one that is not there is left out, with a line:

    python3.11 -m venv VENVS/pfl && VENVS/pfl/bin/pip install 'pfl[pytorch]'
    python3.13 -m venv VENVS/blazefl && VENVS/blazefl/bin/pip install numpy tqdm torch 'blazefl==3.0.0a1'

In A and B all have the same images of each client (FedShift's, written to a file first; no augmentation), networks,
batches, epochs, SGD with momentum, and as many rounds, in two processes (or threads) of one thread each, or as many as
``--processes`` says; with ``--device cuda`` on one GPU, where pfl-research can have one process alone:

| name | what it is |
|---|---|
| `inline2` (the number of processes) | `fedshift run ... engine=inline workers=2 train.precision=float32` |
| `inline2-auto` | the same with `train.precision=auto`, what a user gets |
| `simulation` | Flower's simulation, as `fedshift run` starts it, in float32 |
| `flower` | Flower alone, as its quickstart has it (`run_simulation`) |
| `pfl` | pfl-research under `torch.distributed.run` |
| `blazefl-threads`, `blazefl-processes` | BlazeFL's pools and its FedAvg; threads are for a Python without GIL |
| `torch` | the steps alone in two processes: no federation |

All go in turns, each in processes of its own. Time a client is the median of a round from the second to the last but
one (ours scores the model in the last), over the clients of a round; processor time is that of the whole run, of all
its processes as far as is seen once a second. Start is from the command to round 1, end from the last round to the end
of the process. Memory is the largest sum of the proportional set size (PSS) over all processes of a run. Accuracy and
loss of the last model on the same test images show that each trains. Ratios are of the same turn. The last line is one
JSON object.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
from peer_frozen import of_frozen
from peer_many import REGISTERED, of_many
from peer_runs import (
    DATA,
    SCRIPTS,
    VENVS,
    Setting,
    about,
    measure,
    write_images,
)

FRAMEWORKS = tuple(name for name in SCRIPTS if name != "torch")
#: At most this part of the best peer's time a client.
TARGETS = {"A": 0.9, "B": 0.95}
ROUNDS, TURNS = {"A": 10, "B": 4}, {"A": 2, "B": 1, "C": 3, "D": 1}
FIGURES = ("ms", "cpu", "start", "end", "mb", "accuracy", "loss")


def of_training(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job A or B; return its result."""
    letter = given.job
    if letter == "B" and not (DATA / "digits").is_dir():
        raise SystemExit(f"job B is not measured: there are no real digits in {DATA / 'digits'}")
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            letter, given.rounds or ROUNDS[letter], given.venvs, Path(folder) / "images.npz", None, given.device,
            given.processes,
        )  # fmt: skip
        write_images(letter, setting.images)
        wanted = given.only.split(",") if given.only else [*setting.ours, *SCRIPTS]
        names = [name for name in wanted if setting.python(name)]
        for name in wanted:
            if name not in names:
                print(f"{name} is left out: there is no environment for it in {given.venvs}", flush=True)
        runs_of: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(given.turns):
            for name, runs in runs_of.items():
                runs.append(measure(name, setting))
                print(letter, name, ", ".join(f"{key} {value:.1f}" for key, value in runs[-1].items()), flush=True)
    print(f"\n{about(given)}\n")
    print(f"| job {letter}, {setting.rounds} rounds | ms a client | processor s | start, s | end, s | memory, MB | "
          "accuracy, % | loss |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name, runs in runs_of.items():
        shown = [statistics.median(run[key] for run in runs) for key in FIGURES]
        print(f"| {name} | " + " | ".join("" if np.isnan(value) else f"{value:.3f}" if key == "loss" else f"{value:.1f}"
                                          for key, value in zip(FIGURES, shown, strict=True)) + " |")  # fmt: skip
    return {"runs": runs_of, "ratios": compared(setting, runs_of)}


def compared(setting: Setting, runs_of: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Return the ratio of ours to the best peer, turn by turn; print them."""
    peers = [name for name in FRAMEWORKS if runs_of.get(name)]
    ratios: list[dict[str, Any]] = []
    if not peers:
        return ratios
    best = min(peers, key=lambda name: statistics.median(run["ms"] for run in runs_of[name]))
    print(f"\n| ours over {best}, the best peer | time a client | by turns | target | processor time of the run |")
    print("|---|---|---|---|---|")
    for mine in (name for name in setting.ours if runs_of.get(name)):
        each, cpu = (
            [ours[key] / theirs[key] for ours, theirs in zip(runs_of[mine], runs_of[best], strict=True)]
            for key in ("ms", "cpu")
        )
        ratio, target = statistics.median(each), TARGETS[setting.letter] if mine == setting.mine else None
        ratios.append({"of": mine, "over": best, "ratio": round(ratio, 3), "cpu": statistics.median(cpu),
                       "target": target, "ok": target is None or ratio <= target})  # fmt: skip
        print(f"| {mine} | {ratio:.2f} | {min(each):.2f} to {max(each):.2f} | {target or ''} | "
              f"{statistics.median(cpu):.2f} |")  # fmt: skip
    return ratios


def main() -> None:
    """Measure a job; print a Markdown table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="FedShift compared with its peers.")
    parser.add_argument("--job", required=True, choices=list(JOB_OF))
    parser.add_argument("--venvs", type=Path, default=VENVS, help="folder of the peers' environments")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of jobs A, B and C")
    parser.add_argument("--processes", type=int, default=2, help="that train side by side, in A and B")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--registered", type=_numbers, default=REGISTERED, help="of job D, such as 1000,100000")
    parser.add_argument("--only", default="", help="names of what is run, with commas")
    given = parser.parse_args()
    given.turns = given.turns or TURNS[given.job]
    given.load = os.getloadavg()
    result = {"name": f"peers {given.job}", "machine": machine.describe()} | JOB_OF[given.job](given)
    result["ok"] = all(ratio["ok"] for ratio in result["ratios"])
    print(json.dumps(result))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


JOB_OF: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "A": of_training, "B": of_training, "C": of_frozen, "D": of_many,
}  # fmt: skip

if __name__ == "__main__":
    main()

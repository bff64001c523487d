"""Job C of ``peers.py``: a frozen network and a layer that trains, of ours, a bare loop and peers."""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_jobs.common import FROZEN_CLASSES, FROZEN_SIZE
from peer_runs import (
    DATA,
    JOBS,
    SCRIPTS,
    Setting,
    about,
    measure,
)

#: C: the jobs of peers, of few images and of more, from which a round is extrapolated.
FEW_AND_MORE = ("C1", "C2")
#: C: at most so many times the bare loop, and at most this part of a peer that computes features anew.
BARE_TIMES, PEER_PART = 1.3, 1 / 50


def of_frozen(given: argparse.Namespace) -> dict[str, Any]:
    """Measure job C; return its result.

    Raises:
        SystemExit: If there is no PACS.
    """
    import frozen

    data = DATA / "PACS"
    if not data.is_dir():
        raise SystemExit(f"job C is not measured: there is no PACS in {data}")
    torch.set_num_threads(1)
    asked = argparse.Namespace(
        data=data, share=0.14, rounds=given.rounds or 6, turns=given.turns, device=given.device
    )  # fmt: skip
    ours, _ = frozen.our_round(asked)
    bare = frozen.bare_round(asked)
    sizes = frozen.node_sizes(frozen.config_of(data, asked.share))
    epochs = frozen.config_of(data, asked.share).train.epochs
    print(f"C inline1 {ours}, bare {bare}", flush=True)
    rounds: dict[str, Extrapolated] = {}
    with tempfile.TemporaryDirectory() as folder:
        images, encoder = Path(folder) / "images.npz", Path(folder) / "encoder.pt"
        write_frozen(images, encoder)
        wanted = given.only.split(",") if given.only else list(SCRIPTS)
        for name in wanted:
            settings = [
                Setting(letter, 3, given.venvs, images, encoder, given.device, given.processes)
                for letter in FEW_AND_MORE
            ]
            if not settings[0].python(name):
                print(f"{name} is left out: there is no environment for it in {given.venvs}", flush=True)
                continue
            rounds[name] = Extrapolated.of([measure(name, setting) for setting in settings], epochs * sum(sizes))
            print("C", name, rounds[name], flush=True)
    print(f"\n{about(given)}\n\nTen nodes with {min(sizes)} to {max(sizes)} images, {epochs} epochs. ", end="")
    few, more = (JOBS[letter].images * JOBS[letter].cohort for letter in FEW_AND_MORE)
    print("Peers compute the frozen network in each step; a round is extrapolated from those of one epoch", end="")
    print(f" of {few} and {more} made images, without scores.\n")
    print("| job C | a round | ours over it | target |\n|---|---|---|---|")
    print(f"| FedShift, kept features, one process | {ours.wall:.2f} s | | |")
    rows = {"bare PyTorch on kept features, one process": (bare.wall, BARE_TIMES)}
    words = f"{given.processes} process{'' if given.processes == 1 else 'es'}, extrapolated"
    rows |= {f"{name}, {words}": (took.seconds, PEER_PART) for name, took in rounds.items()}
    ratios = []
    for name, (seconds, target) in rows.items():
        ratio = ours.wall / seconds
        ratios.append({"of": "inline1", "over": name, "ratio": ratio, "target": target, "ok": ratio <= target})
        print(f"| {name} | {seconds:.2f} s | {ratio:.3g} | {target} |")
    print(f"\nIn processor time ours is {ours.cpu / bare.cpu:.2f} times the bare loop.")
    return {"runs": {name: vars(took) for name, took in rounds.items()}, "ratios": ratios}


@dataclass(frozen=True)
class Extrapolated:
    """A round of a peer, extrapolated from two that have fewer images.

    Attributes:
        few, more: Seconds of those.
        seconds: Of the whole round.
    """

    few: float
    more: float
    seconds: float

    @classmethod
    def of(cls, measured: list[dict[str, float]], images: int) -> "Extrapolated":
        """Return the round of so many images, each as often as it is trained on: what does not grow with them once."""
        jobs = [JOBS[letter] for letter in FEW_AND_MORE]
        few, more = (run["ms"] / 1000 * job.cohort for run, job in zip(measured, jobs, strict=True))
        numbers = [job.images * job.cohort for job in jobs]
        of_image = (more - few) / (numbers[1] - numbers[0])
        return cls(few, more, few + of_image * (images - numbers[0]))


def write_frozen(images: Path, encoder: Path) -> None:
    """Write made images for the peers, and the frozen network as a file that any of their environments can read."""
    import timm

    job, rng = JOBS[FEW_AND_MORE[-1]], np.random.default_rng(0)
    number = job.images * job.cohort
    x = rng.integers(0, 256, (number, FROZEN_SIZE, FROZEN_SIZE, 3), np.uint8)
    y = rng.integers(0, FROZEN_CLASSES, number)
    held = np.arange(number).reshape(job.cohort, job.images)
    np.savez(images, x=x, y=y, test_x=x[:32], test_y=y[:32], held=held)
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0).eval().requires_grad_(False)
    with torch.inference_mode():
        torch.jit.save(torch.jit.trace(network, torch.zeros(2, 3, FROZEN_SIZE, FROZEN_SIZE)), str(encoder))  # type: ignore[no-untyped-call]

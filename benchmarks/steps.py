"""One training step in many variants, in turns. It shows which are faster on a device, and which keep the bits.

Layouts, number formats, forms of SGD, gradients kept, ReLU in place, PyTorch's gradients of depthwise convolutions;
on CUDA also TF32 off and a CUDA graph; and with ``--clients 2,4`` so many clients on one device at once: in one process
on streams of their own, and in processes of their own. Random images; neither Flower nor Ray. ``--compile`` adds
torch.compile, and what its first step takes.

Run: python benchmarks/steps.py [--device cuda] [--network resnet10] [--batch 64] [--size 32] [--repeats 10]
     [--clients 2,4] [--compile] [--only usual,fused]
"""

import argparse
import contextlib
import functools
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import alone  # noqa: F401 (before what is ours)
import machine
import torch
import turns
from torch import nn

from fedshift_clients.models import depthwise, networks
from fedshift_clients.training import memory, precision
from fedshift_core.params import Arithmetic

USUAL = "usual"
RATE = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5}


@dataclass(frozen=True)
class Variant:
    """How a step is done; by default as a run does it.

    Attributes:
        arithmetic: Number format and layout.
        sgd: ``foreach``, ``fused`` or ``loop``, one parameter after another.
        keep: Gradients are zeroed instead of let go.
        inplace: ReLU modules work in place.
        depthwise: Gradients of depthwise convolutions are ours (``fedshift_clients.models.depthwise``), where they
        gain. tf32: Float32 products may be rounded (CUDA).
        graph: The step is recorded once and played (CUDA).
        compiled: By torch.compile.
    """

    arithmetic: Arithmetic
    sgd: str = "foreach"
    keep: bool = False
    inplace: bool = False
    depthwise: bool = True
    tf32: bool = True
    graph: bool = False
    compiled: bool = False


class Step:
    """A network and a batch, and the step that trains it.

    Attributes:
        model: The network.
    """

    def __init__(self, variant: Variant, network: str, batch: int, size: int, device: torch.device) -> None:
        of_products, layout = precision.parts(variant.arithmetic)
        self._variant, self._device, self._format = variant, device, of_products
        self.model = networks.build(network, 10, 0, size).to(device).to(memory_format=layout).train()
        for module in self.model.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = variant.inplace
            if not variant.depthwise:
                depthwise.unquicken(module)
        forms: dict[str, dict[str, bool]] = {"foreach": {"foreach": True}, "fused": {"fused": True}}
        form = forms.get(variant.sgd, {"foreach": False})
        self._sgd = torch.optim.SGD(self.model.parameters(), **RATE, **form)  # type: ignore[arg-type]
        rng = torch.Generator().manual_seed(0)
        self._x = torch.randn(batch, 3, size, size, generator=rng).to(device).contiguous(memory_format=layout)
        self._y = torch.randint(0, 10, (batch,), generator=rng).to(device)
        self._forward: Callable[..., Any] = torch.compile(self.model) if variant.compiled else self.model
        self._played: torch.cuda.CUDAGraph | None = _recorded(self._train) if variant.graph else None

    def _train(self) -> None:
        self._sgd.zero_grad(set_to_none=not self._variant.keep)
        with precision.autocast(self._format, self._device):
            _, logits = self._forward(self._x)
        nn.functional.cross_entropy(logits.float(), self._y).backward()  # type: ignore[no-untyped-call]
        self._sgd.step()

    def launch(self) -> None:
        """Begin a step; on a CPU it ends here, too."""
        if self._played is not None:
            self._played.replay()
            return
        with _tf32(self._variant.tf32):
            self._train()

    def __call__(self) -> None:
        """Do a step."""
        self.launch()
        finish(self._device)

    @property
    def bits(self) -> str:
        """A hash of all weights."""
        state = [tensor.cpu().contiguous().numpy().tobytes() for tensor in self.model.state_dict().values()]
        return hashlib.sha256(b"".join(state)).hexdigest()


def finish(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _recorded(train: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record a step; some are done before on another stream, as PyTorch asks for."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        train()
    return graph


@contextlib.contextmanager
def _tf32(on: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = on
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def variants_of(device: torch.device, *, compiled: bool) -> dict[str, Variant]:
    """Return what there is to compare on a device. The first is how a run does it where nothing was measured."""
    usual = Variant(precision.by_hardware(device))
    variants = {
        USUAL: usual, "float32": Variant("float32/channels_last"), "float32 nchw": Variant("float32/nchw"),
        "fused": replace(usual, sgd="fused"), "loop": replace(usual, sgd="loop"), "keep": replace(usual, keep=True),
        "inplace": replace(usual, inplace=True),
    }  # fmt: skip
    if precision.has_bf16(device):
        bf16 = Variant("bf16/channels_last")
        variants |= {
            "bf16": bf16, "bf16 nchw": Variant("bf16/nchw"), "bf16 torch's": replace(bf16, depthwise=False),
        }  # fmt: skip
    if device.type == "cuda":
        variants |= {
            "no TF32": Variant("float32/channels_last", tf32=False),
            "graph": replace(usual, graph=True, keep=True),
            "graph fused": replace(usual, graph=True, keep=True, sgd="fused"),
        }  # fmt: skip
    return variants | ({"compiled": replace(usual, compiled=True)} if compiled else {})


def on_streams(number: int, make: Callable[[], Step], device: torch.device) -> Callable[[], None]:
    """Return a step of each of so many clients of one process, each on a stream of its own."""
    steps = [(make(), torch.cuda.Stream(device)) for _ in range(number)]

    def run() -> None:
        for step, stream in steps:
            with torch.cuda.stream(stream):
                step.launch()
        finish(device)

    return run


def in_processes(number: int, given: argparse.Namespace) -> float:
    """Return the seconds of a step of so many clients. Each is a process that begins when all are there."""
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--worker"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    for worker in workers:
        _expect(worker, "ready")
    started = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        _expect(worker, "done")
    seconds = time.perf_counter() - started
    for worker in workers:
        worker.communicate()
    return seconds / given.repeats


def _expect(worker: subprocess.Popen[str], word: str) -> None:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if line != f"{word}\n":
        raise RuntimeError(f"a process ended before it was {word}")


def work(step: Step, repeats: int) -> None:
    """Be one of several processes."""
    step()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(repeats):
        step()
    print("done", flush=True)


def main() -> None:
    """Measure; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="One training step in many variants.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", default="resnet10")
    for name, usual in (("--batch", 64), ("--size", 32), ("--repeats", 10), ("--threads", 1)):
        parser.add_argument(name, type=int, default=usual)
    parser.add_argument("--clients", default="", help="with commas")
    parser.add_argument("--only", default="", help="variants, with commas")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    memory.keep_freed_memory()
    device = torch.device(given.device)
    variants = variants_of(device, compiled=given.compile)
    make = functools.partial(Step, network=given.network, batch=given.batch, size=given.size, device=device)
    if given.worker:
        work(make(variants[USUAL]), given.repeats)
        return
    wanted = given.only.split(",") if given.only else list(variants)
    steps = {name: make(variant) for name, variant in variants.items() if name in wanted or name == USUAL}
    first = {}
    for name, step in steps.items():
        started = time.perf_counter()
        step()
        first[name] = time.perf_counter() - started
    times = turns.in_turns(dict(steps), given.repeats)
    print(f"{given.network} at {given.size}, batch {given.batch}, {given.threads} threads, {device}; ms a step")
    print(f"{'':14} {'median':>9} {'lowest':>9} {'of usual':>9} {'first':>9}  bits")
    results: dict[str, Any] = {}
    for name, step in steps.items():
        same = step.bits == steps[USUAL].bits
        row = 1000 * times[name].median, 1000 * times[name].spread[0], turns.ratio(times, name, USUAL)
        measured = dict(zip(("ms", "lowest", "ratio"), row, strict=True))
        results[name] = measured | {"first": first[name], "same_bits": same}
        verdict = "same" if same else "other"
        print(f"{name:14} {row[0]:9.2f} {row[1]:9.2f} {row[2]:9.3f} {1000 * first[name]:9.0f}  {verdict}")
    side: dict[str, float] = {}
    for number in map(int, filter(None, given.clients.split(","))):
        side[f"{number} processes"] = in_processes(number, given) / number
        if device.type == "cuda":
            run = on_streams(number, functools.partial(make, variants[USUAL]), device)
            side[f"{number} streams"] = turns.in_turns({"": run}, given.repeats)[""].median / number
    for name, seconds in side.items():
        print(f"{name:14} {1000 * seconds:9.2f} ms a client's step")
    print(
        json.dumps(
            {"name": "steps", "device": str(device), "ways": results, "clients": side, "machine": machine.describe()}
        )
    )


if __name__ == "__main__":
    main()

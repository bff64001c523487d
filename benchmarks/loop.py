"""A client's local epoch against a plain PyTorch loop over the same images, for FedAvg, F2DC and FedCode.

Ours: the training loop of ``fedshift_clients.base``, in the arithmetic that ``precision=auto`` takes here, which is
measured first. Plain: as the papers' code does it, float32, maps in the order NCHW, PIL images through torchvision's
transforms one by one in a DataLoader, a new SGD, and the loss read off after every step. ResNet-10 at 32x32, batches
of 64, the same number of threads, in turns.
F2DC and FedCode train with all their terms, as from round 2 on; in the plain loop SAIN is written as its equations.

How many times faster it can be depends on the machine, so that is measured as well: the convolutions and products of
a step alone, in our arithmetic. The target is a step of FedAvg in at most ``ABOVE`` times their time, where they take
all of it but norms, activations, data and the optimiser; a step of less than these is impossible.

Needs torch and torchvision; Flower is not used, and where it is not installed a stand-in takes its place. The real
digits are looked for in FEDSHIFT_TEST_DATA, else in ../shared/data next to the repository; where they are absent,
made-up images take their place.

Run: python benchmarks/loop.py [--repeats 5] [--threads 1] [--images 512] [--device cuda]
"""

import argparse
import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import alone  # noqa: F401 (before what is ours)
import machine
import numpy as np
import products
import torch
import turns
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1  # type: ignore[import-untyped]

from fedshift_clients.base import ClientSetup, DomainClient, Phase, RoundInputs
from fedshift_clients.methods.fedcode import SAIN, SAIN_EPS, FedCodeClient
from fedshift_clients.models import networks
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules.base import AllModules
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training import autotune, memory, precision
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.model_cache import Workbench
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core.arrays import Arrays
from fedshift_core.params import Arithmetic, Params
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Source

ABOVE = 1.4  # times its convolutions and products that a step of FedAvg may take
PRODUCTS, SQUARE = "products", "square"
CLASSES, BATCH = 10, 64
MODEL, IMAGES = ModelConfig(name="resnet10"), ImageConfig(crop_padding=4, flip=False)
CLIENTS: dict[str, type[DomainClient]] = {"fedavg": DomainClient, "f2dc": DomainClient, "fedcode": FedCodeClient}


class Pictures(Dataset[tuple[Tensor, int]]):
    """PIL images, transformed one by one."""

    def __init__(self, images: ImageSet) -> None:
        self.pictures = [Image.fromarray(x) for x in images.x]
        self.labels = images.y
        self.transform = v1.Compose(
            [v1.RandomCrop(32, padding=IMAGES.crop_padding), v1.ToTensor(), v1.Normalize(IMAGES.mean, IMAGES.std)]
        )

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.pictures[index]), int(self.labels[index])


class PlainSAIN(SAIN):
    """SAIN step by step (Eqs 5-7)."""

    def forward(self, f: Tensor) -> Tensor:
        """Map (B, C, H, W) to the same shape."""
        mean = f.mean(dim=(2, 3), keepdim=True)
        deviation = (((f - mean) ** 2).mean(dim=(2, 3), keepdim=True) + SAIN_EPS).sqrt()
        style = f - (f - mean) / deviation
        w = torch.sigmoid(self.excite(torch.relu(self.squeeze(style.mean(dim=(2, 3))))))
        return w[:, :, None, None] * style


def make(method: str, images: ImageSet, device: torch.device, arithmetic: Arithmetic | None) -> DomainClient:
    """Build a method's client: as a node has it that computes so, or float32 and NCHW for the plain loop."""
    kind = CLIENTS[method]
    of_products, layout = precision.parts(arithmetic or "float32/nchw")
    train = TrainConfig(epochs=1, batch_size=BATCH, lr=0.01, precision=of_products)
    params: Params = kind.params_model()
    modules = AllModules([F2DCModules(F2DCParams())] if method == "f2dc" else ())
    plan = Blueprint(MODEL, CLASSES, 32, 0)
    model: SplitModel = modules.wrap(kind.build_model(plan, params), plan)
    if arithmetic is None:
        for module in model.modules():
            if isinstance(module, SAIN):
                module.__class__ = PlainSAIN
    model = model.to(device).to(memory_format=layout)
    setup = ClientSetup(0, 0, device, MODEL, train, IMAGES)
    bench = Workbench(model, device, train, IMAGES, layout)
    return kind(model, setup, params, images, lambda _: images, modules=modules, bench=bench)


def knowledge(method: str) -> Arrays:
    """Return what the server would send from round 2 on."""
    if method != "fedcode":
        return {}
    rng = np.random.default_rng(0)
    return {
        "prototypes": rng.random((CLASSES, 512), np.float32), "labels": np.arange(CLASSES),
        "style-prototypes": rng.random((3, 512), np.float32),
    }  # fmt: skip


def ours(client: DomainClient) -> None:
    """Train one local epoch as a node does."""
    client._train(2, start(client))


def plain(client: DomainClient, loader: DataLoader[tuple[Tensor, int]]) -> float:
    """Train one local epoch as a plain loop does; return the mean loss."""
    start(client)
    client.model.train()
    optimizer = torch.optim.SGD(client.model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    losses = []
    client.start_epoch(0)
    for x, y in loader:
        x, y = x.to(client.setup.device), y.to(client.setup.device)
        optimizer.zero_grad()
        loss = sum(client.terms_of(Batch(x, y, 0)).values(), start=torch.zeros((), device=x.device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def start(client: DomainClient) -> Sequence[Phase]:
    """Begin round 2; return the parts of its training."""
    client.server_round = 2
    return client._prepare_round(2)


def pictures(data: Path, number: int) -> tuple[str, ImageSet]:
    """Return what the images are, and the images: MNIST's, or made-up ones."""
    if (data / "digits").is_dir():
        mnist = catalog.load("digits", "mnist", "train", Source(data / "digits"))
        return "mnist at 32", ImageSet(mnist.x[:number].copy(), mnist.y[:number].copy())
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
    return "made-up images at 32", ImageSet(x, rng.integers(0, CLASSES, number))


def finished(run: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """Return ``run`` such that it ends when the device has."""

    def and_wait() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return and_wait


def limits(arithmetic: Arithmetic, device: torch.device) -> dict[str, products.Bound]:
    """Return what bounds a step of FedAvg from below: its own products; and square ones, of the machine's best rate."""
    of_products, layout = precision.parts(arithmetic)
    dtype = torch.bfloat16 if of_products == "bf16" else torch.float32
    model = networks.build(MODEL.name, CLASSES, 0).to(device)
    batch = torch.randn(BATCH, 3, 32, 32, device=device)
    return {PRODUCTS: products.of_step(model, batch, dtype, layout), SQUARE: products.square(dtype, device)}


def repeated(run: Callable[[], None], times: int) -> None:
    """Run something so many times."""
    for _ in range(times):
        run()


def main() -> None:
    """Measure all three methods; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Local training against a plain PyTorch loop.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    device = torch.device(given.device)
    if device.type == "cpu":
        memory.keep_freed_memory()
    shared_data = Path(__file__).resolve().parents[2] / "shared" / "data"
    name, images = pictures(Path(os.environ.get("FEDSHIFT_TEST_DATA", shared_data)), given.images)
    steps = -(-len(images) // BATCH)
    work = autotune.work_of(MODEL, TrainConfig(epochs=1, batch_size=BATCH, lr=0.01), 32)
    arithmetic = autotune.measure(work, device).choice
    things: dict[str, Callable[[], None]] = {}
    for method in CLIENTS:
        mine, theirs = make(method, images, device, arithmetic), make(method, images, device, None)
        inputs = RoundInputs(knowledge(method), {"pseudo-label": 1})
        mine.prepare(inputs)
        theirs.prepare(inputs)
        loader = DataLoader(Pictures(images), BATCH, shuffle=True)
        things[method] = finished(functools.partial(ours, mine), device)
        things[f"{method} plain"] = finished(functools.partial(plain, theirs, loader), device)
    bounds = limits(arithmetic, device)
    for limit, bound in bounds.items():
        things[limit] = finished(functools.partial(repeated, bound.run, steps), device)
    times = turns.in_turns(things, given.repeats)
    print(f"{name}, {MODEL.name}, batch {BATCH}, {given.threads} threads, {device}, {arithmetic}")
    print(f"{'ms a step':20} {'median':>8} {'lowest':>8} {'highest':>8} {'times faster':>13} {'to fedavg':>10}")
    cases = {}
    for method in CLIENTS:
        faster = turns.ratio(times, f"{method} plain", method)
        cost = {kind: turns.ratio(times, method + kind, "fedavg" + kind) for kind in ("", " plain")}
        cases[method] = {"ratio": faster, "to_fedavg": cost[""], "plain_to_fedavg": cost[" plain"]}
        for kind in ("", " plain"):
            t = times[method + kind]
            row = [1000 * value / steps for value in (t.median, *t.spread)]
            cases[method]["plain_ms" if kind else "ms"] = row[0]
            shown = "" if kind else f"{faster:.2f}"
            print(f"{method + kind:20} {row[0]:8.1f} {row[1]:8.1f} {row[2]:8.1f} {shown:>13} {cost[kind]:10.2f}")
    above = turns.ratio(times, "fedavg", PRODUCTS)
    rates = {limit: bound.flops * steps / times[limit].median / 1e9 for limit, bound in bounds.items()}
    alone_ms = 1000 * times[PRODUCTS].median / steps
    print(
        f"convolutions and products alone: {alone_ms:.1f} ms a step, {rates[PRODUCTS]:.0f} GFLOP/s (square matrices "
        f"{rates[SQUARE]:.0f}); FedAvg's step takes {above:.2f} times that, aimed at {ABOVE}; no loop can be more than "
        f"{turns.ratio(times, 'fedavg plain', PRODUCTS):.2f} times faster than the plain one"
    )
    print(
        json.dumps({
            "name": "loop", "ratio": above, "target": ABOVE, "ok": above <= ABOVE, "medians": cases,
            "times_faster": cases["fedavg"]["ratio"], "arithmetic": arithmetic, "products_ms": alone_ms,
            "gflops": rates, "images": name, "threads": given.threads, "device": str(device),
            "machine": machine.describe(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()

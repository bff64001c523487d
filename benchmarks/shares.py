"""Where the processor time of a round goes when its arithmetic is small: shares by part, and a flame graph.

A run of the inline engine in this process, without workers. A timer of processor time interrupts it a thousand times
a second, and what it is doing then is counted, so other load on the machine changes little. The part is that of the
innermost of our files. What comes before the first round and after the last one counts as start and end.

Run: python benchmarks/shares.py [--nodes 10] [--rounds 20] [--set "model.name=cnn_bn"] [--svg FILE]
"""

import argparse
import collections
import contextlib
import html
import io
import json
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import machine

ROOT = Path(__file__).resolve().parents[1]
EVERY = 0.001  # seconds of processor time between two samples
SMALL = "allocation.share=0.02 train.epochs=1 model.name=cnn"  # a few images a node, the smallest network
#: Parts by what a file's path begins with; the first that fits the innermost frame of ours counts.
PARTS = (
    ("checks", ("strategies/fedshift_strategies/federation/checks", "fedshift_app/node/requests",
    "fedshift_app/node/pins",
                "strategies/fedshift_strategies/federation/updates", "strategies/fedshift_strategies/contributions",
                "fedshift_core/limits")),
    ("configuration", ("fedshift_app/config", "fedshift_core/registry", "fedshift_core/extensions")),
    ("messages", ("fedshift_core/wire", "strategies/fedshift_strategies/federation/post", "fedshift/engine",
    "fedshift_app/flower")),
    ("checkpoints and lines", ("fedshift_app/run", "fedshift_core/atomic_io", "fedshift_app/node/state_store")),
    ("images", ("datasets", "clients/fedshift_clients/images")),
    ("training and scores", ("clients",)),
    ("server", ("strategies", "fedshift_core")),
    ("node", ("fedshift_app/client_app", "fedshift_app/node")),
)  # fmt: skip
OTHER, START = "other", "start and end"
LOOP = "strategy.py:Strategy.start"  # the function of all rounds, Flower's
WIDTH, ROW, LEAST = 1200, 16, 0.003  # of the flame graph: pixels, and the least share that is drawn


class Sampler:
    """Counts stacks of this process by processor time."""

    def __init__(self) -> None:
        self.stacks: collections.Counter[tuple[str, ...]] = collections.Counter()

    def _take(self, _signal: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            code = frame.f_code
            stack.append(f"{_short(code.co_filename)}:{code.co_qualname}")
            frame = frame.f_back
        self.stacks[tuple(reversed(stack))] += 1

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Count until the block is left."""
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _short(name: str) -> str:
    """Return a file's path from the checkout, or from the folder of packages."""
    path = name.removeprefix(f"{ROOT}{os.sep}")
    return path.rpartition("site-packages/")[2].removeprefix("/")


def part_of(stack: tuple[str, ...]) -> str:
    """Return the part of a round that a stack belongs to."""
    if not any(frame.endswith(LOOP) for frame in stack) or any("importlib._bootstrap" in frame for frame in stack):
        return START
    for frame in reversed(stack):
        for part, places in PARTS:
            if frame.startswith(places):
                return part
    return OTHER


def flame(stacks: collections.Counter[tuple[str, ...]], title: str) -> str:
    """Return a flame graph as SVG: the width of a box is its share, its title has name and share."""
    total, boxes = sum(stacks.values()), []
    level: list[tuple[tuple[str, ...], float, int]] = [((), 0.0, total)]
    depth = 0
    while level:
        below = []
        for prefix, left, _ in level:
            counts: collections.Counter[str] = collections.Counter()
            for stack, count in stacks.items():
                if len(stack) > depth and stack[:depth] == prefix:
                    counts[stack[depth]] += count
            for name, count in sorted(counts.items()):
                if count / total >= LEAST:
                    boxes.append((depth, left, count, name))
                    below.append(((*prefix, name), left, count))
                left += count
        level, depth = below, depth + 1
    height = ROW * (depth + 1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="monospace" '
        f'font-size="10"><text x="4" y="{height - 4}">{html.escape(title)}</text>'
    ]
    for row, left, count, name in boxes:
        x, width = WIDTH * left / total, WIDTH * count / total
        label = html.escape(name.rpartition(":")[2][: int(width / 6.2)])
        hue = sum(name.partition("/")[0].encode()) * 47 % 360
        lines.append(
            f'<g><title>{html.escape(name)} {100 * count / total:.1f} %</title><rect x="{x:.1f}" y="{row * ROW}" '
            f'width="{width:.1f}" height="{ROW - 1}" fill="hsl({hue},60%,75%)"/>'
            f'<text x="{x + 2:.1f}" y="{row * ROW + 11}">{label}</text></g>'
        )
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    """Run, print shares and, last, one JSON object."""
    parser = argparse.ArgumentParser(description="Where the processor time of a round goes.")
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", default="", help="further settings, dotted")
    parser.add_argument("--svg", type=Path, help="a flame graph to write")
    parser.add_argument("--top", type=int, default=0, help="so many functions by their own time and what they call")
    given = parser.parse_args()
    os.environ["FEDSHIFT_WORKERS"] = "1"
    sampler, started = Sampler(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, sampler.on(), contextlib.redirect_stdout(io.StringIO()):
        from fedshift.run.launch import runner

        flat = {
            "experiment": "handwritten", "output-dir": folder, "rounds": given.rounds, "set": f"{SMALL} {given.set}",
        }  # fmt: skip
        runner.run_inline(flat, given.nodes)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = sum(sampler.stacks.values())
    seconds = (usage.ru_utime + usage.ru_stime) / total
    parts: collections.Counter[str] = collections.Counter()
    for stack, count in sampler.stacks.items():
        parts[part_of(stack)] += count
    in_rounds = total - parts[START]
    a_round = in_rounds * seconds / given.rounds
    print(f"{given.nodes} nodes, {given.rounds} rounds, {SMALL} {given.set}")
    print(f"a round {1000 * a_round:.0f} ms of processor time; start and end {parts.pop(START) * seconds:.1f} s")
    for part, count in parts.most_common():
        print(f"{part:24} {100 * count / in_rounds:5.1f} %  {1000 * count * seconds / given.rounds:7.2f} ms")
    if given.top:
        inside: collections.Counter[str] = collections.Counter()
        for stack, count in sampler.stacks.items():
            if part_of(stack) != START:
                inside.update(dict.fromkeys(stack, count))
        for name, count in inside.most_common(given.top):
            print(f"{100 * count / in_rounds:5.1f} %  {name}")
    if given.svg:
        rounds = collections.Counter({s: n for s, n in sampler.stacks.items() if part_of(s) != START})
        cut: collections.Counter[tuple[str, ...]] = collections.Counter()
        for stack, count in rounds.items():
            at = next(i for i, frame in enumerate(stack) if frame.endswith(LOOP))
            cut[stack[at:]] += count
        given.svg.write_text(flame(cut, f"python benchmarks/shares.py --nodes {given.nodes} --rounds {given.rounds}"))
    shares = {part: count / in_rounds for part, count in parts.items()}
    print(
        json.dumps({
            "name": "shares", "nodes": given.nodes, "rounds": given.rounds, "round": a_round, "shares": shares,
            "wall": time.perf_counter() - started, "machine": machine.describe(),
        })
    )  # fmt: skip


if __name__ == "__main__":
    main()

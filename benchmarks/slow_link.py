"""A slow and lossy line between this machine and a network namespace, where the kernel has no netem.

Two TUN devices are its ends. A process carries each IP packet from the one to the other after half of the round trip,
and drops some: delay and loss are real for the kernel's TCP, which sends again and slows down as on a long line. A
forwarder on each side joins it to 127.0.0.1, as the SuperLink listens there alone. It takes root and Linux.
"""

import asyncio
import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEAR, FAR = "10.213.77.1", "10.213.77.2"  # the two ends
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500
MOST_WAITING = 4000  # packets on the line in one direction; more are dropped, as by a router


def open_tun(name: str) -> int:
    """Open a TUN device, and make it if there is none."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def carry(near: int, far: int, seconds: float, loss: float) -> None:
    """Carry packets between two devices, each way with a delay and some loss, until this process is ended."""
    waiting: list[tuple[float, int, int, bytes]] = []  # when it arrives, its number, where, what
    rng, number = random.Random(0), 0
    looks = selectors.DefaultSelector()
    for device, other in ((near, far), (far, near)):
        looks.register(device, selectors.EVENT_READ, other)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in looks.select(left):
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(key.fd, 65536)
                    if rng.random() >= loss and len(waiting) < 2 * MOST_WAITING:
                        number += 1
                        heapq.heappush(waiting, (time.monotonic() + seconds, number, key.data, packet))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, device, packet = heapq.heappop(waiting)
            with contextlib.suppress(BlockingIOError, OSError):  # its queue is full: one more is lost
                os.write(device, packet)


async def forward(listen: tuple[str, int], to: tuple[str, int]) -> None:
    """Pass each connection on, until this process is ended."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection(*to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, other_writer), pump(other_reader, writer))

    server = await asyncio.start_server(joined, *listen)
    await server.serve_forever()


@contextlib.contextmanager
def line(port: int, round_trip: float, loss: float) -> Iterator[list[str]]:
    """Yield what a command begins with to run behind the line, where 127.0.0.1:PORT leads to this machine's.

    Args:
        port: Of the SuperLink.
        round_trip: Seconds.
        loss: Share of packets that are lost, each way.
    """
    space, near, far = (f"fs{kind}{os.getpid()}" for kind in "nab")
    started: list[subprocess.Popen[bytes]] = []
    me = [sys.executable, str(Path(__file__).resolve())]
    inside = ["ip", "netns", "exec", space]
    run("ip", "netns", "add", space)
    try:
        started.append(subprocess.Popen([*me, "carry", near, far, str(round_trip / 2), str(loss)]))
        for device, where in ((near, []), (far, inside)):
            until(Path("/sys/class/net", device).exists)
            if where:
                run("ip", "link", "set", device, "netns", space)
                run(*inside, "ip", "link", "set", "lo", "up")
            own, peer = (FAR, NEAR) if where else (NEAR, FAR)
            run(*where, "ip", "addr", "add", own, "peer", peer, "dev", device)
            run(*where, "ip", "link", "set", device, "up", "mtu", str(MTU), "txqueuelen", "5000")
        started.append(subprocess.Popen([*me, "forward", NEAR, str(port), "127.0.0.1", str(port)]))
        started.append(subprocess.Popen([*inside, *me, "forward", "127.0.0.1", str(port), NEAR, str(port)]))
        yield inside
    finally:
        for process in started:
            process.kill()
            process.wait()
        subprocess.call(["ip", "netns", "del", space])


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


def until(there: Callable[[], bool]) -> None:
    """Wait until something is there."""
    deadline = time.monotonic() + 30
    while not there():
        if time.monotonic() > deadline:
            raise SystemExit("the line's devices did not appear")
        time.sleep(0.05)


def main(what: str, *given: str) -> None:
    """Be one of the line's processes."""
    if what == "carry":
        near, far, seconds, loss = given
        carry(open_tun(near), open_tun(far), float(seconds), float(loss))
    else:
        own, own_port, other, other_port = given
        asyncio.run(forward((own, int(own_port)), (other, int(other_port))))


if __name__ == "__main__":
    main(*sys.argv[1:])

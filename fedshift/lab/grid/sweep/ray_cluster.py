"""A cluster of Ray as a sweep sees it: whether it is there, how much room it has, and its tasks."""

import logging
import signal
import warnings
from dataclasses import dataclass
from typing import Any

from fedshift.lab.grid.sweep.ray_address import CLIENT, KEY
from fedshift.lab.grid.sweep.ray_task import Order, Outcome, do
from fedshift_core import log_levels
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shortened


class LostError(Exception):
    """A task ended with its node or its process, or was stopped there; the message says how."""


@dataclass(frozen=True)
class Task:
    """A task that was given to Ray.

    Attributes:
        reference: Ray's.
    """

    reference: Any

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        import ray

        done, _ = ray.wait([self.reference], timeout=0)
        return bool(done)

    def outcome(self) -> Outcome:
        """Return the outcome of a task that has ended.

        Raises:
            LostError: If its node died or was cut off, or its process was ended.
            RuntimeError: If it failed before it could do its run; with one line.
        """
        import ray
        from ray import exceptions

        try:
            result: Outcome = ray.get(self.reference)
        except exceptions.OutOfMemoryError as error:
            raise RuntimeError("its node ran out of memory, and Ray ended it: " + _line(error)) from None
        except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.TaskCancelledError) as error:
            raise LostError(_line(error)) from None
        except exceptions.RayError as error:
            raise RuntimeError(_line(error, last=True)) from None
        return result

    def cancel(self) -> None:
        """Interrupt it; it ends its run in order."""
        import ray

        ray.cancel(self.reference)


class Cluster:
    """A connection to a cluster."""

    def __init__(self, address: str) -> None:
        """Connect.

        Args:
            address: HOST:PORT of its head, on a machine that is one of its nodes; ray://HOST:10001 from any other.

        Raises:
            ConfigError: If no cluster is there, or it does not accept this machine.
        """
        self.address = address
        import ray

        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with warnings.catch_warnings(action="ignore"), log_levels.at_least(logging.CRITICAL, "ray"):
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=None)
        except Exception as error:  # Ray raises many kinds; its own words follow
            more = "" if address.startswith(CLIENT) else f"; from a machine that is no node of it: {CLIENT}HOST:10001"
            raise ConfigError(f"{KEY}: the cluster at {address} cannot be used: {_line(error)}{more}") from None
        finally:
            for number, handler in before.items():  # Ray puts its own there
                signal.signal(number, handler)

    def places(self, cores: int) -> int:
        """Return how many tasks with so many cores the living nodes hold; each with a GPU, where there are any."""
        nodes = _nodes()
        rooms = [int(node.get("CPU", 0)) // cores for node in nodes]
        if any(map(_gpus, nodes)):
            rooms = [min(room, _gpus(node)) for room, node in zip(rooms, nodes, strict=True)]
        return sum(rooms)

    def submit(self, order: Order, cores: int, name: str) -> Task:
        """Give a run to the cluster, which starts it where so many cores are free."""
        import ray

        gpus = int(any(map(_gpus, _nodes())))
        remote = ray.remote(do).options(
            num_cpus=cores, num_gpus=gpus, name=name, max_retries=0, scheduling_strategy="SPREAD"
        )
        return Task(remote.remote(order))

    def close(self) -> None:
        """Leave the cluster, which ends what is left of this sweep there."""
        import ray

        ray.shutdown()


def _nodes() -> list[dict[str, float]]:
    """Return what each living node has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _gpus(resources: dict[str, float]) -> int:
    return int(resources.get("GPU", 0))


def _line(error: Exception, *, last: bool = False) -> str:
    """Return the first or last line of an error's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[-1 if last else 0]) if lines else type(error).__name__

"""The job with BlazeFL's own FedAvg: its server handler, and its pool of threads or of processes.

The third argument says which: ``threads`` or ``processes``. BlazeFL makes the pool anew each round; processes are
forked, as on Linux by default before Python 3.14, so that they need not import PyTorch each time.
"""

import sys
import tempfile
import threading
from concurrent.futures import Future
from multiprocessing.pool import ApplyResult
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgClientConfig,
    FedAvgDownlinkPackage,
    FedAvgProcessPoolClientTrainer,
    FedAvgProcessPoolUplinkPackage,
    FedAvgThreadPoolClientTrainer,
    FedAvgUplinkPackage,
)
from blazefl.core import SHMHandle, deserialize_model, serialize_model
from common import arguments, device, network, pool, processes, score, train

NAME = "network"
job, rounds, clock = arguments()


class Selector:
    """Makes the network."""

    def select_model(self, model_name: str) -> torch.nn.Module:
        """Return the network of the job."""
        return network(job.network)


def trained(cid: int, payload: FedAvgDownlinkPackage) -> FedAvgUplinkPackage:
    """Return what a client sends after local training, by the loop that all frameworks run here."""
    torch.set_num_threads(1)
    model = network(job.network)
    deserialize_model(model, payload.model_parameters)
    x, y = pool().of(cid)
    train(model, x, y, job)
    return FedAvgUplinkPackage(cid, serialize_model(model), len(y))


class Threads(FedAvgThreadPoolClientTrainer):
    """BlazeFL's pool of threads with the job's training."""

    def progress_fn(self, it: list[Future[FedAvgUplinkPackage]]) -> list[Future[FedAvgUplinkPackage]]:
        """Show nothing."""
        return it

    def worker(
        self, cid: int, device: str, payload: FedAvgDownlinkPackage, stop_event: threading.Event
    ) -> FedAvgUplinkPackage:
        """Train a client."""
        return trained(cid, payload)


class Processes(FedAvgProcessPoolClientTrainer):
    """BlazeFL's pool of processes, with shared memory, with the job's training."""

    def progress_fn(self, it: list[ApplyResult[Any]]) -> list[ApplyResult[Any]]:
        """Show nothing."""
        return it

    @staticmethod
    def worker(
        config: FedAvgClientConfig, payload: FedAvgDownlinkPackage, device: str, stop_event: threading.Event, *,
        shm_buffer: FedAvgProcessPoolUplinkPackage | None = None,
    ) -> FedAvgProcessPoolUplinkPackage:  # fmt: skip
        """Train a client and put its weights into shared memory."""
        assert shm_buffer is not None
        assert isinstance(shm_buffer.model_parameters, torch.Tensor)
        done = trained(config.cid, payload)
        shm_buffer.model_parameters.copy_(done.model_parameters)
        return FedAvgProcessPoolUplinkPackage(done.cid, SHMHandle(), done.data_size)


def main() -> None:
    """Run the job as BlazeFL's quickstart does, without scores between the rounds."""
    pool()
    common: dict[str, Any] = {
        "model_selector": Selector(), "model_name": NAME, "dataset": None, "device": str(device()), "seed": 0,
        "num_clients": job.clients, "batch_size": job.batch,
    }  # fmt: skip
    handler = FedAvgBaseServerHandler(global_round=rounds, sample_ratio=job.cohort / job.clients, **common)
    common |= {"epochs": job.epochs, "lr": job.lr, "num_parallels": processes()}
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[3] == "threads":
            trainer: Threads | Processes = Threads(**common)
        else:
            mp.set_start_method("fork")
            trainer = Processes(state_dir=Path(folder), **common)
        clock.now()
        while not handler.if_stop():
            clients = handler.sample_clients()
            trainer.local_process(handler.downlink_package(), clients)
            for package in trainer.uplink_package():
                handler.load(package)
            clock.now()
    score(handler.model)


if __name__ == "__main__":
    main()

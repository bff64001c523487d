"""The same local training in a few processes of plain PyTorch, and nothing else."""

import multiprocessing
from multiprocessing.synchronize import Barrier

import torch
from common import Job, RoundClock, arguments, network, pool, processes, train


def work(share: int, job: Job, rounds: int, clock: RoundClock, begin: Barrier) -> None:
    """Train a process's share of each round's clients."""
    torch.set_num_threads(1)
    model = network(job.network)
    pool()
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for server_round in range(rounds):
        if begin.wait() == 0:
            clock.now()
        for place in range(share, job.cohort, processes()):
            model.load_state_dict(initial)
            train(model, *pool().of((server_round * job.cohort + place) % job.clients), job)
    if begin.wait() == 0:
        clock.now()


if __name__ == "__main__":
    job, rounds, clock = arguments()
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(processes())
    workers = [context.Process(target=work, args=(n, job, rounds, clock, begin)) for n in range(processes())]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

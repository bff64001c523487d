"""The job with Flower as its quickstart has it: FedAvg, a ClientApp, Ray; no FedShift."""

from collections.abc import Iterable

import torch
from common import arguments, device, network, pool, processes, score, train
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

job, rounds, clock = arguments()
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()  # type: ignore[untyped-decorator]
def _train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model = network(job.network)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
    x, y = pool().of(int(context.node_config["partition-id"]))
    metrics = MetricRecord({"train_loss": train(model, x, y, job), "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class Timed(FedAvg):
    """FedAvg that tells the time at the start and after each round."""

    def configure_train(self, server_round: int, *args: object) -> Iterable[Message]:
        """Tell the start of round 1."""
        if server_round == 1:
            clock.now()
        return super().configure_train(server_round, *args)  # type: ignore[arg-type]

    def aggregate_train(self, *args: object) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Tell the end of a round."""
        aggregated = super().aggregate_train(*args)  # type: ignore[arg-type]
        clock.now()
        return aggregated


@server_app.main()  # type: ignore[untyped-decorator]
def _main(grid: Grid, context: Context) -> None:
    strategy = Timed(
        fraction_train=job.cohort / job.clients, fraction_evaluate=0.0, min_evaluate_nodes=0,
        min_available_nodes=job.clients,
    )  # fmt: skip
    model = network(job.network)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=rounds)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    score(model)


if __name__ == "__main__":
    own = {"address": "local", "num_cpus": processes()}  # else it joins a cluster that is noted here, and fails
    gpu = 1 / processes() if device().type == "cuda" else 0.0
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": gpu}, "init_args": own}
    run_simulation(server_app, client_app, num_supernodes=job.clients, backend_config=resources)  # type: ignore[arg-type]

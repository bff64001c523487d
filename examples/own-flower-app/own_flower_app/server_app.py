"""The server: a strategy of FedShift in the place of one of Flower's."""

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedshift_strategies import FedProto
from own_flower_app.task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    strategy = FedProto(fraction_train=float(config["fraction-train"]), prototype_mean="weighted")
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(new_model().state_dict()),
        train_config=ConfigRecord({"lr": float(config["lr"])}),
        num_rounds=int(config["num-server-rounds"]),
    )
    for server_round, metrics in result.evaluate_metrics_clientapp.items():
        print(f"round {server_round}: accuracy {metrics['accuracy']:.3f}")
    print(f"prototypes of {len(strategy.knowledge['labels'])} classes")

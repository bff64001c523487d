"""What a node is: its domain, its images, its client. Worked out anew at each message, cached per process."""

import functools
import os
from pathlib import Path
from typing import Any, get_args

import torch
from flwr.app import Context

from clients.base import ClientSetup, DomainClient
from clients.models import networks
from clients.modules.base import Plugin
from clients.training import precision
from clients.training.settings import ModelConfig, ModelName
from clients.training.workbench import Workbench, keep_freed_memory
from datasets import catalog
from datasets.base import Source
from fedshift_app.config import registry
from fedshift_app.config.resolving import from_json
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.holdings import Place, dealt, own_images, test_images
from fedshift_wire.errors import ConfigError
from fedshift_wire.names import ENGINE, RUN
from fedshift_wire.seeding import torch_seed

SIMULATION = "simulation"
DEPLOYMENT = "deployment"


def place(config: RunConfig, context: Context, engine: str) -> Place:
    """Work out a node's place from what it was started with.

    Raises:
        ConfigError: If ``--node-config`` lacks what the node needs, or a real node is told to be a simulated one.
    """
    given = context.node_config
    partition_id, num_partitions = _integer(given, "partition-id"), _integer(given, "num-partitions")
    # Else the server's words would decide which files of a real node are read and written.
    if engine == SIMULATION and "data-dir" in given:
        raise ConfigError("this node has images of its own (data-dir), it takes no part in a simulation")
    if engine == SIMULATION:
        domain = dealt(config, num_partitions)[partition_id]
        threads = config.train.threads or int(os.environ.get("OMP_NUM_THREADS", "1"))
        return Place(domain, partition_id, num_partitions, config.dataset.source(), True, threads)
    for key in ("domain", "data-dir"):
        if key not in given:
            raise ConfigError(
                f"a node was started without {key!r}: give each SuperNode "
                '--node-config \'domain="NAME" data-dir="/folder/of/its/images"\''
            )
    domain, data_dir = str(given["domain"]), Path(str(given["data-dir"])).expanduser()
    if domain not in config.dataset.domains:
        raise ConfigError(f"node-config: unknown domain {domain!r}; there are {', '.join(config.dataset.domains)}")
    if not data_dir.is_absolute():
        raise ConfigError(f"node-config: data-dir must be an absolute path, found {str(data_dir)!r}")
    threads = config.train.threads or max(_integer(given, "threads"), 0)
    return Place(domain, partition_id, num_partitions, Source(data_dir), False, threads, _network(config, given))


def _network(config: RunConfig, given: Any) -> str:
    """Return the network that a node names for itself, empty if it names none.

    Raises:
        ConfigError: If there is none of that name, or all nodes must have the same.
    """
    name = str(given.get("model", ""))
    if name and name not in get_args(ModelName):
        raise ConfigError(f"node-config: unknown model {name!r}; there are {', '.join(get_args(ModelName))}")
    if name and not config.model.per_node and name != config.model.name:
        raise ConfigError(
            f"node-config: model={name!r}, but this run has one network for all, {config.model.name!r}; "
            "nodes may differ where the experiment sets model-per-node"
        )
    return name


def _integer(given: Any, key: str) -> int:
    value = given.get(key, -1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"node-config: {key} must be a whole number, found {value!r}")
    return value


def make_client(config: RunConfig, where: Place, index: int) -> DomainClient:
    """Build the method's client for this node around a model with the run's initial weights.

    It is the only one of its run in this process: the client before must not be used any more.
    """
    device = precision.default_device()
    if where.threads and device.type == "cpu":
        torch.set_num_threads(where.threads)
    if device.type == "cpu":
        keep_freed_memory()
    network = own_network(config, where)
    setup = ClientSetup(config.seed, index, device, network, config.train, config.images, config.profile)
    client_class = registry.get(config.method["name"]).client_class()
    own = own_images(config, where)
    bench = _bench(config.model_dump_json(), network, device)
    client: DomainClient = client_class(
        model=bench.model,
        setup=setup,
        params=config.node_params(),
        train_set=own.train,
        test_set=lambda domain: test_images(config, where, domain),
        validation_set=own.validation,
        own_test=own.test,
        plugin=plugin(config),
        bench=bench,
    )
    return client


@functools.lru_cache(maxsize=4)
def _bench(config_json: str, network: ModelConfig, device: torch.device) -> Workbench:
    """Return the model of all nodes that this process plays in a run, as far as they have the same network."""
    config = from_json(config_json)
    model = initial_model(config, network).to(device).to(memory_format=torch.channels_last)
    return Workbench(model, device, config.train, config.images)


def own_network(config: RunConfig, where: Place) -> ModelConfig:
    """Return what is said of the model, with the node's own network where nodes differ."""
    per_node = config.model.per_node
    if not per_node:
        return config.model
    turn = max(where.partition_id, 0) % len(per_node)
    return config.model.model_copy(update={"name": where.network or per_node[turn]})


def plugin(config: RunConfig) -> Plugin | None:
    """Return the modules that the model carries, by the configuration or by the method itself."""
    client_class = registry.get(config.method["name"]).client_class()
    chosen: Plugin | None = client_class.plugin(registry.make_plugin(config.modules), config.node_params())
    return chosen


def initial_model(config: RunConfig, own: ModelConfig | None = None) -> networks.SplitModel:
    """Build the run's model, or a node's own, with its initial weights, which depend on the seed alone."""
    spec = catalog.get(config.dataset.name)
    plan = networks.Blueprint(
        own or config.model, len(spec.classes), config.dataset.size or spec.size,
        torch_seed(config.seed, "initial-weights"),
    )  # fmt: skip
    client_class = registry.get(config.method["name"]).client_class()
    model: networks.SplitModel = client_class.build_model(plan, config.node_params())
    carried = plugin(config)
    return model if carried is None else carried.wrap(model, plan)


@functools.lru_cache(maxsize=4)
def read_config(run_json: str) -> RunConfig:
    """Read the server's configuration, once per process and run."""
    return from_json(run_json)


def open_message(config_record: Any, context: Context) -> tuple[RunConfig, Place]:
    """Return the run's configuration and the node's place from a message's ``config`` record.

    Raises:
        ConfigError: If the node lacks what it needs.
    """
    config = read_config(str(config_record[RUN]))
    return config, place(config, context, str(config_record[ENGINE]))

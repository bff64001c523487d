"""What a node is: its domain, its images, its client. Worked out anew at each message, cached per process."""

import functools
import inspect
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context

from fedshift_app.config import registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.config.validating import from_json
from fedshift_app.node import copies, given_features, holdings, state_folder
from fedshift_app.node.data import Place, own_images, public_set, test_images
from fedshift_clients import features
from fedshift_clients.adapt.base import Adaptation
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.base import ClientSetup, DomainClient
from fedshift_clients.models import networks
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.freezing import freeze
from fedshift_clients.modules.base import AllModules
from fedshift_clients.modules.catalog import MODULES
from fedshift_clients.training import precision
from fedshift_clients.training.given_features import GivenFeatures
from fedshift_clients.training.memory import keep_freed_memory
from fedshift_clients.training.model_cache import Workbench
from fedshift_clients.training.precomputed import FrozenFeatures
from fedshift_clients.training.settings import ModelConfig
from fedshift_core import dp_accounting, extensions, same_names
from fedshift_core.dp_accounting import Spending
from fedshift_core.env import THREADS
from fedshift_core.errors import ConfigError, RequestError
from fedshift_core.registry import imported, name_and_params
from fedshift_core.seeding import torch_seed
from fedshift_core.spelling import meant
from fedshift_core.wire.names import DEPLOYMENT as DEPLOYMENT
from fedshift_core.wire.names import ENGINE, RUN
from fedshift_core.wire.names import SIMULATION as SIMULATION


def place(config: RunConfig, context: Context, engine: str) -> Place:
    """Work out a node's place from what it was started with.

    Raises:
        ConfigError: If ``--node-config`` lacks what the node needs.
        RequestError: If a real node is to be a simulated one.
    """
    given = context.node_config
    partition_id, num_partitions = _integer(given, "partition-id"), _integer(given, "num-partitions")
    # Else the server's words would decide which files of a real node are read and written.
    if engine == SIMULATION and given.keys() & {"data-dir", "domain", "policy"}:
        raise RequestError("this node has images of its own (data-dir, domain), it takes no part in a simulation")
    if engine == SIMULATION:
        domain = holdings.dealt(config, num_partitions)[partition_id]
        threads = config.train.threads or int(os.environ.get(THREADS, "1"))  # not Ray's, which go by the machine
        return Place(domain, partition_id, num_partitions, config.dataset.source(), True, threads)
    for key in ("domain", "data-dir"):
        if key not in given:
            raise ConfigError(
                f"a node was started without {key!r}: give each SuperNode "
                '--node-config \'domain="NAME" data-dir="/folder/of/its/images"\''
            )
    unseen = config.allocation.held_out if config.rounds else ()  # without rounds nothing is trained: a test
    domains = _domains(str(given["domain"]), config.dataset.domains, unseen)
    data_dir = Path(str(given["data-dir"])).expanduser()
    if not data_dir.is_absolute():
        raise ConfigError(f"node-config: data-dir must be an absolute path, found {str(data_dir)!r}")
    threads = config.train.threads or max(_integer(given, "threads"), 0)
    return Place(
        domains[0],
        partition_id,
        num_partitions,
        config.dataset.source(data_dir),
        False,
        threads,
        _network(config, given),
        domains[1:],
    )


def _domains(given: str, known: Sequence[str], unseen: Collection[str]) -> tuple[str, ...]:
    """Return the domains of a real node as the run spells them, home first.

    Raises:
        ConfigError: If one is unknown, empty, named twice, or held out (``unseen``).
    """
    domains: list[str] = []
    names = state_folder.named_domains(given) if "," in given else (given,)
    for name in names:
        number = same_names.place(name, known)
        if number is None or any(letter < " " for letter in name):  # no hand types a control character
            raise ConfigError(f"node-config: unknown domain {name!r}; there are {', '.join(known)}{meant(name, known)}")
        if known[number] in domains:
            raise ConfigError(f"node-config: domain={given!r} names {known[number]!r} twice")
        domains.append(known[number])
    if held_out := [domain for domain in domains if domain in unseen]:
        raise ConfigError(
            f"node-config: domain {held_out[0]!r} is held out in this run (allocation.held_out), so no node trains on "
            "its images; leave the node out"
        )
    return tuple(domains)


def _network(config: RunConfig, given: Any) -> str:
    """Return the network that a node names for itself, empty if it names none.

    Raises:
        ConfigError: If there is none of that name, or all nodes must have the same.
    """
    name = str(given.get("model", ""))
    if name:
        NETWORKS.named(name, "node-config")
    if name and not config.model.per_node and name != config.model.name:
        raise ConfigError(
            f"node-config: model={name!r}, but this run has one network for all, {config.model.name!r}; "
            "nodes may differ where the experiment sets model.per_node"
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

    Args:
        config: The run's configuration.
        where: The node.
        index: Its place in the order of the federation.
    """
    device = precision.default_device()
    if where.threads and device.type == "cpu":
        torch.set_num_threads(where.threads)
    if device.type == "cpu":
        keep_freed_memory()
    network = own_network(config, where)
    client_class = config.declared.client_class()
    own = own_images(config, where)
    if not where.shared:
        copies.warn_node(config.dataset, where.domains, where.source)
    bench = _bench(config, network, where if config.dataset.features else None)
    client: DomainClient = client_class(
        model=bench.model,
        setup=_client_setup(config, where, index, network, device),
        params=config.params(),
        train_set=own.train,
        test_set=lambda domain: test_images(config, where, domain),
        own_sets=own.sets,
        modules=modules(config),
        adaptation=adaptation(config),
        bench=bench,
        features=features.of(config),
        public_set=(lambda: public_set(config, where).images) if client_class.uses_public else None,
    )
    client.features.attach(client, config)
    return client


def _client_setup(
    config: RunConfig, where: Place, index: int, network: ModelConfig, device: torch.device
) -> ClientSetup:
    """Return who a client is and how it trains, with the precision of products for its own device."""
    of_products, _ = precision.parts(precision.arithmetic(config.train, device))
    train = config.train.model_copy(update={"precision": of_products, "arithmetic": ""})
    return ClientSetup(
        config.seed,
        index,
        device,
        network,
        train,
        config.images,
        config.rounds,
        where.least_images,
        secret=where.guard.secret if where.guard else None,
        domain=where.domain,
        bn_order=config.evaluate.bn_order,
    )


@extensions.cleared_on_change
@functools.lru_cache(maxsize=4)
def _bench(config: RunConfig, network: ModelConfig, where: Place | None) -> Workbench:
    """Return the model of all nodes with the same network that this process plays in a run."""
    device = precision.default_device()
    _, layout = precision.parts(precision.arithmetic(config.train, device))
    model = initial_model(config, network).to(device).to(memory_format=layout)
    bench = Workbench(model, device, config.train, config.images, layout)
    if network.precompute:
        bench.frozen = frozen_features(config, network, model, device, where)
    return bench


def frozen_features(
    config: RunConfig,
    network: ModelConfig,
    model: networks.SplitModel,
    device: torch.device,
    where: Place | None = None,
) -> FrozenFeatures:
    """Return what computes the frozen beginning of a model once for each image; the model goes on from that.

    Args:
        config: The run.
        network: What is said of the model.
        model: The model.
        device: Where it computes.
        where: The node, with ``dataset.features``; None for all nodes of a simulation.

    Raises:
        ConfigError: If nothing of it can be computed once.
        DataError: If the file of ``dataset.features`` cannot be used.
    """
    if device.type == "cpu":
        keep_freed_memory()  # also where no client is made: before round 1
    of_products, layout = precision.parts(precision.arithmetic(config.train, device))
    model = model.to(device).to(memory_format=layout)
    if config.dataset.features:
        given, by_mark = given_features.of(config, where)
        return GivenFeatures(model, network, config.images, layout, given, by_mark)
    return FrozenFeatures(
        model, network, config.images, of_products, layout, config.dataset.pixels, config.train.threads
    )


def own_network(config: RunConfig, where: Place) -> ModelConfig:
    """Return what is said of the model, with the node's own network where nodes differ.

    Raises:
        ConfigError: If networks go by the place of a node, and this one has none.
    """
    per_node = config.model.per_node
    if not per_node:
        return config.model
    if not where.network and where.partition_id < 0 and len(set(per_node)) > 1:
        raise ConfigError(
            "model.per_node gives nodes networks by their place, and this node was started without one: give it "
            f"'partition-id=N', or 'model=\"NAME\"' with one of {', '.join(dict.fromkeys(per_node))} (--node-config)"
        )
    dealt = config.model.network_at(max(where.partition_id, 0))
    return config.model.model_copy(update={"name": where.network or dealt})


def modules(config: RunConfig) -> AllModules:
    """Return the modules in the model."""
    named = map(name_and_params, config.modules)
    return AllModules(
        tuple(imported(MODULES[name].modules)(registry.modules_params(name, given)) for name, given in named)
    )


def adaptation(config: RunConfig) -> Adaptation | None:
    """Return what is done before test images are scored; None for nothing."""
    name = str(config.adapt["name"])
    if name == registry.NONE:
        return None
    made: Adaptation = imported(ADAPTATIONS[name].adaptation)(registry.adapt_params(config.adapt))
    return made


def is_personal(config: RunConfig, model: networks.SplitModel) -> bool:
    """Tell whether each node is scored with a model of its own."""
    return _scores_own(config, model) or adaptation(config) is not None


def _scores_own(config: RunConfig, model: networks.SplitModel) -> bool:
    personal = config.declared.client_class().personal(model, config.model, config.params())
    return bool(personal or modules(config).personal)


def has_own_parts(config: RunConfig, model: networks.SplitModel) -> bool:
    """Tell whether what a node scores has parts that only its own local training changes."""
    kept = config.declared.client_class().kept_names(model, config.model, config.params(), modules(config))
    return bool(_scores_own(config, model) and kept)


def spending_of(config: RunConfig, images: int) -> Spending:
    """Return what a node with so many training images spends with ``privacy.name=dp-sgd``."""
    train, prototypes = config.train, config.declared.client_class().sends_prototypes
    return dp_accounting.spending(
        config.privacy, images, train.batch_size, train.epochs, config.rounds, prototypes=prototypes
    )


def scores_images_alone(config: RunConfig) -> bool:
    """Tell whether the score of a test image depends on no other image."""
    adapts = adaptation(config)
    return config.declared.client_class().scores_images_alone and (adapts is None or adapts.scores_images_alone)


def initial_model(config: RunConfig, own: ModelConfig | None = None) -> networks.SplitModel:
    """Build the run's model, or a node's own, with weights that depend on the seed alone.

    ``model.weights`` is not read here: nodes do not have the file (``fedshift_app.run.initial_model``).

    Raises:
        ConfigError: If the method, the network, the modules and what is frozen do not go together.
    """
    seed, classes = torch_seed(config.seed, "initial-weights"), config.dataset.known().classes
    plan = networks.Blueprint(own or config.model, len(classes), config.dataset.pixels, seed)
    client_class = config.declared.client_class()
    _check_signatures(client_class)
    model: networks.SplitModel = client_class.build_model(plan, config.params())
    if config.model.bn == "group":  # before the modules are put in, which may cut the encoder up; then they themselves
        model = networks.with_group_norm(model, config.model.groups)
    model = modules(config).wrap(model, plan)
    if config.model.bn == "group":
        model = networks.with_group_norm(model, config.model.groups)
    if config.model.freeze != "none":
        freeze(model, config.model.freeze, plan.config.name)
    adapts = adaptation(config)
    if adapts is not None:
        adapts.check_model(model, plan.config)
    return model


def _check_signatures(client_class: type[DomainClient]) -> None:
    """Refuse hooks of the model that cannot be called with what every method's are.

    Raises:
        ConfigError: With the hook.
    """
    parts = ("model", "config", "params")
    for hook, given in (("build_model", ("plan", "params")), ("private", parts), ("personal", parts)):
        try:
            inspect.signature(getattr(client_class, hook)).bind(*given)
        except TypeError as error:
            raise ConfigError(
                f"{client_class.__name__}.{hook}: {error}; expected a class method {hook}(cls, {', '.join(given)})"
            ) from None


@extensions.cleared_on_change
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

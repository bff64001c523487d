"""Builds what a run starts from: the initial weights, the federation's settings and the strategy."""

from collections.abc import Mapping
from itertools import product

import torch
from flwr.app import ArrayRecord
from rich.filesize import decimal

from fedshift_app.config import registry
from fedshift_app.config.cross_checks import check_noise
from fedshift_app.config.sections import RunConfig
from fedshift_app.features.privacy.model import check_shared
from fedshift_app.node import holdings, setup
from fedshift_app.run import initial_model, precomputing
from fedshift_app.run.checkpoints import Checkpoint
from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.modules.catalog import MODULES
from fedshift_clients.training.statistics import free_layers, layers
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.features import on_in
from fedshift_core.limits import some
from fedshift_core.params import Params
from fedshift_core.plural import plural
from fedshift_core.registry import Method, imported
from fedshift_core.wire.names import AVERAGED, BN_MEAN, CE, OWN, RETAKEN
from fedshift_core.wire.records import encode
from fedshift_strategies.base import DomainStrategy, Observer
from fedshift_strategies.federation.context import Engine, ModelFacts, RunContext

MOST_NAMED = 20  # nodes of several domains, or domains
SIMULATED_TIMEOUT = 600.0  # seconds to wait for simulated nodes at least


def prepare(
    config: RunConfig, engine: str, initial: initial_model.InitialModel | None = None, start: Arrays | None = None
) -> tuple[ArrayRecord, RunContext]:
    """Return the initial shared weights and what the strategy must know of the run.

    Args:
        config: The run.
        engine: Where it runs.
        initial: The initial model; by default random values or the file that the run names.
        start: The arrays that a continued run sent to its nodes once; by default taken from ``initial``.

    Raises:
        ConfigError: If the method, the model and other settings contradict each other.
    """
    if engine == setup.DEPLOYMENT:
        if config.plugins:
            raise ConfigError(
                f"plugins: {', '.join(config.plugins)} work in simulation only; for a deployment install them as a "
                "package on the server and on every node (docs/guide/own-method.md)"
            )
        check_noise(config)
    initial = initial or initial_model.begin(config)[1]
    model = initial.model
    client_class = config.declared.client_class()
    _check_trains(config, model, client_class)
    private = client_class.kept_names(model, config.model, config.params(), setup.modules(config))
    precomputing.check(config, model)
    state = {name: t.numpy() for name, t in model.state_dict().items()}
    sent = {name: array for name, array in state.items() if name not in private}
    frozen = model.frozen - private
    shared = {name: array for name, array in sent.items() if name not in frozen}  # what travels each round
    if start is None:  # a run that goes on was checked when it began
        _check_shared(config, shared)
        start = {name: array for name, array in state.items() if name in frozen | (private & initial.from_file)}
    _check_networks(config, model, client_class, shared)
    batchnorms = tuple(name for name in layers(model) if f"{name}.{BN_MEAN}" in shared)
    _check_statistics(config, batchnorms, frozen=bool(layers(model)) and not free_layers(model))
    facts = ModelFacts(
        num_classes=len(config.dataset.known().classes),
        feature_dim=model.feature_dim,
        personal=setup.is_personal(config, model),
        own_parts=setup.has_own_parts(config, model),
        scores_images_alone=setup.scores_images_alone(config),
        terms=_terms(config),
        scores=_scores(config),
        batchnorms=batchnorms,
        buffers=tuple(name for name, _ in model.named_buffers() if name in shared),
        start=start,
        frozen=frozen,
        knowledge=initial.knowledge,
        prototypes=client_class.sends_prototypes,
    )
    return encode(sent), RunContext(config, facts, _engine(config, engine), config.model_dump_json())


def _engine(config: RunConfig, engine: str) -> Engine:
    """Return where the nodes are. No simulated one is absent: one that does not answer runs on a busy machine."""
    federation = config.federation
    if engine == setup.DEPLOYMENT:
        return Engine(engine, federation.min_nodes, federation.node_timeout)
    timeout = max(federation.node_timeout, SIMULATED_TIMEOUT)
    return Engine(setup.SIMULATION, node_timeout=timeout, queues=engine == setup.SIMULATION)


def _check_trains(config: RunConfig, model: SplitModel, client_class: type[DomainClient]) -> None:
    """Refuse to freeze all that the method trains, at any time.

    Raises:
        ConfigError: With what is frozen.
    """
    if not _learns(model):
        raise ConfigError(f"model.freeze={config.model.freeze}: no parameter is left to train")
    if client_class.trains_encoder_alone(config.params()) and not _learns(model.encoder):
        raise ConfigError(
            f"model.freeze={config.model.freeze}: the method {config.method['name']!r}, as it is configured, trains "
            "the encoder alone at times, and nothing of it trains; model.projection=256 leaves a layer of it to train"
        )


def _learns(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def frozen_line(config: RunConfig, federation: RunContext, initial: ArrayRecord) -> str:
    """Return a line that says what is frozen, what is sent once and what travels each round. Empty if nothing is."""
    start, frozen = federation.model.start, federation.model.frozen
    if not start:
        return ""
    once = sum(array.nbytes for array in start.values())
    each = sum(len(array.data) for name, array in initial.items() if name not in frozen)
    return (
        f"model.freeze={config.model.freeze}: {plural(len(start), 'array')} that are frozen or private, "
        f"{decimal(once)}, are sent to each node once; each round the weights are {decimal(each)} each way"
    )


def unheld_line(config: RunConfig, num_nodes: int) -> str:
    """Return a warning of domains that no simulated node holds though none is held out; empty where there are none."""
    allocation, domains = config.allocation, config.dataset.domains
    unheld = [domain for domain in holdings.unheld(config, num_nodes) if domain not in allocation.held_out]
    if not unheld or not config.rounds:
        return ""
    return (
        f"no node holds {some(unheld, MOST_NAMED)}: nothing trains on such images, but their scores count in averages; "
        f"nodes={len(allocation.training_domains(domains))} is enough for all domains, or set allocation.counts; "
        f"'allocation.held_out=[{','.join([*allocation.held_out, *unheld])}]' says that this is meant"
    )


def _check_shared(config: RunConfig, shared: Mapping[str, object]) -> None:
    """Refuse settings that need shared weights where none travel.

    Raises:
        ConfigError: With the key.
    """
    uses = [
        feature.setting(config) for feature, _ in on_in(config) if "averages" in (need.fact for need in feature.needs)
    ]
    if (rule := config.aggregation.weights) != "method":
        uses.append(f"aggregation.weights={rule}")
    if uses and not shared:
        raise ConfigError(
            f"{uses[0]} needs averaged weights, but the method {config.method['name']!r}, as it is configured, sends "
            "none"
        )


def _terms(config: RunConfig) -> tuple[str, ...]:
    """Return the names of all loss terms that the run's nodes may report."""
    methods = methods_of(config)
    modules = (MODULES[str(entry["name"])] for entry in config.modules)
    terms = [*(m.terms + m.other_terms for m in methods), *(entry.terms for entry in modules)]
    return tuple(dict.fromkeys((CE, *(name for names in terms for name in names))))


def _scores(config: RunConfig) -> tuple[str, ...]:
    """Return the names of all further scores that the run's nodes may report."""
    adaptation = setup.adaptation(config)
    names = [name for method in methods_of(config) for name in method.scores]
    return tuple(dict.fromkeys(names if adaptation is None else (*names, adaptation.before)))


def _check_statistics(config: RunConfig, batchnorms: tuple[str, ...], frozen: bool) -> None:
    """Refuse re-estimated statistics of BatchNorm where they are needed and none travel, and any where all is frozen.

    Raises:
        ConfigError: With the key.
    """
    ways = config.evaluate.bn
    if frozen and ways != (AVERAGED,):
        raise ConfigError(
            f"evaluate.bn=[{','.join(ways)}]: model.freeze={config.model.freeze} freezes all BatchNorm of "
            f"{config.model.name}, statistics included; allowed is [{AVERAGED}]"
        )
    if batchnorms or RETAKEN not in (*ways, config.model.bn_keep):
        return
    reason = f"with {config.method['name']!r} and model.bn={config.model.bn} no BatchNorm statistics travel"
    if config.model.bn_keep == RETAKEN:
        raise ConfigError(f"model.bn_keep=retaken: {reason}; allowed is averaged")
    if ways[0] == RETAKEN:
        raise ConfigError(f"evaluate.bn: its first entry is retaken, but {reason}; put {AVERAGED} or {OWN} first")


def methods_of(config: RunConfig) -> list[Method]:
    """Return the run's method and, for a recipe, the method that it is based on."""
    method = config.declared
    return [method, registry.get(method.of)] if method.of else [method]


def strategy_of(config: RunConfig, federation: RunContext, observer: Observer) -> DomainStrategy:
    """Return the method's strategy before its first round."""
    strategy: DomainStrategy = config.declared.strategy_class()(federation, config.params(), observer)
    return strategy


def restored(strategy: DomainStrategy, initial: ArrayRecord, checkpoint: Checkpoint) -> ArrayRecord:
    """Restore a strategy from a checkpoint and return the shared weights of that round.

    Raises:
        ConfigError: If they do not fit the model that this version builds.
    """
    weights = encode({**checkpoint.weights, **checkpoint.averaged})
    kept, built = ([(name, a.dtype, tuple(a.shape)) for name, a in each.items()] for each in (weights, initial))
    if kept != built:
        raise ConfigError("resume: the weights of the checkpoint do not fit the model that this version builds")
    restore(strategy, checkpoint)
    return weights


def restore(strategy: DomainStrategy, checkpoint: Checkpoint) -> None:
    """Restore a strategy from a checkpoint."""
    strategy.resume(checkpoint.server_round, checkpoint.knowledge, checkpoint.state, checkpoint.moments)


def _check_networks(config: RunConfig, model: SplitModel, client_class: type[DomainClient], shared: Arrays) -> None:
    """Refuse noise on weights that do not travel, and networks that a run cannot be made of.

    A feature refuses them, such as those without gradients of single images (``dp-sgd``), or their features have
    different widths.

    Raises:
        ConfigError: With the key, or the names of their modules, or the width of each.
    """
    check_shared(config, shared)
    models = {config.model.name: model}
    checks = [imported(feature.network) for feature, _ in on_in(config) if feature.network]
    if checks or client_class.equal_features:
        own = {name: config.model.model_copy(update={"name": name}) for name in config.model.per_node}
        models |= {name: setup.initial_model(config, network) for name, network in own.items() if name not in models}
    for check, each in product(checks, models.values()):
        check(config, each)
    if client_class.equal_features and len({each.feature_dim for each in models.values()}) > 1:
        listed = ", ".join(f"{name} {each.feature_dim}" for name, each in models.items())
        raise ConfigError(
            f"model.per_node: features must be equally wide on all nodes (and as in model.name): {listed}"
        )


def idle_terms_line(config: RunConfig, model: SplitModel) -> str:
    """Return a line about the method's terms that have no gradient; an empty text if all have one.

    Args:
        config: The run.
        model: Its model, with what is frozen.
    """
    params = config.params()
    idle = [term for m in methods_of(config) for term in m.of_features if _is_on(params, str(m.switches.get(term, "")))]
    # Modules have terms of their own, and may change the way to the features.
    if not idle or not model.frozen or config.modules or _learns(model.encoder):
        return ""
    return (
        f"model.freeze={config.model.freeze} without model.projection: features never change, so these terms of "
        f"{config.method['name']} have no gradient and change nothing: {', '.join(idle)}; model.projection=256 puts a "
        "trainable layer there"
    )


def _is_on(params: Params, switches: str) -> bool:
    """Tell whether all parameters are on that a term needs."""
    pairs = (each.partition("=") for each in switches.split())
    return all(str(getattr(params, name)) == wanted if wanted else getattr(params, name) for name, _, wanted in pairs)

"""What a run starts from: the initial weights, what the strategy must know, and the strategy itself."""

from collections.abc import Mapping, Sequence

from flwr.app import ArrayRecord

from clients.modules.catalog import MODULES
from clients.training.statistics import layers
from fedshift_app.config import privacy, registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run import initial_model
from fedshift_app.run.checkpoints import Checkpoint
from fedshift_app.run.disk_space import size
from fedshift_app.run.initial_model import Beginning
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.registry import Method
from fedshift_core.wire.names import AVERAGED, BN_MEAN, CE, OWN, RETAKEN
from fedshift_core.wire.records import encode
from strategies.base import DomainStrategy, Observer
from strategies.federation.context import Federation
from strategies.federation.roster import Node

SIMULATED_TIMEOUT = 600.0  # seconds to wait for simulated nodes at least


def prepare(
    config: RunConfig, engine: str, beginning: Beginning | None = None, start: Arrays | None = None
) -> tuple[ArrayRecord, Federation]:
    """Return the initial shared weights and what the strategy must know.

    Args:
        config: The run.
        engine: Where it runs.
        beginning: What its network begins with; by default as the run says, out of a file where it names one.
        start: What its nodes began from, of a run that goes on; by default out of ``beginning``.

    Raises:
        ConfigError: If the method, the model and the rest do not go together.
    """
    deployed = engine == setup.DEPLOYMENT
    if deployed and config.plugins:
        raise ConfigError(
            f"plugins: {', '.join(config.plugins)} serve in simulation only; for a deployment install them as a "
            "package on the server and on every node (docs/guide/own-method.md)"
        )
    if deployed:
        setup.check_noise(config)
    begun = beginning or initial_model.begin(config)[1]
    model = begun.model
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"model.freeze={config.model.freeze}: nothing is left that trains")
    client_class = registry.get(config.method["name"]).client_class()
    private = client_class.kept_names(model, config.model, config.node_params(), setup.modules(config))
    state = {name: t.numpy() for name, t in model.state_dict().items()}
    whole = {name: array for name, array in state.items() if name not in private}
    frozen = model.frozen - private
    shared = {name: array for name, array in whole.items() if name not in frozen}  # what travels each round
    if start is None:
        start = {name: array for name, array in state.items() if name in frozen | (private & begun.taken)}
    privacy.check_shared(config.privacy, shared)
    _check_shared(config, shared)
    batchnorms = tuple(name for name in layers(model) if f"{name}.{BN_MEAN}" in shared)
    if client_class.equal_features:
        _check_widths(config, model.feature_dim)
    personal = setup.is_personal(config, model)
    federation = Federation(
        domains=config.dataset.domains,
        num_classes=len(config.dataset.known().classes),
        feature_dim=model.feature_dim,
        seed=config.seed,
        participation=config.federation.participation,
        personal=personal,
        # Simulated nodes say themselves how many they are.
        min_nodes=config.federation.min_nodes if deployed else 1,
        # No simulated node is absent: whoever does not answer is on a machine that is busy.
        node_timeout=max(config.federation.node_timeout, 0 if deployed else SIMULATED_TIMEOUT),
        engine=setup.DEPLOYMENT if deployed else setup.SIMULATION,
        run_json=config.model_dump_json(),
        rounds=config.rounds,
        evaluate=config.evaluate,
        validation=config.allocation.validation_fraction > 0,
        own_tests=config.shift.label_mix == "own",
        profile=config.profile,
        eval_batch=config.images.eval_batch,
        scores_images_alone=setup.scores_images_alone(config),
        queues=engine == setup.SIMULATION,
        max_value=config.federation.max_value,
        max_update=config.federation.max_update,
        max_images=config.federation.max_images,
        noise=0.0 if config.privacy.name == "none" else config.privacy.noise,
        method=config.method["name"],
        aggregation=config.aggregation,
        terms=_terms(config),
        scores=_scores(config),
        bn_ways=_ways(config, batchnorms),
        batchnorms=batchnorms,
        own_parts=setup.has_own_parts(config, model),
        everywhere=personal and not deployed and config.evaluate.personal_on == "all_domains",
        server=config.server,
        buffers=tuple(name for name, _ in model.named_buffers() if name in shared),
        start=start,
        frozen=frozen,
    )
    return encode(whole), federation


def frozen_told(config: RunConfig, federation: Federation, initial: ArrayRecord) -> str:
    """Say in one line what is frozen, what is sent once and what travels each round; empty where nothing is."""
    if not federation.start:
        return ""
    once = sum(array.nbytes for array in federation.start.values())
    each = sum(len(array.data) for name, array in initial.items() if name not in federation.frozen)
    what = f"model.freeze={config.model.freeze}: " if config.model.freeze != "none" else "private parts begin from it: "
    return (
        f"{what}{len(federation.start)} arrays, {size(once)}, are sent to each node once; each round the weights are "
        f"{size(each)} each way"
    )


def public_told(config: RunConfig, nodes: Sequence[Node]) -> str:
    """Say in one line what the public set is, and that all nodes have the same; empty where there is none."""
    cfg = config.dataset
    if cfg.public is None:
        return ""
    what = f"the domain {cfg.public_domain}" if cfg.public_domain else f"{100 * cfg.public_share:g} % of each domain"
    if not setup.uses_public(config):
        return f"public set, {what}: no node holds it, and the method {config.method['name']!r} does not use it"
    first = nodes[0]
    return f"public set, {what}: {first.num_public} images, the same on all nodes (sha256 {first.public[:12]})"


def _check_shared(config: RunConfig, shared: Mapping[str, object]) -> None:
    """Refuse what is done with weights where none travel.

    Raises:
        ConfigError: With the key.
    """
    robust, optimizer = config.aggregation.robust, config.server.optimizer
    asked = {
        f"aggregation.robust={robust} averages": robust != "none",
        f"server.optimizer={optimizer} needs averaged": optimizer != "none",
        "aggregation.weights=ga needs averaged": config.aggregation.weights == "ga",
    }
    for told, is_asked in asked.items():
        if is_asked and not shared:
            raise ConfigError(
                f"{told} weights, and with the method {config.method['name']!r}, as it is configured, none travel"
            )


def _terms(config: RunConfig) -> tuple[str, ...]:
    """Return the names of all loss terms that the run's nodes may have."""
    methods = _methods(config)
    modules = (MODULES[str(entry["name"])] for entry in config.modules)
    told = [*(m.terms + m.other_terms for m in methods), *(entry.terms for entry in modules)]
    return tuple(dict.fromkeys((CE, *(name for names in told for name in names))))


def _scores(config: RunConfig) -> tuple[str, ...]:
    """Return the names of all other ways in which the run's nodes may score test images."""
    adapts = setup.adaptation(config)
    told = [name for method in _methods(config) for name in method.scores]
    return tuple(dict.fromkeys(told if adapts is None else (*told, adapts.before)))


def _ways(config: RunConfig, batchnorms: tuple[str, ...]) -> tuple[str, ...]:
    """Return with which statistics of BatchNorm images are scored: those of ``evaluate.bn`` that there are.

    Raises:
        ConfigError: If the first one is none.
    """
    if batchnorms or RETAKEN not in (*config.evaluate.bn, config.model.bn_keep):
        return config.evaluate.bn
    why = f"with {config.method['name']!r} and model.bn={config.model.bn} no statistics of BatchNorm travel"
    if config.model.bn_keep == RETAKEN:
        raise ConfigError(f"model.bn_keep=retaken: {why}; allowed is averaged")
    if config.evaluate.bn[0] == RETAKEN:
        raise ConfigError(f"evaluate.bn: its first is retaken, but {why}; put {AVERAGED} or {OWN} first")
    return tuple(way for way in config.evaluate.bn if way != RETAKEN)


def _methods(config: RunConfig) -> list[Method]:
    """Return the run's method and, of a recipe, that which it is made of."""
    method = registry.get(config.method["name"])
    return [method, registry.get(method.of)] if method.of else [method]


def strategy_of(config: RunConfig, federation: Federation, observer: Observer) -> DomainStrategy:
    """Return the method's strategy before its first round."""
    made: DomainStrategy = registry.get(config.method["name"]).strategy_class()(
        federation, config.server_params(), observer
    )
    return made


def restored(strategy: DomainStrategy, initial: ArrayRecord, checkpoint: Checkpoint) -> ArrayRecord:
    """Put a strategy where it was after a checkpoint; return the shared weights of then.

    Raises:
        ConfigError: If they are not of the model that this version builds.
    """
    weights = encode(checkpoint.carried_on)
    shapes = [{name: (a.dtype, tuple(a.shape)) for name, a in record.items()} for record in (weights, initial)]
    if list(weights) != list(initial) or shapes[0] != shapes[1]:
        raise ConfigError("resume: the weights of the checkpoint are not of the model that this version builds")
    restore(strategy, checkpoint)
    return weights


def restore(strategy: DomainStrategy, checkpoint: Checkpoint) -> None:
    """Put a strategy where it was after a checkpoint."""
    strategy.completed = checkpoint.server_round
    strategy.start_values.beside = strategy.federation.engine == setup.SIMULATION
    strategy.knowledge, strategy.state = dict(checkpoint.knowledge), dict(checkpoint.state)
    strategy.moments = dict(checkpoint.moments)


def _check_widths(config: RunConfig, feature_dim: int) -> None:
    """Refuse networks whose prototypes do not fit together.

    Raises:
        ConfigError: With the width of each.
    """
    widths = {config.model.name: feature_dim}
    for name in config.model.per_node:
        own = config.model.model_copy(update={"name": name})
        widths[name] = setup.initial_model(config, own).feature_dim
    if config.model.per_node and len(set(widths.values())) > 1:
        told = ", ".join(f"{name} {width}" for name, width in widths.items())
        raise ConfigError(f"model.per_node: features must be equally wide on all nodes (and as in model.name): {told}")

"""What a run starts from: the initial weights, what the strategy must know, and the strategy itself."""

from flwr.app import ArrayRecord

from datasets import catalog
from fedshift_app.config import privacy, registry
from fedshift_app.config.sections import RunConfig
from fedshift_app.node import setup
from fedshift_app.run.checkpoints import Checkpoint
from fedshift_wire.errors import ConfigError
from fedshift_wire.records import encode
from strategies.base import DomainStrategy, Observer
from strategies.federation.rounds import Federation


def prepare(config: RunConfig, engine: str) -> tuple[ArrayRecord, Federation]:
    """Return the initial shared weights and what the strategy must know.

    Raises:
        ConfigError: If the method, the model and the rest do not go together.
    """
    deployed = engine == setup.DEPLOYMENT
    if deployed and config.plugins:
        raise ConfigError(
            f"plugins: {', '.join(config.plugins)} serve in simulation only; for a deployment install them as a "
            "package on the server and on every node (docs/adding-a-method.md)"
        )
    model = setup.initial_model(config)
    client_class = registry.get(config.method["name"]).client_class()
    private = client_class.kept_names(model, config.model, config.node_params(), setup.modules(config))
    shared = {name: t.numpy() for name, t in model.state_dict().items() if name not in private}
    privacy.check_shared(config.privacy, shared)
    if not shared and config.aggregation.robust != "none":
        raise ConfigError(
            f"aggregation.robust={config.aggregation.robust} averages weights, and with the method "
            f"{config.method['name']!r}, as it is configured, none travel"
        )
    if client_class.equal_features:
        _check_widths(config, model.feature_dim)
    federation = Federation(
        domains=config.dataset.domains,
        num_classes=len(catalog.get(config.dataset.name).classes),
        feature_dim=model.feature_dim,
        seed=config.seed,
        participation=config.federation.participation,
        personal=setup.is_personal(config, model),
        # Simulated nodes say themselves how many they are.
        min_nodes=config.federation.min_nodes if deployed else 1,
        node_timeout=config.federation.node_timeout,
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
        noise=0.0 if config.privacy.name == "none" else config.privacy.noise,
        method=config.method["name"],
        aggregation=config.aggregation,
    )
    return encode(shared), federation


def strategy_of(config: RunConfig, federation: Federation, observer: Observer) -> DomainStrategy:
    """Return the method's strategy before its first round."""
    made: DomainStrategy = registry.get(config.method["name"]).strategy_class()(
        federation, config.server_params(), observer
    )
    return made


def restore(strategy: DomainStrategy, checkpoint: Checkpoint) -> None:
    """Put a strategy where it was after a checkpoint."""
    strategy.completed = checkpoint.server_round
    strategy.knowledge, strategy.state = dict(checkpoint.knowledge), dict(checkpoint.state)


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

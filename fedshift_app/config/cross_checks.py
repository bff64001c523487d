"""Which keys of a run go together, across its sections."""

from clients.models.catalog import NETWORKS
from datasets.corruptions import LARGEST_SIDE, SMALLEST_SIDE
from fedshift_app.config import networks
from fedshift_app.config.error_location import at
from fedshift_app.config.sections import RunConfig
from fedshift_core.errors import ConfigError
from fedshift_core.wire.names import AVERAGED, OWN


def check_together(config: RunConfig) -> None:
    """Refuse combinations of sections that make no sense.

    Raises:
        ConfigError: With the keys.
    """
    dataset = config.dataset.known()
    size = config.dataset.size or dataset.size
    asked = [("model.name", config.model.name), *(("model.per_node", name) for name in config.model.per_node)]
    for key, name in asked:
        with at("model", key.removeprefix("model.")):
            only = NETWORKS.named(name, key).size
        if only is not None and size != only:
            any_size = ", ".join(network.name for network in NETWORKS.values() if network.size is None)
            raise ConfigError(f"model.name={name} needs dataset.size={only}, found {size}; {any_size} take any size")
    _check_batchnorm(config, [name for _, name in asked])
    networks.check_model(config.model)
    _check_choosing(config)
    _check_gaps(config)
    if beyond := [number for number in config.keep_rounds if not 1 <= number <= config.rounds]:
        with at("keep_rounds"):
            raise ConfigError(f"keep_rounds: allowed are rounds from 1 to rounds={config.rounds}, found {beyond[0]}")
    if config.train.warmup_rounds > 0 and config.train.warmup_rounds >= config.rounds:
        raise ConfigError(
            f"train.warmup_rounds={config.train.warmup_rounds}: the warm-up must end before the last round, there are "
            f"rounds={config.rounds}"
        )
    for domain in config.allocation.training_domains(config.dataset.domains):
        if domain in dataset.test_only:
            raise ConfigError(f"{domain!r} is a test set only: put it under allocation.held_out, or leave it out")
    if config.shift.name in ("domain", "attribute") and not config.allocation.held_out:
        raise ConfigError(f"shift.name={config.shift.name} needs allocation.held_out: the domains to test on")
    if config.shift.name == "corruption" and config.allocation.test_fraction > 0:
        raise ConfigError("shift.name=corruption needs allocation.test_fraction=0: it corrupts test splits")
    if config.shift.name == "corruption" and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        raise ConfigError(
            f"shift.name=corruption needs images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, found {size}: its "
            "constants are made for these sizes; take another dataset.size"
        )
    if config.shift.label_mix == "own" and config.allocation.test_fraction > 0:
        raise ConfigError(
            "shift.label_mix=own needs allocation.test_fraction=0, found "
            f"{config.allocation.test_fraction:g}: a test set cut from a node's images follows its labels already"
        )
    if config.allocation.test_on == "domain":
        _check_whole_domains(config)
    _check_public_share(config)
    if config.shift.label_mix == "own" and config.evaluate.personal_on == "all_domains":
        raise ConfigError(
            "evaluate.personal_on=all_domains scores every node on the same test sets; shift.label_mix=own draws each "
            "node its own"
        )
    if config.shift.name == "attribute" and config.dataset.name != "cifar10":
        raise ConfigError(f"shift.name=attribute needs dataset cifar10, found {config.dataset.name}")


def _check_public_share(config: RunConfig) -> None:
    """Refuse a share for a public set of which no image is left that is no test image."""
    if config.dataset.public_share and config.allocation.test_on == "domain":
        raise ConfigError(
            f"dataset.public={config.dataset.public_share:g} needs allocation.test_on=split, found domain: there all "
            "images of a domain are its test; allowed is a domain of the data set that is not among dataset.domains"
        )


def _check_choosing(config: RunConfig) -> None:
    """Refuse to choose a round, or to stop, by validation that does not take place.

    Raises:
        ConfigError: With the keys.
    """
    patience = config.evaluate.patience
    if not config.evaluate.test:
        _check_without_test(config)
    if config.keep == "last" and not patience:
        return
    told = f"evaluate.patience={patience}" if config.keep == "last" else f"keep={config.keep}"
    if not config.allocation.validation_fraction:
        raise ConfigError(
            f"{told} needs validation parts on the nodes: allocation.validation_fraction above 0, found 0"
        )
    if config.evaluate.fraction < 1:
        raise ConfigError(
            f"{told} needs evaluate.fraction=1, found {config.evaluate.fraction:g}: any round may be the one to count"
        )
    if patience and config.evaluate.client_models == "last":
        raise ConfigError(
            f"evaluate.patience={patience} may end a run before its last {config.evaluate.last} rounds, which "
            "evaluate.client_models=last scores; allowed are off and every"
        )


def _check_without_test(config: RunConfig) -> None:
    """Refuse to score nothing at all, and the nodes' own models on test images that are not to be looked at.

    Raises:
        ConfigError: With the keys.
    """
    if not config.allocation.validation_fraction:
        raise ConfigError(
            "evaluate.test=false scores validation parts alone: it needs allocation.validation_fraction above 0, "
            "found 0"
        )
    if config.evaluate.client_models != "off":
        raise ConfigError(
            f"evaluate.test=false: evaluate.client_models={config.evaluate.client_models} scores test images; allowed "
            "is off"
        )


def _check_gaps(config: RunConfig) -> None:
    """Refuse generalisation gaps on images that nobody has, or beside the noise.

    Raises:
        ConfigError: With the keys.
    """
    rule = config.aggregation
    if rule.weights != "ga":
        return
    if rule.gap_on == "validation" and not config.allocation.validation_fraction:
        raise ConfigError(
            "aggregation.gap_on=validation needs validation parts on the nodes: allocation.validation_fraction above "
            "0, found 0; or take aggregation.gap_on=train"
        )
    if config.privacy.name != "none":
        raise ConfigError(
            f"privacy.name={config.privacy.name} does not go with aggregation.weights=ga: nodes tell how their own "
            "models do before the noise"
        )


def _check_batchnorm(config: RunConfig, networks: list[str]) -> None:
    """Refuse statistics of BatchNorm where there are none, and a model that is kept but not scored.

    Raises:
        ConfigError: With the keys.
    """
    ways, keep = config.evaluate.bn, config.model.bn_keep
    if keep != AVERAGED and keep not in ways:
        raise ConfigError(
            f"model.bn_keep={keep}: the model that a run keeps is to be scored, add {keep} to evaluate.bn"
        )
    if ways == (AVERAGED,):
        return
    told = f"evaluate.bn=[{','.join(ways)}]"
    if config.model.bn in ("freeze", "group"):
        raise ConfigError(f"{told} scores other statistics of BatchNorm, model.bn={config.model.bn} has none to take")
    for name in networks:
        if not NETWORKS[name].batchnorm:
            raise ConfigError(f"{told}: the network {name} has no BatchNorm; allowed is [{AVERAGED}]")
    if ways[0] == OWN and config.allocation.held_out:
        raise ConfigError(f"{told}: its first is own, but nobody has training images of a held-out domain")


def _check_whole_domains(config: RunConfig) -> None:
    """Refuse what goes by test splits where whole domains are the test."""
    if config.shift.name == "corruption" or config.shift.label_mix == "own":
        found = "name=corruption" if config.shift.name == "corruption" else "label_mix=own"
        raise ConfigError(f"shift.{found} needs allocation.test_on=split, found domain: it alters test splits")
    for domain in config.dataset.domains:
        if domain in config.dataset.known().test_only:
            raise ConfigError(f"allocation.test_on=domain: {domain!r} is a test set only; allowed is split")

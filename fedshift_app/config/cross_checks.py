"""Checks keys of different sections of a run against each other."""

import json

from fedshift_app.config import networks, registry
from fedshift_app.config.error_location import at
from fedshift_app.config.sections import RunConfig
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.models.catalog import NETWORKS, family_of
from fedshift_clients.modules.catalog import MODULES
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_SHOWN, some
from fedshift_core.params import NoiseParams
from fedshift_core.registry import imported
from fedshift_core.wire.names import CE
from fedshift_datasets.corruptions import LARGEST_SIDE, SMALLEST_SIDE


def check_together(config: RunConfig, *, finished: bool = False) -> None:
    """Refuse contradictory combinations of sections.

    Args:
        config: The configuration.
        finished: Of a finished run, which chooses no round any more and whose network was built: networks of whole
            libraries are not looked up, as importing these libraries takes seconds, and a file of weights may be a
            name alone.

    Raises:
        ConfigError: With the keys.
    """
    rounds, allocation, shift = config.rounds, config.allocation, config.shift
    _check_sizes(config, finished)
    networks.check_model(config.model, finished=finished)
    _check_precompute(config)
    _check_choosing(config)
    if out_of_range := [number for number in config.keep_rounds if not 1 <= number <= rounds]:
        with at("keep_rounds"):
            raise ConfigError(f"keep_rounds: allowed are rounds from 1 to rounds={rounds}, found {out_of_range[0]}")
    _check_rounds(config)
    if config.train.warmup_rounds > 0 and 0 < rounds <= config.train.warmup_rounds:
        raise ConfigError(
            f"train.warmup_rounds={config.train.warmup_rounds}: the warm-up must end before the last round, there are "
            f"rounds={rounds}"
        )
    if not finished:  # earlier runs may lack domains: their nodes divided all images
        _check_shares(config)
    for domain in allocation.training_domains(config.dataset.domains):
        if domain in config.dataset.known().test_only:
            raise ConfigError(f"{domain!r} is only a test set: put it under allocation.held_out, or leave it out")
    _check_shift(config)
    if shift.label_mix == "own":
        _check_label_mix(config)
    if allocation.test_on == "domain":
        _check_whole_domains(config)
    _check_domains_within(config)
    if shift.label_mix == "own" and config.evaluate.personal_on == "all_domains":
        raise ConfigError(
            "evaluate.personal_on=all_domains scores every node on the same test sets; shift.label_mix=own draws each "
            "node its own"
        )
    if shift.name == "attribute" and config.dataset.name != "cifar10":
        raise ConfigError(f"shift.name=attribute needs dataset cifar10, found {config.dataset.name}")


def _check_sizes(config: RunConfig, finished: bool) -> None:
    """Refuse networks that do not exist or do not take images of the run's size, see :func:`check_together`."""
    size = config.dataset.pixels
    for key, names in (("name", (config.model.name,)), ("per_node", config.model.per_node)):
        for name in names:
            if finished and family_of(name) is not None:
                continue
            with at("model", key):
                fixed_size = NETWORKS.named(name, f"model.{key}").size
            if fixed_size is not None and size != fixed_size:
                any_size = ", ".join(network.name for network in NETWORKS.values() if network.size is None)
                raise ConfigError(
                    f"model.name={name} needs dataset.size={fixed_size}, found {size}; {any_size} take any size"
                )


def _check_shift(config: RunConfig) -> None:
    """Refuse a shift that the run's images cannot have."""
    shift, allocation = config.shift, config.allocation
    if shift.name in ("domain", "attribute") and not allocation.held_out:
        raise ConfigError(f"shift.name={shift.name} needs allocation.held_out: the domains to test on")
    if shift.name != "corruption":
        return
    if allocation.test_fraction > 0:
        raise ConfigError("shift.name=corruption needs allocation.test_fraction=0: it corrupts test splits")
    if not SMALLEST_SIDE <= (size := config.dataset.pixels) <= LARGEST_SIDE:
        raise ConfigError(
            f"shift.name=corruption needs images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, found {size}: its "
            "constants fit these sizes only; set another dataset.size"
        )


def _check_label_mix(config: RunConfig) -> None:
    """Refuse test images by a node's own classes where these are not drawn from the test split of one domain."""
    allocation = config.allocation
    if allocation.test_fraction > 0:
        raise ConfigError(
            f"shift.label_mix=own needs allocation.test_fraction=0, found {allocation.test_fraction:g}: a test set cut "
            "from a node's images has the same label mix"
        )
    if allocation.mixing > 0:
        raise ConfigError(
            f"shift.label_mix=own needs allocation.mixing=0, found {allocation.mixing:g}: it draws test images by the "
            "classes of a node of one domain"
        )


def _check_shares(config: RunConfig) -> None:
    """Refuse shares by domain without that of a domain that has nodes.

    Raises:
        ConfigError: With the domains.
    """
    allocation = config.allocation
    held = allocation.held_domains(config.dataset.domains)
    lacking = [domain for domain in held if allocation.share_of(domain) is None]
    if isinstance(allocation.share, dict) and lacking:
        with at("allocation", "share"):
            raise ConfigError(
                "allocation.share: expected a number for each domain that has nodes, found none for "
                f"{some(lacking, MOST_SHOWN)}; one node with 1 gets all images of its domain"
            )


def _check_rounds(config: RunConfig) -> None:
    """Refuse settings that need a round in a run without one, which only scores the initial weights.

    Raises:
        ConfigError: With the key.
    """
    if config.rounds > 0:
        return
    if not config.evaluate.test:
        raise ConfigError("rounds=0 only scores test images, so it needs evaluate.test=true, found false")
    if config.keep != "last":
        raise ConfigError(f"keep={config.keep} needs a round to choose, found rounds=0; allowed is keep=last")


def _check_precompute(config: RunConfig) -> None:
    """Refuse kept features of a network that trains as a whole, and augmentation that they would leave out.

    Raises:
        ConfigError: With the keys.
    """
    images, model = config.images, config.model
    _check_given(config)
    if not model.precompute:
        if images.cached_views > 1:
            raise ConfigError(f"images.cached_views={images.cached_views} needs model.precompute=on, found off")
        return
    if model.freeze in ("none", "norm"):
        raise ConfigError(
            f"model.precompute=on needs a frozen beginning: model.freeze=encoder or stages:N, found {model.freeze}"
        )
    if model.bn == "local":
        raise ConfigError("model.precompute=on: statistics of model.bn=local change on the node; allowed is average")
    augmented = [f"images.{key}" for key in images.augmentations]
    if augmented and images.cached_views == 1:
        off = ImageConfig()
        remedy = " ".join(f"images.{key}={json.dumps(getattr(off, key))}" for key in images.augmentations)
        raise ConfigError(
            f"model.precompute=on with {', '.join(augmented)}: set images.cached_views=8, for example, of which each "
            f"epoch takes one; or turn them off: {remedy}"
        )
    if not augmented and images.cached_views > 1:
        raise ConfigError(
            f"images.cached_views={images.cached_views}: no augmentation is on, so all kept views would be the same; "
            "allowed is 1"
        )
    if images.views == 2 and images.cached_views == 1:
        raise ConfigError(
            "images.views=2 with model.precompute=on needs an augmentation and images.cached_views above 1, found 1: "
            "both views of an image would be the same"
        )
    adapt = str(config.adapt.get("name", registry.NONE))
    if adapt != registry.NONE and not imported(ADAPTATIONS[adapt].adaptation).keeps_frozen:
        raise ConfigError(
            f"adapt.name={adapt} changes what model.precompute=on computes once, or augments test images in a way of "
            "its own; allowed is model.precompute=off"
        )


def _check_given(config: RunConfig) -> None:
    """Refuse features of a file without their network, or next to what changes images.

    Raises:
        ConfigError: With the keys.
    """
    model, given = config.model, config.dataset.features
    names = {model.name, *model.per_node}
    if bool(given) != any(name.startswith("features:") for name in names):
        raise ConfigError(f"model.name=features:D and dataset.features go together, found {model.name} and {given!r}")
    if given and (not model.precompute or model.freeze != "encoder" or len(names) > 1):
        raise ConfigError("dataset.features needs model.freeze=encoder, model.precompute=on and one network for all")
    if given and (config.images.cached_views > 1 or config.shift.name not in (registry.NONE, "domain")):
        key = "images.cached_views" if config.images.cached_views > 1 else "shift.name"
        raise ConfigError(f"dataset.features: {key} changes images, whose features are given; allowed is its default")


def _check_domains_within(config: RunConfig) -> None:
    """Refuse modules over the domains of a node where each node has one, or does not know them.

    Raises:
        ConfigError: With the keys.
    """
    mixing, labels = config.allocation.mixing, config.allocation.domain_labels
    for entry in config.modules:
        name = str(entry["name"])  # an unknown one is refused with its place, later
        needs = MODULES[name].needs_domains if name in MODULES else False
        if isinstance(needs, str):
            key, _, value = needs.partition("=")
            needs, name = entry.get(key) == value, f"{name} with {needs}"
        if needs and not (mixing and labels == "known"):
            raise ConfigError(
                f"modules {name} needs nodes that hold several domains and know them: allocation.mixing above "
                f"0 and allocation.domain_labels=known; found {mixing:g} and {labels}"
            )


def check_terms(config: RunConfig) -> None:
    """Refuse modules that declare a loss term of a name that the method or other modules have.

    Raises:
        ConfigError: With the name and whose it is.
    """
    method = registry.METHODS[str(config.method["name"])]
    # A recipe without a client of its own lists the terms of the modules that it configures.
    base = registry.METHODS[method.of] if method.of and not method.client else method
    owners = dict.fromkeys((CE, *base.terms, *base.other_terms), f"the method {method.name!r}")
    for entry in config.modules:
        name = str(entry["name"])
        for term in MODULES[name].terms:
            if term in owners:
                raise ConfigError(
                    f"modules: {name} has a loss term {term!r}, which is one of {owners[term]}: one of the two would "
                    "not be minimised; give it another name",
                    keys=(("modules", name),),
                )
        owners |= dict.fromkeys(MODULES[name].terms, f"modules {name}")


def _check_choosing(config: RunConfig) -> None:
    """Refuse to choose a round, or to stop, without validation.

    Raises:
        ConfigError: With the keys.
    """
    patience = config.evaluate.patience
    if not config.evaluate.test and config.allocation.lacking:
        raise ConfigError(f"evaluate.test=false scores only validation parts: it needs {config.allocation.lacking}")
    if config.keep == "last" and not patience:
        return
    setting = f"evaluate.patience={patience}" if config.keep == "last" else f"keep={config.keep}"
    if config.allocation.lacking:
        raise ConfigError(f"{setting} needs validation parts on the nodes: {config.allocation.lacking}")
    if config.evaluate.fraction < 1:
        raise ConfigError(
            f"{setting} needs evaluate.fraction=1, found {config.evaluate.fraction:g}: any round may be chosen"
        )


def _check_whole_domains(config: RunConfig) -> None:
    """Refuse settings that need test splits where whole domains are the test."""
    if config.shift.name == "corruption" or config.shift.label_mix == "own":
        setting = "name=corruption" if config.shift.name == "corruption" else "label_mix=own"
        raise ConfigError(f"shift.{setting} needs allocation.test_on=split, found domain: it changes test splits")
    for domain in config.dataset.domains:
        if domain in config.dataset.known().test_only:
            raise ConfigError(f"allocation.test_on=domain: {domain!r} is only a test set; allowed is split")


def check_noise(config: RunConfig) -> None:
    """Refuse, in a deployment, noise that protects nodes and is drawn from the run's seed.

    Raises:
        ConfigError: With the key.
    """
    params = config.params()
    if isinstance(params, NoiseParams) and params.repeatable_noise:
        raise ConfigError(
            "method.repeatable_noise=true serves in simulation only: noise that is drawn from the run's seed can be "
            "taken off again by the server; a deployment needs method.repeatable_noise=false"
        )

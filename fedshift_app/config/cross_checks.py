"""Checks keys of different sections of a run against each other."""

import json
from collections.abc import Iterator

from fedshift_app.config import networks, registry
from fedshift_app.config.error_location import at, beginning_with_key
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models.catalog import NETWORKS, family_of, is_given
from fedshift_clients.modules.catalog import MODULES
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_SHOWN, some
from fedshift_core.params import NoiseParams
from fedshift_core.wire.names import CE
from fedshift_datasets.corruptions import LARGEST_SIDE, SMALLEST_SIDE


def check_together(config: RunConfig, *, finished: bool = False) -> None:
    """Refuse contradictory combinations of sections.

    Args:
        config: The configuration.
        finished: Of a finished run, which chooses no round any more and whose network was built: networks of whole
            libraries are not looked up, as importing these libraries takes seconds.

    Raises:
        ConfigError: With the keys.
    """
    _check_sizes(config, finished)
    networks.check_model(config.model)
    for check in (_given, _precompute, _rounds, _shares, _shift, _label_mix, _domains):
        if check is not _shares or not finished:  # earlier runs may lack domains: their nodes divided all images
            for problem in check(config):
                raise beginning_with_key(problem)


def _check_sizes(config: RunConfig, finished: bool) -> None:
    """Refuse networks that do not exist or do not take images of the run's size, see :func:`check_together`."""
    size = config.dataset.pixels
    for key, name in (("name", config.model.name), *(("per_node", name) for name in config.model.per_node)):
        if finished and family_of(name) is not None:
            continue
        with at("model", key):
            fixed_size = NETWORKS.named(name, f"model.{key}").size
        if fixed_size not in (None, size):
            any_size = ", ".join(name for name in NETWORKS if NETWORKS[name].size is None)
            raise ConfigError(
                f"model.name={name} needs dataset.size={fixed_size}, found {size}; {any_size} take any size"
            )


def _given(config: RunConfig) -> Iterator[str]:
    """Yield problems of features of a file without their network, or next to what changes images."""
    model, given = config.model, config.dataset.features
    if bool(given) != any(map(is_given, model.names)):
        yield f"model.name=features:D and dataset.features go together, found {model.name} and {given!r}"
    if given and (not model.precompute or model.freeze != "encoder" or len({*model.names}) > 1):
        yield "dataset.features needs model.freeze=encoder, model.precompute=on and one network for all"
    if given and (config.images.cached_views > 1 or config.shift.name not in (registry.NONE, "domain")):
        key = "images.cached_views" if config.images.cached_views > 1 else "shift.name"
        yield f"dataset.features: {key} changes images, whose features are given; allowed is its default"


def _precompute(config: RunConfig) -> Iterator[str]:
    """Yield problems of kept features: a network that trains as a whole, augmentation that they would leave out."""
    images, model = config.images, config.model
    if not model.precompute:
        if images.cached_views > 1:
            yield f"images.cached_views={images.cached_views} needs model.precompute=on, found off"
        return
    if model.freeze in ("none", "norm"):
        yield f"model.precompute=on needs a frozen beginning: model.freeze=encoder or stages:N, found {model.freeze}"
    if model.bn == "local":
        yield "model.precompute=on: statistics of model.bn=local change on the node; allowed is average"
    if images.augmentations and images.cached_views == 1:
        off = ImageConfig()
        remedy = " ".join(f"images.{key}={json.dumps(getattr(off, key))}" for key in images.augmentations)
        yield (
            f"model.precompute=on with {', '.join(f'images.{key}' for key in images.augmentations)}: set "
            f"images.cached_views=8, for example, of which each epoch takes one; or turn them off: {remedy}"
        )
    if not images.augmentations and images.cached_views > 1:
        yield (
            f"images.cached_views={images.cached_views}: no augmentation is on, so all kept views would be the same; "
            "allowed is 1"
        )
    if images.views == 2 and images.cached_views == 1:
        yield (
            "images.views=2 with model.precompute=on needs an augmentation and images.cached_views above 1, found 1: "
            "both views of an image would be the same"
        )
    adaptation = registry.adaptation(config.adapt)
    if adaptation is not None and not adaptation.keeps_frozen:
        yield (
            f"adapt.name={config.adapt['name']} changes what model.precompute=on computes once, or augments test "
            "images in a way of its own; allowed is model.precompute=off"
        )


def _rounds(config: RunConfig) -> Iterator[str]:
    """Yield problems of a choice without validation, and of rounds that a run does not have."""
    rounds, evaluate, lacking = config.rounds, config.evaluate, config.allocation.lacking
    if not evaluate.test and lacking:
        yield f"evaluate.test=false scores only validation parts: it needs {lacking}"
    if config.keep != "last" or evaluate.patience:
        setting = f"evaluate.patience={evaluate.patience}" if config.keep == "last" else f"keep={config.keep}"
        if lacking:
            yield f"{setting} needs validation parts on the nodes: {lacking}"
        if evaluate.fraction < 1:
            yield f"{setting} needs evaluate.fraction=1, found {evaluate.fraction:g}: any round may be chosen"
    for number in config.keep_rounds:
        if not 1 <= number <= rounds:
            yield f"keep_rounds: allowed are rounds from 1 to rounds={rounds}, found {number}"
    if not rounds and not evaluate.test:
        yield "rounds=0 only scores test images, so it needs evaluate.test=true, found false"
    if not rounds and config.keep != "last":
        yield f"keep={config.keep} needs a round to choose, found rounds=0; allowed is keep=last"
    if config.train.warmup_rounds > 0 and 0 < rounds <= config.train.warmup_rounds:
        yield (
            f"train.warmup_rounds={config.train.warmup_rounds}: the warm-up must end before the last round, there are "
            f"rounds={rounds}"
        )


def _shares(config: RunConfig) -> Iterator[str]:
    """Yield a problem of shares by domain without that of a domain that has nodes."""
    allocation = config.allocation
    held = allocation.held_domains(config.dataset.domains)
    lacking = [domain for domain in held if allocation.share_of(domain) is None]
    if isinstance(allocation.share, dict) and lacking:
        yield (
            "allocation.share: expected a number for each domain that has nodes, found none for "
            f"{some(lacking, MOST_SHOWN)}; one node with 1 gets all images of its domain"
        )


def _shift(config: RunConfig) -> Iterator[str]:
    """Yield problems of a shift that the run's images cannot have."""
    shift, allocation, domains, size = config.shift, config.allocation, config.dataset.domains, config.dataset.pixels
    test_only = config.dataset.known().test_only
    for domain in allocation.training_domains(domains):
        if domain in test_only:
            yield f"{domain!r} is only a test set: put it under allocation.held_out, or leave it out"
    if shift.name in ("domain", "attribute") and not allocation.held_out:
        yield f"shift.name={shift.name} needs allocation.held_out: the domains to test on"
    if shift.name == "corruption" and allocation.test_fraction > 0:
        yield "shift.name=corruption needs allocation.test_fraction=0: it corrupts test splits"
    if shift.name == "corruption" and not SMALLEST_SIDE <= size <= LARGEST_SIDE:
        yield (
            f"shift.name=corruption needs images of {SMALLEST_SIDE} to {LARGEST_SIDE} pixels, found {size}: its "
            "constants fit these sizes only; set another dataset.size"
        )
    if shift.name == "attribute" and config.dataset.name != "cifar10":
        yield f"shift.name=attribute needs dataset cifar10, found {config.dataset.name}"
    if allocation.test_on == "domain":
        if shift.name == "corruption" or shift.label_mix == "own":
            setting = "name=corruption" if shift.name == "corruption" else "label_mix=own"
            yield f"shift.{setting} needs allocation.test_on=split, found domain: it changes test splits"
        for domain in domains:
            if domain in test_only:
                yield f"allocation.test_on=domain: {domain!r} is only a test set; allowed is split"


def _label_mix(config: RunConfig) -> Iterator[str]:
    """Yield problems of test images by a node's own classes: they are drawn from the test split of one domain."""
    allocation = config.allocation
    if config.shift.label_mix != "own":
        return
    if allocation.test_fraction > 0:
        yield (
            f"shift.label_mix=own needs allocation.test_fraction=0, found {allocation.test_fraction:g}: a test set cut "
            "from a node's images has the same label mix"
        )
    if allocation.mixing > 0:
        yield (
            f"shift.label_mix=own needs allocation.mixing=0, found {allocation.mixing:g}: it draws test images by the "
            "classes of a node of one domain"
        )
    if config.evaluate.personal_on == "all_domains":
        yield (
            "evaluate.personal_on=all_domains scores every node on the same test sets; shift.label_mix=own draws each "
            "node its own"
        )


def _domains(config: RunConfig) -> Iterator[str]:
    """Yield problems of modules over the domains of a node where each node has one, or does not know them."""
    mixing, labels = config.allocation.mixing, config.allocation.domain_labels
    for entry in config.modules:
        name = str(entry["name"])  # an unknown one is refused with its place, later
        needs = MODULES[name].needs_domains if name in MODULES else False
        if isinstance(needs, str):
            key, _, value = needs.partition("=")
            needs, name = entry.get(key) == value, f"{name} with {needs}"
        if needs and not (mixing and labels == "known"):
            yield (
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
    for name in (str(entry["name"]) for entry in config.modules):
        if term := next((term for term in MODULES[name].terms if term in owners), ""):
            raise ConfigError(
                f"modules: {name} has a loss term {term!r}, which is one of {owners[term]}: one of the two would "
                "not be minimised; give it another name",
                keys=(("modules", name),),
            )
        owners |= dict.fromkeys(MODULES[name].terms, f"modules {name}")


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

"""Introductions: a node speaks of itself before the first round, and answers questions of features."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import answered, data, feature_state, node_key, precision, setup
from fedshift_app.node.owner import Owner
from fedshift_app.node.place import Place
from fedshift_clients import features
from fedshift_clients.calls import Site
from fedshift_clients.features import About, Question
from fedshift_core.params import ARITHMETICS
from fedshift_core.secure.statement import Statement
from fedshift_core.wire.messages import NodeIntroduction
from fedshift_core.wire.names import CONFIG, NODE_INDEX, SERVER_ROUND
from fedshift_core.wire.records import config_record
from fedshift_datasets import catalog
from fedshift_datasets.base import Split
from fedshift_datasets.io import corrupt_files
from fedshift_datasets.listing import Item, Listing
from fedshift_datasets.quality import checkup
from fedshift_strategies import weighting


def introduce(msg: Message, context: Context, allowed: Owner) -> RecordDict:
    """Return the answer to a question without weights.

    Args:
        msg: The message.
        context: The node's.
        allowed: What its owner lets it do.
    """
    config, where = allowed.config, allowed.where
    answer = features.of(config).answer(question(msg, context, allowed))
    if answer is not None:
        return RecordDict({CONFIG: ConfigRecord(answer)})  # each record more is two requests more to a SuperLink
    best = precision.fastest_here(config, setup.own_network(config, where))
    public = data.public_set(config, where) if config.declared.client_class().uses_public else None
    about = About(
        {split: len(images) for split, images in data.own_images(config, where).sets.items()},
        None if public is None else (public.sha256, len(public.images)),
    )
    numbers, words = features.of(config).introduce(about)
    introduction = NodeIntroduction(
        where.domain,
        data.class_counts(config, where),
        data.num_test(config, where),
        where.shared,
        where.partition_id,
        where.num_partitions,
        None if best is None else ARITHMETICS.index(best),
        data.unheld_tests(config, where),
        numbers,
        words,
        {domain: data.num_test(config, where, domain) for domain in where.others},
    )
    return allowed.introduction(introduction).to_record()


def question(msg: Message, context: Context, owner: Owner) -> Question:
    """Return how features see a question of one of them."""
    config, where = owner.config, owner.where
    given: Mapping[str, Any] = config_record(msg.content, CONFIG) or {}

    def statement() -> Statement:
        announced = owner.announced(data.class_counts(config, where))
        return Statement.of(sum(announced), announced)

    def weigh(statements: Sequence[Statement], purpose: str) -> tuple[float, ...]:
        alike = config.declared.strategy_class().weighs_alike(config.params())
        return weighting.factors(config, statements, purpose, alike=alike)

    return Question(
        config=config,
        options=given,
        server_round=int(given.get(SERVER_ROUND, 0)),
        index=int(given.get(NODE_INDEX, 0)),
        run=str(msg.metadata.run_id),
        state=partial(feature_state.kept_for, context),
        signer=node_key.signer,
        trusted=owner.trusted,
        site=lambda: site_of(config, where),
        least_images=owner.least_images,
        withheld=owner.withheld,
        statement=statement,
        weigh=weigh,
        once=answered.once(context),
        secret=None if where.guard is None else where.guard.secret,
    )


def site_of(config: RunConfig, where: Place) -> Site:
    """Return a node's training images, with the headers of their files, as they are before they are decoded.

    Raises:
        DataError: If images are missing or broken.
    """
    items: list[Item] = []
    for domain, places in data.train_places(config, where).items():
        pool = _files(config, where, domain)
        if pool is None:
            items = []
            break
        items += [pool[place] for place in places.tolist()]
    files = [(header.size, header.mode) for header in checkup.headers(items)]
    return Site(data.own_images(config, where).train, files)


def _files(config: RunConfig, where: Place, domain: str) -> list[Item] | None:
    """Return the files of what the nodes of a domain divide; None where they are no image files."""
    cfg = config.dataset
    splits: tuple[Split, ...] = config.allocation.pool if where.shared else ("train",)
    items: list[Item] = []
    for split in splits:
        find = catalog.get(cfg.kind).find if where.shared else partial(catalog.own_files, cfg.kind)
        files = find(domain, split, where.source)
        listed = files and corrupt_files.usable(files, where.source, cfg.form())
        if not isinstance(listed, Listing):
            return None
        items += listed.items
    return items

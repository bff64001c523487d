"""Introductions: a node speaks of itself before the first round, and answers questions of features."""

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedshift_app.node import data as node_data
from fedshift_app.node import feature_state, setup
from fedshift_app.node import precision as node_precision
from fedshift_app.node.owner import Owner
from fedshift_clients import features
from fedshift_clients.features import About
from fedshift_core.params import ARITHMETICS
from fedshift_core.wire.messages import NodeIntroduction
from fedshift_core.wire.names import CONFIG


def introduce(msg: Message, context: Context, allowed: Owner) -> RecordDict:
    """Return the answer to a question without weights.

    Args:
        msg: The message.
        context: The node's.
        allowed: What its owner lets it do.
    """
    config, where = allowed.config, allowed.where
    answer = features.of(config).answer(feature_state.question(msg, context, allowed))
    if answer is not None:
        return RecordDict({CONFIG: ConfigRecord(answer)})  # each record more is two requests more to a SuperLink
    classes = len(config.dataset.known().classes)
    own = node_data.own_images(config, where)
    counts = np.bincount(own.train.y, minlength=classes)
    best = node_precision.fastest_here(config, setup.own_network(config, where))
    public = node_data.public_set(config, where) if config.declared.client_class().uses_public else None
    about = About(
        {split: len(images) for split, images in own.sets.items()},
        None if public is None else (public.sha256, len(public.images)),
    )
    numbers, words = features.of(config).introduce(about)
    introduction = NodeIntroduction(
        where.domain,
        counts.tolist(),
        node_data.num_test(config, where),
        where.shared,
        where.partition_id,
        where.num_partitions,
        None if best is None else ARITHMETICS.index(best),
        node_data.unheld_tests(config, where),
        numbers,
        words,
        {domain: node_data.num_test(config, where, domain) for domain in where.others},
    )
    return allowed.introduction(introduction).to_record()

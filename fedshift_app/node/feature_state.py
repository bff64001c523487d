"""What features keep on a node between messages of a run: records of ``context.state``, one of each feature.

A SuperNode starts a process for each message, so Flower keeps them; they never travel and are on no disk of ours.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import answered, node_key
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.image_files import site_of
from fedshift_app.node.owner import Owner
from fedshift_clients.features import Question
from fedshift_core.secure.statement import Statement
from fedshift_core.wire.names import CONFIG, NODE_INDEX, SERVER_ROUND
from fedshift_core.wire.records import config_record
from fedshift_strategies import weighting

PREFIX = "feature-"


def kept_for(context: Context, name: str) -> ConfigRecord:
    """Return the record of a feature, which may be changed in place."""
    record = config_record(context.state, PREFIX + name)
    if record is None:
        record = context.state[PREFIX + name] = ConfigRecord()
    return record


def holds(context: Context) -> bool:
    """Tell whether a feature keeps anything of the node."""
    return any(name.startswith(PREFIX) and config_record(context.state, name) for name in context.state)


def question(msg: Message, context: Context, owner: Owner) -> Question:
    """Return how features see a question of one of them."""
    config, where = owner.config, owner.where
    given: Mapping[str, Any] = config_record(msg.content, CONFIG) or {}
    return Question(
        config=config,
        options=given,
        server_round=int(given.get(SERVER_ROUND, 0)),
        index=int(given.get(NODE_INDEX, 0)),
        run=str(msg.metadata.run_id),
        state=partial(kept_for, context),
        signer=node_key.signer,
        trusted=owner.trusted,
        site=lambda: site_of(config, where),
        least_images=owner.least_images,
        withheld=owner.withheld,
        statement=partial(_statement, config, owner, where),
        weigh=partial(_weigh, config),
        once=answered.once(context),
        secret=None if where.guard is None else where.guard.secret,
    )


def _statement(config: RunConfig, owner: Owner, where: Place) -> Statement:
    """Return what the node states of its images: what its owner lets it announce."""
    counts = np.bincount(own_images(config, where).train.y, minlength=len(config.dataset.known().classes)).tolist()
    announced = owner.announced(counts)
    return Statement.of(sum(announced), announced)


def _weigh(config: RunConfig, statements: Sequence[Statement], purpose: str) -> tuple[float, ...]:
    alike = config.declared.strategy_class().weighs_alike(config.params())
    return weighting.factors(config, statements, purpose, alike=alike)

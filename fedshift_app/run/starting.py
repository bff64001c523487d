"""Gathers the nodes of a run, new or continued, and makes it ready for its next round."""

from dataclasses import replace
from typing import NamedTuple

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import one_time_payload
from fedshift_app.run import (
    build,
    checkpoints,
    console,
    initial_model,
    model_selection,
    precision,
    resuming,
)
from fedshift_strategies.base import DomainStrategy, Observer


class Ready(NamedTuple):
    """A run that could start.

    Attributes:
        config: Its configuration.
        settled: The same, with the arithmetic that the nodes settled on.
        beginning: The model before round 1.
        initial: The weights to begin with, of a continued run those of its checkpoint.
        strategy: The strategy, which knows the nodes.
        lines: Lines to show about it.
    """

    config: RunConfig
    settled: RunConfig
    beginning: initial_model.InitialModel
    initial: ArrayRecord
    strategy: DomainStrategy
    lines: tuple[str, ...]


def ready(grid: Grid, config: RunConfig, past: checkpoints.Past | None, engine: str, observer: Observer) -> Ready:
    """Build the strategy, let the nodes introduce themselves, and take up the rounds of a continued run."""
    start = None
    if past is None or not past.completed:
        config, beginning = initial_model.begin(config)
    else:
        start = one_time_payload.of_run(past.path / checkpoints.FOLDER)
        beginning = initial_model.plain(config)
    initial, federation = build.prepare(config, engine, beginning, start)
    federation = replace(federation, repeated=0 if past is None else past.repeated)
    idle = build.idle_terms_line(config, beginning.model)
    for warning in filter(None, (beginning.warning, idle)):
        console.log.warning("%s", warning)
    strategy = build.strategy_of(config, federation, observer)
    strategy.gather(grid)
    settled, computed = precision.settle(config, strategy.roster.fastest, past)
    strategy.settle(settled.model_dump_json())
    nodes = strategy.roster.nodes
    model_selection.check_nodes(config, nodes)
    if past is not None:
        resuming.check_number(past, len(nodes))
        strategy.roster.expect(resuming.check_nodes(past, nodes))
        if past.completed:
            initial = build.restored(strategy, initial, past.checkpoint)
            strategy.last_nodes = tuple(past.history[-1].nodes)
    lines = (computed, beginning.message, build.frozen_line(config, federation, initial))
    return Ready(config, settled, beginning, initial, strategy, lines)

"""The table of ``fedshift costs``, in three forms."""

import json
import textwrap
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fedshift.lab.grid.costs import paper_costs
from fedshift.run.columns import columns
from fedshift_app.config.sections import RunConfig
from fedshift_core.plural import plural

if TYPE_CHECKING:
    from fedshift.lab.grid.costs.measuring import Costs
    from fedshift.lab.tables.papers import printed

HEAD = ("method", "parameters", "sent", "GFLOPs a step", "s a local round", "MB up", "MB down")
GIGA, MEGA = 1e9, 1e6
WIDTH = 100  # width of the notes below the table


@dataclass(frozen=True)
class Table:
    """The measured costs of methods.

    Attributes:
        config: The configuration of the first method.
        nodes: The number of nodes of the run.
        costs: The rows.
        machine: The machine of the measurements.
        notes: Notes on the grid and on failed methods.
        paper: A printed table to compare with; None for none.
        failed: Methods that failed and are left out.
    """

    config: RunConfig
    nodes: int
    costs: "list[Costs]"
    machine: str
    notes: list[str]
    paper: "printed.Table | None" = None
    failed: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title of the table."""
        c = self.config
        return (
            f"{c.experiment}: {c.dataset.name} at {c.dataset.pixels} pixels, {c.model.name}, "
            f"{plural(self.nodes, 'node')}, {plural(c.train.epochs, 'local epoch')}, batches of {c.train.batch_size}"
        )

    def text(self) -> str:
        """Return aligned lines."""
        blocks = [line for rows in self._blocks() for line in [*columns(rows, "", numbers=True, ruled=True), ""]]
        notes = [line for note in self._notes() for line in textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")]
        return "\n".join([self.title, "", *blocks, *notes])

    def markdown(self) -> str:
        """Return a table and its notes."""
        blocks = []
        for head, *rows in self._blocks():
            lines = [head, ("---", *("--:" for _ in head[1:])), *rows]
            blocks += [*(f"| {' | '.join(row)} |" for row in lines), ""]
        return "\n".join([f"**{self.title}**", "", *blocks, *(f"- {note}" for note in self._notes())])

    def json(self) -> str:
        """Return one JSON object with the unrounded FLOPs, bytes and seconds."""
        counted = [asdict(c) | {"step_flops": c.step_flops, "seconds": c.seconds} for c in self.costs]
        beside = {} if self.paper is None else {"paper": self.paper.id, "beside": self._pairs(self.paper)}
        return json.dumps(
            {
                "experiment": self.config.experiment,
                "nodes": self.nodes,
                "machine": self.machine,
                "costs": counted,
                "notes": self.notes,
                **beside,
            }
        )

    def _pairs(self, paper: "printed.Table") -> list[dict[str, Any]]:
        return paper_costs.pairs(paper, self.costs, self.nodes)

    def _blocks(self) -> list[list[tuple[str, ...]]]:
        """Return our table with its head, and one with the paper's costs if requested."""
        rows = [
            (
                c.name,
                f"{c.parameters.all:,}",
                f"{c.parameters.sent:,}",
                f"{c.step_flops / GIGA:.3f}",
                f"{c.seconds:.3f}",
                f"{c.bytes_up / MEGA:.3f}",
                f"{c.bytes_down / MEGA:.3f}",
            )
            for c in self.costs
        ]
        beside = [] if self.paper is None else [paper_costs.rows([*self.paper.printed.costs], self._pairs(self.paper))]
        return [[HEAD, *rows], *beside]

    def _notes(self) -> list[str]:
        """Return the notes: meanings of columns, and observations."""
        first, sizes = self.costs[0], " or ".join(map(str, sorted({cost.batch for cost in self.costs})))
        notes = [
            "parameters: of a node's model; sent: those that travel, each way (BatchNorm's statistics and prototypes "
            "are in the bytes)",
            f"GFLOPs a step: 1e9 operations of the forward and the backward pass of the method's loss on one batch "
            f"({sizes} images, as the node trains on them), two a multiply-add; convolutions and matrix products "
            "alone, as torch.utils.flop_counter counts them",
            f"s a local round: a node's whole answer, prototypes and messages included; median of {len(first.times)}: "
            f"{plural(first.nodes, 'node')} in round{'s' * (len(first.rounds) > 1)} "
            f"{', '.join(map(str, first.rounds))}; other work on the machine makes them longer",
            "MB up, down: 1e6 bytes of arrays in all messages of a round of training, one way each",
        ]
        for costs in self.costs:
            phases = "; ".join(f"{step.flops / GIGA:.3f} GFLOPs ({step.epochs})" for step in costs.steps)
            notes += [
                f"{costs.name}: {note}"
                for note, holds in (
                    (f"the mean over its phases, by their epochs (in brackets): {phases}", len(costs.steps) > 1),
                    (f"answers of nodes that were not used (see the log lines above): {costs.refused}", costs.refused),
                    (
                        f"parameters and FLOPs are those of the network {costs.network}",
                        costs.network != self.config.model.name,
                    ),
                )
                if holds
            ]
        if self.paper is not None:
            notes += paper_costs.notes(self.paper, self.nodes)
        return [*notes, *self.notes, f"measured on {self.machine}"]

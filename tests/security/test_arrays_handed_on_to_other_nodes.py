"""A node reads what one single other node has sent off what the server sends it; the page names all there is to read.

Four nodes of one domain each, all of which hold every class: what comes of sums over them is no node's own.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from guarded_node import OpenNodes, run_openly
from numpy.typing import NDArray
from support import ROOT, on_images

from fedshift.run.engine import inline
from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_core.wire.records import decode

NODES = 4
SHORT = "train.batch_size=16 train.precision=float32 evaluate.every=2 federation.min_nodes=4"
CLOSE = 1e-5  # of the largest number of a row

Row = NDArray[np.float64]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[NodeFolder]:
    config = resolve({"set": "dataset.public=0.1 allocation.share=0.12"})
    return exporting.export(config, NODES, tmp_path_factory.mktemp("handed") / "nodes")


def rows(array: NDArray[Any]) -> Iterator[Row]:
    """Yield the rows of an array of numbers, and all of it as one."""
    if array.dtype.kind != "f" or array.size < 3:
        return
    if array.ndim > 1:
        yield from array.reshape(len(array), -1).astype(np.float64)
    yield array.reshape(-1).astype(np.float64)


def handed_on(got: list[tuple[int, str, Row]], sent: list[tuple[int, Row]]) -> set[str]:
    """Return the names of arrays of which a node got a row that one other node alone had sent."""
    by_size: Any = defaultdict(list)
    for node, row in sent:
        if np.ptp(row) > 0:
            by_size[row.size].append((node, row))
    tables = {size: [np.stack(column) for column in zip(*own, strict=True)] for size, own in by_size.items()}
    names = set()
    for node, name, row in got:
        if name not in names and row.size in tables and row.any():
            owners, table = tables[row.size]
            same = {*owners[np.abs(table - row).max(axis=1) < CLOSE * np.abs(row).max()].tolist()}
            if len(same) == 1 and node not in same:
                names.add(name)
    return names


def on_the_page() -> set[str]:
    page = (ROOT / "docs" / "deploy" / "policy.md").read_text(encoding="utf-8")
    table = page.partition("| of one node | with |")[2].partition("\n\n")[0]
    return {name for line in table.splitlines()[2:] for name in line.split("|")[2].split("`")[1::2]}


def some() -> Iterator[Any]:
    """Yield each method; those that are sent nothing but weights, or are not on the page, are for ``make test-all``."""
    for name in on_images(registry.METHODS):
        if not registry.get(name).of or name in on_the_page():
            yield pytest.param(name, marks=[] if name in on_the_page() else [pytest.mark.long])


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("method", [*some()])
def test_the_page_names_each_method_that_hands_on_what_one_node_sent(
    method: str, folders: list[NodeFolder], tmp_path: Path
) -> None:
    got: Any = []
    sent: Any = []

    class Grid(OpenNodes):
        def _answer(self, message: Message) -> Message:
            reply, node = super()._answer(message), inline.index_of(message.metadata.dst_node_id)
            for record, arrays in message.content.array_records.items():
                for name, array in decode(arrays).items() if record != "arrays" else ():
                    got.extend((node, f"{record}/{name}", row) for row in rows(array))
            if not reply.has_error():
                given = [array for record in reply.content.array_records.values() for array in decode(record).values()]
                lists = [np.array(value) for of in reply.content.config_records.values() for value in of.values()]
                given += [array.reshape(-1, 3) for array in lists if array.ndim and array.dtype.kind == "f"]
                sent.extend((node, row) for array in given for row in rows(array))
            return reply

    Grid.folders = folders
    named = method in on_the_page()
    rounds, epochs = (2, 1) if named else (3, 2)  # what is handed on shows early
    run_openly(Grid, method, rounds, f"{SHORT} train.epochs={epochs}", tmp_path)
    names = handed_on(got, sent)
    assert bool(names) is named, names

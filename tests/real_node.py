"""A real node for tests: its app, called directly with messages of a server of our own."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node.ledger import Book, Cost, Ledger
from fedshift_app.run import build as run_build
from fedshift_core.arrays import Arrays
from fedshift_core.secure import identity
from fedshift_core.wire import names
from fedshift_core.wire.records import decode, encode

RUN_ID = "a" * 32
SHORT = "train.epochs=1 dataset.domains=[scan,sketch]"


def fingerprint(public: Path) -> str:
    """Return the fingerprint of a node's key, by its file."""
    key: Any = serialization.load_ssh_public_key(public.read_bytes())
    return identity.fingerprint(key)


def charge(own: Ledger, run: str, cost: Cost = 1.0, check: Callable[[Book, float], str] = lambda book, now: "") -> str:
    """Charge a round; return why it is not charged, empty where it was."""
    return own.change(lambda book, now: check(book, now) or book.charged(run, cost, now))


class AppOfNode:
    """A SuperNode's app and its state; the server asks what it likes."""

    def __init__(
        self, folder: NodeFolder, given: str = "", method: str = "fedavg", dataset: Any = None, **node_config: Any
    ) -> None:  # fmt: skip
        identify_process()
        flat = {"method": method, "rounds": 10, **(dataset or {})}
        self.config = resolve(flat | {"set": given if dataset else f"{SHORT} {given}"})
        own = {"domain": folder.domain, "data-dir": str(folder.path), **node_config}
        self.context: Context = make_context(7, own, {})

    @functools.cached_property
    def weights(self) -> Arrays:
        return decode(run_build.prepare(self.config, "deployment")[0])

    def content(self, server_round: int = 1, **more: Any) -> RecordDict:
        """Return what a message holds; ``domains=["scan"]`` and the like are added to its record ``config``."""
        given = {names.RUN_ID: RUN_ID, names.NODE_INDEX: 0, names.ENGINE: "deployment",
                 names.RUN: self.config.model_dump_json(), names.SERVER_ROUND: server_round, **more}  # fmt: skip
        return RecordDict({"arrays": encode(self.weights), "knowledge": ArrayRecord(), "config": ConfigRecord(given)})

    def send(self, kind: str, content: RecordDict) -> Message:
        """Return the reply to a message."""
        reply: Message = client_app.app(Message(content, self.context.node_id, kind), self.context)
        return reply

    def ask(self, kind: str, server_round: int = 1, **more: Any) -> Message:
        """Return the reply to a message of a round."""
        return self.send(kind, self.content(server_round, **more))

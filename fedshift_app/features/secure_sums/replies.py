"""Parts of replies in a secure sum, as the server reads them: keys, statements, masked vectors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message

from fedshift_core.limits import Refused
from fedshift_core.secure import crypto
from fedshift_core.secure.identity import MOST_SIGNATURE
from fedshift_core.secure.layout import Layout
from fedshift_core.secure.statement import Statement
from fedshift_core.wire import names as wire
from fedshift_core.wire.records import array_record
from fedshift_strategies.federation.nodes import Node
from fedshift_strategies.federation.updates import decode

_MOST_SIGNED = (crypto.PUBLIC_BYTES, MOST_SIGNATURE)


@dataclass(frozen=True)
class Keys:
    """What a node has sent for a sum.

    Attributes:
        public: Its public keys, for encryption and for masks.
        signed: Its long-term public key and its signature under statement and keys; both empty where it has none.
        statement: What it states of its images, as it was sent.
    """

    public: tuple[bytes, bytes]
    signed: list[bytes]
    statement: bytes

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "Keys | None":
        """Return the keys of an answer; None where they are no two different points of the curve."""
        own, stated = texts_of(said, wire.SECURE_KEYS), texts_of(said, wire.SECURE_STATEMENTS)
        fits = len(own) == 2 and own[0] != own[1] and all(map(crypto.is_public, own)) and len(stated) == 1
        return cls((own[0], own[1]), _signed(said), stated[0]) if fits else None


def stated(node: Node) -> Statement:
    """Return what a node is to state, by what it announced."""
    return Statement.of(node.num_examples, node.class_counts)


def vector_of(reply: Message, name: str, layout: Layout) -> crypto.Residues:
    """Return the masked vector of a reply; raise ``Refused`` where it is none."""
    record = array_record(reply.content, name)
    arrays = decode(record) if record is not None else {}
    vector = arrays.get(wire.MASKED)
    if list(arrays) != [wire.MASKED] or vector is None:
        raise Refused(f"the reply lacks the one array {wire.MASKED!r} of a secure sum")
    if vector.shape != (layout.size,) or vector.dtype != np.uint32:
        raise Refused(
            f"{wire.MASKED} has shape {vector.shape} and type {vector.dtype}, expected ({layout.size},) and uint32"
        )
    return vector


def _signed(said: Mapping[str, Any]) -> list[bytes]:
    """Return a node's long-term public key and its signature; both empty where it sends none. Nodes check them."""
    parts = texts_of(said, wire.SECURE_SIGNED)
    fits = len(parts) == 2 and all(len(part) <= most for part, most in zip(parts, _MOST_SIGNED, strict=True))
    return parts if fits else [b"", b""]


def texts_of(said: Mapping[str, Any], name: str) -> list[bytes]:
    """Return a list of bytes that a node sends; an empty one where it is none."""
    value = said.get(name)
    return value if isinstance(value, list) and all(isinstance(part, bytes) for part in value) else []

"""Sums over nodes of which the server sees no part (``federation.secure_sums``)."""

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from fedshift_core.features import Case, Feature, FeatureOptions, Key, Need
from fedshift_core.limits import MOST_NODES
from fedshift_core.params import For
from fedshift_core.shown import History, Shown
from fedshift_core.wire import names as wire
from fedshift_strategies.contributions import Whole


class Options(FeatureOptions):
    """Keys of secure sums."""

    section = "federation"
    #: docs/deploy/secure-sums.md: which methods it fits, and what it does not protect from.
    secure_sums: bool = False
    """Whether the server learns only sums over nodes, of weights and contributions (on or off)."""
    secure_sums_nodes: Annotated[int, For("secure_sums", True)] = Field(3, ge=2, le=MOST_NODES)
    """Least number of nodes in a secure sum; a round with fewer is refused."""
    secure_sums_least: Annotated[float, For("secure_sums", True)] = Field(3.0, ge=1, le=MOST_NODES)
    """Least effective number of nodes in a secure sum, (sum f)^2 / sum f^2 of their weights f: n of n nodes that weigh
    the same. A round with fewer is refused.
    """
    secure_sums_range: Annotated[float, For("secure_sums", True)] = Field(64.0, gt=0, le=2**20)
    """Largest absolute change of a weight, and number of a contribution, in a secure sum; a node with a larger one
    sends nothing. Its rounding error is this over 2^32 / nodes.
    """


def _rules(case: Case) -> str:
    rule = case.config.aggregation
    if not Options.read(case.config).secure_sums:
        return ""
    if rule.weights == "domain-aware" and rule.balance == "exact":
        return (
            "federation.secure_sums=on: aggregation.balance=exact weighs nodes by their images of each class, which "
            "they do not tell each other; allowed is approximate"
        )
    if "merge" in case.method.strategy_class().of_sums and rule.weights not in ("method", "equal"):
        return (
            f"federation.secure_sums=on: {case.method.name!r} sums up the nodes' changes alike, which "
            f"aggregation.weights={rule.weights} hides; allowed are method and equal"
        )
    exact = any(isinstance(shape, Whole) for shape in case.method.strategy_class().contributes.values())
    if exact and case.config.federation.participation < 1 < case.config.rounds:
        return (
            f"federation.participation={case.config.federation.participation:g}: with federation.secure_sums=on "
            f"{case.method.name!r} may sum its nodes' features over the same nodes alone; allowed is 1, or rounds=1"
        )
    return ""


_SHARES = (
    Key(wire.SECURE_NODES, "list of int", "the other nodes that have dealt shares"),
    Key(wire.SECURE_TEXTS, "list of bytes", "their encrypted shares for this node"),
    Key(wire.SECURE_DIGESTS, "list of bytes", "their commitments to these, two of each"),
)
KEY = "secure_sums"  # of a round's line


def show(history: History) -> Shown:
    """Return a line on who saw what."""
    if history.config.federation.secure_sums:
        return Shown(protection=("Secure sums: the server saw sums over nodes alone.",))
    return Shown(protection=("Secure sums: none; the server saw the weights of each node.",))


FEATURE = Feature(
    "secure-sums",
    "Sums over nodes of which the server sees no part",
    "federation.secure_sums",
    "fedshift_app.features.secure_sums.server:SecureSums",
    "fedshift_app.features.secure_sums.node:SecureSumsOnNode",
    show=show,
    place=70,
    options=Options,
    needs=(Need("sums"),),
    hides="of each single node",
    rules=_rules,
    train=(
        *_SHARES,
        Key(wire.SECURE_SUMS, "list of text", "how each contribution is a sum"),
        Key(wire.SECURE_TERMS, "list of text", "losses in the sum"),
    ),
    evaluate=tuple(replace(key, replaces_scores=True) for key in _SHARES),
    query=(
        Key(wire.SECURE_STAGE, "text", "keys, shares or unmask"),
        Key(wire.SECURE_PURPOSE, "text", "what is summed: training, or answers in place of scores"),
        Key(wire.SECURE_NODES, "list of int", "the nodes of the round"),
        Key(wire.SECURE_KEYS, "list of bytes", "their public keys for encryption"),
        Key(wire.SECURE_MASK_KEYS, "list of bytes", "their public keys for masks"),
        Key(wire.SECURE_STATEMENTS, "list of bytes", "what each states: its images, and of which classes"),
        Key(wire.SECURE_SIGNED, "list of bytes", "by node its long-term public key and its signature under these"),
        Key(wire.SECURE_ALIVE, "list of int", "nodes whose vectors are in the sum"),
        Key(wire.SECURE_LOST, "list of int", "the others that have dealt shares"),
    ),
    query_reply=(
        Key(wire.SECURE_KEYS, "list of bytes", "public keys of a node, for encryption and for masks"),
        Key(wire.SECURE_STATEMENTS, "list of bytes", "what it states of its images: their number and classes"),
        Key(wire.SECURE_SIGNED, "list of bytes", "its long-term public key and its signature under these"),
        Key(wire.SECURE_TEXTS, "list of bytes", "encrypted shares for the other nodes"),
        Key(wire.SECURE_DIGESTS, "list of bytes", "commitments to the shares of all nodes, two of each"),
        Key(wire.SECURE_SEED, "bytes", "commitment to the seed of the node's mask"),
        Key(wire.SECURE_REVEALED, "list of bytes", "shares: of seeds of nodes in the sum, of keys of lost ones"),
    ),
)

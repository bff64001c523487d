"""The methods whose nodes learn by what the server sends: what each is sent, its terms, and what stays on a node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support import (
    ROUND,
    C,
    D,
    Float,
    as64,
    global_prototypes,
    gradient,
    in_phase,
    new_client,
    numerical_gradient,
    shared,
)
from torch import Tensor

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.copa import CopaClient
from fedshift_clients.methods.fedcode import FedCodeClient
from fedshift_clients.methods.feddap import FedDAPClient
from fedshift_clients.methods.fedgh import FedGHClient
from fedshift_clients.methods.fediir import GRADIENT, FedIIRClient
from fedshift_clients.methods.fedmlp import FedMLPClient
from fedshift_clients.methods.fedpac import FedPACClient
from fedshift_clients.methods.fedpall import FedPallClient
from fedshift_clients.methods.fedplvm import FedPLVMClient
from fedshift_clients.methods.fedproc import FedProcClient
from fedshift_clients.methods.fedproto import FedProtoClient
from fedshift_clients.methods.fedrcl import FedRCLClient
from fedshift_clients.methods.fedsa import FedSAClient
from fedshift_clients.methods.fedseproto import FedSeProtoClient
from fedshift_clients.methods.fedtgp import FedTGPClient
from fedshift_clients.methods.fpl import FPLClient
from fedshift_clients.methods.i2pfl import I2PFLClient
from fedshift_core.arrays import Arrays

#: Class and domain of the prototypes of FedDAP: domain 1, the node's, has none of class 2, the others none of class 1.
PAIRS = [(0, 0), (3, 0), (0, 1), (1, 1), (3, 1), (0, 2), (2, 2)]
#: Classes of FPL's and FedPLVM's cluster prototypes: class 1 has none.
CLUSTERS = [0, 0, 2, 3, 3, 3]
ALL, BODY, HEAD = {"encoder", "classifier"}, {"encoder"}, {"classifier"}
BOTH = {"encoder", "style_encoder"}


def drawn_rows(*shape: int, seed: int = 1) -> Any:
    """Return numbers from 0 to 1."""
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def by_pairs(pairs: list[tuple[int, int]]) -> Arrays:
    """Return FedDAP's prototypes of these classes and domains."""
    classes, domains = np.array(pairs, np.int64).reshape(-1, 2).T
    return {"prototypes": drawn_rows(len(pairs), D), "labels": classes.copy(), "domains": domains.copy()}


def clusters() -> Arrays:
    """Return cluster prototypes, several of a class."""
    return {"prototypes": drawn_rows(len(CLUSTERS), D), "labels": np.array(CLUSTERS)}


def with_styles() -> Arrays:
    """Return FedCode's prototypes, and those of three styles."""
    return global_prototypes() | {"style-prototypes": drawn_rows(3, D, seed=2)}


def amplified(hidden: int = 6, nodes: int = 2) -> Arrays:
    """Return FedPall's classifier, amplifier and prototypes: class 2 has none, and nobody has images of class 3."""
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return rng.normal(0, 0.3, shape).astype(np.float32)

    content: Arrays = {"head/weight": drawn(C, D), "head/bias": drawn(C), "amplifier/linear1": drawn(hidden, D)}
    content |= {"amplifier/linear2": drawn(hidden, hidden), "amplifier/linear3": drawn(nodes, hidden)}
    content |= {f"amplifier/scale{k}": 1 + drawn(hidden) for k in (1, 2)}
    content |= {f"amplifier/shift{k}": drawn(hidden) for k in (1, 2)}
    return content | {"prototypes": drawn(3, D), "labels": np.array([0, 1, 3])}


def domain_heads(number: int = 3) -> Arrays:
    """Return COPA's heads, one of each domain."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(number, C, D)), rng.normal(size=(number, C))
    return {"heads/weight": weight.astype(np.float32), "heads/bias": bias.astype(np.float32)}


def head_gradient() -> Arrays:
    """Return FedIIR's mean gradient of the head."""
    return {GRADIENT: 0.1 * np.random.default_rng(3).normal(size=C * D + C).astype(np.float32)}


@dataclass(frozen=True)
class Case:
    """A method: its client, what the server sends it, and each term of a later round with the parts that it moves."""

    kind: type[DomainClient]
    sent: Callable[[], Arrays]
    terms: Mapping[str, set[str]]
    first: tuple[str, ...] = ("ce",)  # of a round to which the server sent nothing
    missing: frozenset[str] = frozenset()  # terms that are 0 for images of class 1, which has no prototype
    stays: frozenset[str] = frozenset()  # parts of the model that do not travel
    scalars: Mapping[str, int | float | str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)  # with which terms are compared

    def client(self, params: Mapping[str, Any] | None = None, sent: Arrays | None = None, **options: Any) -> Any:
        """Return a client to which the server has sent its knowledge."""
        known = self.sent() if sent is None else sent
        return new_client(self.kind, dict(params or {}), known, scalars=self.scalars, **options)

    def ready(self, params: Mapping[str, Any] | None = None, sent: Arrays | None = None, **options: Any) -> Any:
        """Return a client before the first batch of the last phase of a round."""
        made = self.client({**self.params, **(params or {})}, sent, **options)
        made.take(shared(made))
        return in_phase(made, ROUND, place=-1)


KEPT = frozenset(ALL)
CASES = {
    "copa": Case(CopaClient, domain_heads, {"ce": ALL, "others": BODY}, scalars={"head": 1}),
    "fedcode": Case(
        FedCodeClient, with_styles,
        {"ce": ALL, "semcl": BOTH, "stycl": BOTH, "fdr": BOTH}, ("ce", "fdr"),
        frozenset({"semcl"}), frozenset({"style_encoder", "classifier"}), {"pseudo-label": 1},
    ),
    "feddap": Case(
        FedDAPClient, lambda: by_pairs(PAIRS), {"ce": ALL, "dpa": BODY, "cpcl": BODY}, missing=frozenset({"cpcl"}),
        scalars={"domain": 1},
    ),
    "fedgh": Case(
        FedGHClient, lambda: {"head/weight": drawn_rows(C, D), "head/bias": drawn_rows(C)}, {"ce": ALL}, stays=KEPT
    ),
    "fediir": Case(FedIIRClient, head_gradient, {"ce": ALL, "iir": ALL}),
    "fedmlp": Case(
        FedMLPClient, global_prototypes, {"ce": ALL, "proto": BODY, "semantic": BODY},
        missing=frozenset({"proto", "semantic"}),
    ),
    "fedpac": Case(FedPACClient, global_prototypes, {"ce": BODY, "align": BODY}),
    "fedpall": Case(FedPallClient, amplified, {"ce": ALL, "adv": BODY, "con": BODY}, stays=KEPT),
    "fedplvm": Case(
        FedPLVMClient, clusters, {"ce": ALL, "sparse": BODY, "correct": BODY},
        missing=frozenset({"sparse", "correct"}),
    ),
    "fedproc": Case(
        FedProcClient, global_prototypes, {"ce": ALL, "gpc": BODY}, missing=frozenset({"gpc"}), scalars={"alpha": 0.75}
    ),
    "fedproto": Case(
        FedProtoClient, global_prototypes, {"ce": ALL, "proto": BODY}, missing=frozenset({"proto"}), stays=KEPT
    ),
    "fedrcl": Case(
        FedRCLClient, dict, {"ce": ALL, "scl": BODY, "penalty": BODY}, ("ce", "scl", "penalty")
    ),
    "fedsa": Case(
        FedSAClient, lambda: {"anchors": drawn_rows(C, D, seed=7)},
        {"ce": ALL, "calibration": HEAD, "anchor": BODY, "margin": BODY}, stays=KEPT,
    ),
    "fedseproto": Case(
        FedSeProtoClient, global_prototypes,
        {
            "ce": {"encoder", "semantic"}, "kd": {"encoder", "semantic", "domain"},
            "mi": {"encoder", "semantic", "domain", "decoder"}, "proto": {"encoder", "semantic"},
        },
        ("ce", "kd", "mi"), frozenset({"proto"}), frozenset({"domain", "decoder"}), params={"mi_form": "l2"},
    ),
    "fedtgp": Case(
        FedTGPClient, global_prototypes, {"ce": ALL, "proto": BODY}, missing=frozenset({"proto"}), stays=KEPT
    ),
    "fpl": Case(
        FPLClient, clusters, {"ce": ALL, "cpcl": BODY, "upcr": BODY}, missing=frozenset({"cpcl", "upcr"})
    ),
    "i2pfl": Case(
        I2PFLClient, global_prototypes, {"ce": ALL, "apa": BODY, "gpcl": BODY}, ("ce", "apa"),
        frozenset({"gpcl"}), params={"tau": 0.5},
    ),
}  # fmt: skip


def check_term(
    fast: Callable[[Tensor], Tensor], slow: Callable[[Float], float], x: Tensor, rel: float = 1e-4,
    slope: tuple[float, float] = (1e-3, 1e-4),
) -> None:  # fmt: skip
    """Check that a term and its gradient are those of a slow version in float64."""
    assert float(fast(x).detach()) == pytest.approx(slow(as64(x)), rel=rel, abs=1e-6)
    wanted = numerical_gradient(slow, x)
    np.testing.assert_allclose(as64(gradient(fast, x)), wanted, rtol=slope[0], atol=slope[1])

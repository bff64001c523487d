"""The methods whose nodes learn by what the server sends: what each is sent, its terms, and what stays on a node."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from support import (
    ROUND,
    C,
    D,
    global_prototypes,
    in_phase,
    new_client,
    shared,
)

from fedshift_app.config import registry
from fedshift_clients.methods.fediir import GRADIENT
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


def body(*names: str) -> dict[str, set[str]]:
    """Return the cross-entropy, which moves all, and terms that move the encoder alone."""
    return {"ce": ALL} | dict.fromkeys(names, BODY)


@dataclass(frozen=True)
class Case:
    """A method: what the server sends a node, and each term of a later round with the parts that it moves."""

    sent: Callable[[], Arrays]
    terms: Mapping[str, set[str]]
    missing: str = ""  # terms that are 0 for images of class 1, which has no prototype
    stays: str = ""  # parts of the model that do not travel
    first: str = "ce"  # terms of a round to which the server sent nothing
    scalars: Mapping[str, int | float | str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)  # with which terms are compared

    @property
    def name(self) -> str:
        """The method's name."""
        return next(name for name, case in CASES.items() if case is self)

    @property
    def kind(self) -> Any:
        """The class of its client."""
        return registry.get(self.name).client_class()

    def client(self, params: Mapping[str, Any] | None = None, sent: Arrays | None = None, **options: Any) -> Any:
        """Return a client to which the server has sent its knowledge."""
        known = self.sent() if sent is None else sent
        return new_client(self.kind, dict(params or {}), known, scalars=self.scalars, **options)

    def ready(self, params: Mapping[str, Any] | None = None, sent: Arrays | None = None, **options: Any) -> Any:
        """Return a client before the first batch of the last phase of a round."""
        made = self.client({**self.params, **(params or {})}, sent, **options)
        made.take(shared(made))
        return in_phase(made, ROUND, place=-1)


KEPT = "encoder classifier"
PROTO = Case(global_prototypes, body("proto"), "proto", KEPT)
SEPROTO = {"encoder", "semantic"}
CASES = {
    "copa": Case(domain_heads, body("others"), scalars={"head": 1}),
    "fedcode": Case(
        with_styles, {"ce": ALL, "semcl": BOTH, "stycl": BOTH, "fdr": BOTH}, "semcl", "style_encoder classifier",
        "ce fdr", {"pseudo-label": 1},
    ),
    "feddap": Case(lambda: by_pairs(PAIRS), body("dpa", "cpcl"), "cpcl", scalars={"domain": 1}),
    "fedgh": Case(lambda: {"head/weight": drawn_rows(C, D), "head/bias": drawn_rows(C)}, body(), "", KEPT),
    "fediir": Case(head_gradient, {"ce": ALL, "iir": ALL}),
    "fedmlp": Case(global_prototypes, body("proto", "semantic"), "proto semantic"),
    "fedpac": Case(global_prototypes, {"ce": BODY, "align": BODY}),
    "fedpall": Case(amplified, body("adv", "con"), "", KEPT),
    "fedplvm": Case(clusters, body("sparse", "correct"), "sparse correct"),
    "fedproc": Case(global_prototypes, body("gpc"), "gpc", scalars={"alpha": 0.75}),
    "fedproto": PROTO,
    "fedrcl": Case(dict, body("scl", "penalty"), first="ce scl penalty"),
    "fedsa": Case(
        lambda: {"anchors": drawn_rows(C, D, seed=7)},
        {"ce": ALL, "calibration": HEAD, "anchor": BODY, "margin": BODY}, "", KEPT,
    ),
    "fedseproto": Case(
        global_prototypes,
        {"ce": SEPROTO, "kd": SEPROTO | {"domain"}, "mi": SEPROTO | {"domain", "decoder"}, "proto": SEPROTO},
        "proto", "domain decoder", "ce kd mi", params={"mi_form": "l2"},
    ),
    "fedtgp": replace(PROTO),
    "fpl": Case(clusters, body("cpcl", "upcr"), "cpcl upcr"),
    "i2pfl": Case(global_prototypes, body("apa", "gpcl"), "gpcl", "", "ce apa", params={"tau": 0.5}),
}  # fmt: skip

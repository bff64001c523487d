"""Every method's terms: the parts that they move, the switch of each, batches without a prototype, a first round."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CASES
from support import batch, gradients, parts_of
from torch import Tensor

Terms = dict[str, tuple[float, dict[str, Tensor]]]


def terms_of(method: str, params: dict[str, Any], y: tuple[int, ...] | None = None) -> Terms:
    """Return the terms of the second batch of a round, and their gradients."""
    made = CASES[method].ready(params)
    made.terms_of(batch(first=7))
    return gradients(made, batch(y=y))


@functools.cache
def by_default(method: str) -> Terms:
    """Return what each switch of a method is held against."""
    return terms_of(method, {})


@pytest.mark.parametrize("method", CASES)
def test_each_term_is_positive_and_moves_its_parts_alone(method: str) -> None:
    found = by_default(method)
    assert list(found) == list(CASES[method].terms)
    for name, (value, slopes) in found.items():
        assert value > 0 and all(slope.isfinite().all() for slope in slopes.values())
        assert parts_of(weight for weight, slope in slopes.items() if slope.any()) == CASES[method].terms[name], name


#: Switches that turn off the term of their name.
OWN = {
    "copa": "lambda_others", "fedcode": "use_semcl use_stycl use_fdr", "fediir": "lambda_iir",
    "fedmlp": "lambda_proto lambda_semantic", "fedpac": "lambda_align", "fedpall": "lambda_adv lambda_con",
    "fedproto": "lambda_proto", "fedrcl": "lambda_scl lambda_penalty",
    "fedsa": "lambda_calibration lambda_anchor lambda_margin", "fedseproto": "use_kd use_mi use_proto",
    "fpl": "use_cpcl use_upcr", "i2pfl": "use_gpcl use_apa",
}  # fmt: skip
#: Method, parameters, the terms that they change; with a minus, those that they turn off. What other values change
#: is in test_equations_of_methods.
SWITCHES: list[tuple[str, dict[str, Any], str]] = [
    (method, {switch: 0.0 if switch.startswith("lambda") else False}, f"-{switch.partition('_')[2]}")
    for method, switches in OWN.items()
    for switch in switches.split()
] + [
    ("fedcode", {"alpha": 0.0, "beta": 0.0}, "-semcl -stycl -fdr"),
    ("fedcode", {"fdr_form": "literal"}, "fdr"),
    ("fedcode", {"share_head": True, "proto_source": "last_epoch"}, ""),
    ("fedcode", {"global_model": "average_heads"}, ""),
    ("feddap", {"lambda1": 0.0}, "-dpa"),
    ("feddap", {"lambda2": 0.0}, "-cpcl"),
    ("fedplvm", {"use_contrast": False}, "-sparse"),
    ("fedplvm", {"use_correction": False}, "-correct"),
    ("fedproto", {"share_weights": True, "predict_by": "prototype"}, ""),
    ("fedseproto", {"alpha": 0.0, "lambda_proto": 0.0}, "-kd -proto"),
    ("fedseproto", {"kl_direction": "student_teacher"}, "kd"),
    ("i2pfl", {"lambda1": 0.0, "lambda2": 0.0}, "-apa -gpcl"),
    ("i2pfl", {"augproto_scope": "class_set"}, "apa"),
    ("i2pfl", {"augproto_scope": "epoch"}, ""),
    ("i2pfl", {"augproto_scope": "round"}, ""),
]


@pytest.mark.parametrize(("method", "params", "changed"), SWITCHES)
def test_a_switch_changes_exactly_the_terms_it_names(method: str, params: dict[str, Any], changed: str) -> None:
    default, switched = by_default(method), terms_of(method, params)
    assert {f"-{name}" for name in default.keys() - switched.keys()} == {n for n in changed.split() if n[0] == "-"}
    for name, (value, slopes) in switched.items():
        before, slopes_before = default[name]
        alike = value == before and all(torch.equal(slope, slopes_before[of]) for of, slope in slopes.items())
        assert alike is (name not in changed.split()), name


@pytest.mark.parametrize("y", [(1,), (1, 1, 1), (0,)])
@pytest.mark.parametrize("method", CASES)
def test_small_batches_and_classes_without_a_prototype(method: str, y: tuple[int, ...]) -> None:
    for name, (value, slopes) in terms_of(method, {}, y).items():
        assert np.isfinite(value) and all(slope.isfinite().all() for slope in slopes.values())
        assert name not in CASES[method].missing.split() or (value > 0) == (y == (0,)), name


@pytest.mark.parametrize("method", [name for name in CASES if name != "copa"])
def test_a_first_round_has_the_terms_that_need_nothing_of_the_server(method: str) -> None:
    case = CASES[method]
    assert list(case.ready(sent={}).terms_of(batch())) == case.first.split()
    dead = case.ready()
    with torch.no_grad():
        for layer in list(dead.model.encoder.children())[-2:-1]:
            layer.weight.zero_()
            layer.bias.fill_(-1)
    for value, slopes in gradients(dead, batch()).values():  # all features are 0
        assert np.isfinite(value) and all(slope.isfinite().all() for slope in slopes.values())

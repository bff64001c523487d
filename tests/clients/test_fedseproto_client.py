"""FedSeProto on a node: phases, sampled codes, the decoder, stopped gradients, the collapse of Fig. 4."""

from functools import partial
from typing import Any

import pytest
import torch
from support import batch, global_prototypes, gradients, in_phase, new_client
from torch import Tensor

from fedshift_clients.methods.fedseproto import FedSeProtoClient, SideEncoder

client = partial(new_client, FedSeProtoClient)


def started(params: dict[str, Any] | None = None, *, phase: int = 2) -> FedSeProtoClient:
    """A client in phase 2, which is always the last one, or in phase 1."""
    return in_phase(client(params, global_prototypes()), place=0 if phase == 1 else -1)


# --- the slow version of Eq. 10 to 15 --------------------------------------------------------------


def test_phase_1_is_the_cross_entropy_of_the_general_features() -> None:
    made, given = started(phase=1), batch()
    wanted = torch.nn.functional.cross_entropy(made.model.classifier(made.model.encoder(given.x)), given.y)
    torch.testing.assert_close(made.terms_of(given), {"ce_base": wanted})


# --- the decoder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e4, -1e4])
def test_variance_stays_within_bounds(value: float) -> None:
    side = SideEncoder(3, gaussian=True)
    code = side(torch.full((2, 3), value), torch.ones(2, 3))
    assert code.log_variance is not None
    assert float(code.log_variance.detach().abs().max()) <= 10
    assert code.sample.isfinite().all()


# --- switches --------------------------------------------------------------------------------------


def values_and_gradients(params: dict[str, Any], phase: int = 2) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Each term of a batch, and its gradient with respect to each part of the model."""
    content = {}
    for name, (value, grads) in gradients(started(params, phase=phase), batch()).items():
        parts: dict[str, list[Tensor]] = {}
        for of, grad in grads.items():
            parts.setdefault(of.split(".")[0], []).append(grad.flatten())
        content[name] = (value, {part: torch.cat(each) for part, each in parts.items()})
    return content


@pytest.mark.parametrize("params", [{"use_mi": False}, {"beta": 0.0}, {"mi_form": "l2"}])
def test_without_gaussian_codes_nothing_is_sampled(params: dict[str, Any]) -> None:
    """The cross-entropy then sees the mean; distillation and prototypes always do."""
    default, switched = values_and_gradients({}), values_and_gradients(params)
    assert [switched[name][0] == default[name][0] for name in ("ce", "kd", "proto")] == [False, True, True]
    made = started(params)
    assert torch.equal(made.terms_of(batch())["ce"], made.terms_of(batch())["ce"])


def test_mi_stopgrad_keeps_mi_out_of_the_general_encoder_and_changes_no_value() -> None:
    default, stopped = values_and_gradients({}), values_and_gradients({"mi_stopgrad": True})
    assert default["mi"][1]["encoder"].any() and not stopped["mi"][1]["encoder"].any()
    for name, (value, grads) in default.items():
        assert stopped[name][0] == pytest.approx(value, rel=1e-6)
        for part in ("semantic", "domain", "decoder") if name == "mi" else ("encoder",):
            torch.testing.assert_close(stopped[name][1][part], grads[part])


@pytest.mark.parametrize(("phase", "params", "term"), [(1, {}, "ce_base"), (2, {"schedule": "joint"}, "ce")])
def test_the_head_learns_from_a_cross_entropy_alone(phase: int, params: dict[str, Any], term: str) -> None:
    """A4: else it could make the distillation small by itself."""
    for name, (_, grads) in values_and_gradients(params, phase).items():
        assert grads["classifier"].any().item() == (name == term)


# --- phases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "server_round", "epochs", "learns"),
    [
        ("two_phase_each_round", 5, [2, 1], [True, False]),
        ("phase1_first_round_only", 1, [2, 1], [True, False]),
        ("phase1_first_round_only", 5, [0, 3], [True, False]),
        ("joint", 5, [3], [True]),
    ],
)
def test_schedule(schedule: str, server_round: int, epochs: list[int], learns: list[bool]) -> None:
    made = client({"schedule": schedule, "phase1_epochs": 2}, epochs=3)
    phases = made.phases(server_round)
    assert [phase.epochs for phase in phases] == epochs
    assert [phase.learns("classifier.weight") for phase in phases] == learns


# --- the collapse of Fig. 4 -------------------------------------------------------------------------


# --- what travels ----------------------------------------------------------------------------------


# --- determinism, and the way back to FedAvg -------------------------------------------------------

"""Every method's rounds: a node's contribution and memory, initial weights, and the way back to FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CASES, domain_heads, head_gradient
from support import (
    IMAGES,
    ROUND,
    C,
    Extra,
    batch,
    check_accepted,
    fedavg,
    fit,
    image_set,
    new_client,
    normalised,
    parts_of,
    same,
    shared,
    whole,
)  # fmt: skip

from fedshift_clients.base import DomainClient
from fedshift_clients.methods.copa import CopaClient
from fedshift_clients.methods.fdse import FDSEClient
from fedshift_clients.methods.fedala import FedALAClient
from fedshift_clients.methods.fedccrl import FedCCRLClient
from fedshift_clients.methods.feddyn import FedDynClient
from fedshift_clients.methods.fedgh import FedGHClient
from fedshift_clients.methods.fedicon import FedICONClient
from fedshift_clients.methods.fedmd import FedMDClient
from fedshift_clients.methods.fedpall import FedPallClient
from fedshift_clients.methods.fedprox import FedProxClient
from fedshift_clients.methods.fedrep import FedRepClient
from fedshift_clients.methods.fedsr import FedSRClient
from fedshift_clients.methods.gperxan import GPerXANClient
from fedshift_clients.methods.i2pfl import I2PFLClient
from fedshift_clients.methods.local import LocalClient
from fedshift_clients.methods.moon import MoonClient
from fedshift_clients.methods.scaffold import ScaffoldClient
from fedshift_clients.methods.stablefdg import StableFDGClient
from fedshift_clients.models.networks import build
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_core.wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, SERVER_ROUND
from fedshift_strategies.methods.fedcode import FedCodeStrategy
from fedshift_strategies.methods.feddap import FedDAPStrategy
from fedshift_strategies.methods.fedgh import FedGHStrategy
from fedshift_strategies.methods.fedmlp import FedMLPStrategy
from fedshift_strategies.methods.fedpac import FedPACStrategy
from fedshift_strategies.methods.fedpall import FedPallStrategy
from fedshift_strategies.methods.fedplvm import FedPLVMStrategy
from fedshift_strategies.methods.fedproc import FedProcStrategy
from fedshift_strategies.methods.fedproto import FedProtoStrategy
from fedshift_strategies.methods.fedsa import FedSAStrategy
from fedshift_strategies.methods.fedseproto import FedSeProtoStrategy
from fedshift_strategies.methods.fedtgp import FedTGPStrategy
from fedshift_strategies.methods.fpl import FPLStrategy
from fedshift_strategies.methods.i2pfl import I2PFLStrategy

STRATEGIES: dict[str, Any] = {
    "fedcode": FedCodeStrategy, "feddap": FedDAPStrategy, "fedgh": FedGHStrategy, "fedmlp": FedMLPStrategy,
    "fedpac": FedPACStrategy,
    "fedpall": FedPallStrategy, "fedplvm": FedPLVMStrategy, "fedproc": FedProcStrategy, "fedproto": FedProtoStrategy,
    "fedsa": FedSAStrategy, "fedseproto": FedSeProtoStrategy, "fedtgp": FedTGPStrategy, "fpl": FPLStrategy,
    "i2pfl": I2PFLStrategy,
}  # fmt: skip
#: Methods whose prototypes may be those of the last epoch.
BY_EPOCH = ["fedcode", "feddap", "fedmlp", "fedproto", "fedsa", "fpl", "i2pfl"]
EPOCHS = {"fedseproto": 2}  # one of each phase


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", STRATEGIES)
def test_the_server_takes_what_a_round_contributes(method: str, precision: str) -> None:
    params = {"proto_source": "last_epoch"} if precision == "bf16" and method in BY_EPOCH else {}
    made = CASES[method].client(params, epochs=EPOCHS.get(method, 1), precision=precision)
    arrays, metrics = fit(made, ROUND)
    check_accepted(made, STRATEGIES[method])
    terms = [value for name, value in metrics.items() if name.startswith("loss/")]
    assert np.isfinite(terms).all() and all(np.isfinite(array).all() for array in arrays)
    if len(made.phases(ROUND)) == 1:
        assert list(CASES[method].terms) == [n.removeprefix("loss/") for n in metrics if n.startswith("loss/")]
        assert metrics["loss"] == pytest.approx(sum(terms))


@pytest.mark.parametrize("classes", [C - 1, 1])
@pytest.mark.parametrize("method", [name for name in STRATEGIES if name != "fedplvm"])
def test_prototypes_are_the_class_means_in_evaluation_mode(method: str, classes: int) -> None:
    """Not augmented, running statistics in BatchNorm, weights as they are after training."""
    images = image_set(classes=classes)
    made = CASES[method].client(model="cnn_bn", train_set=images, epochs=EPOCHS.get(method, 1))
    fit(made, ROUND)
    sent, y = made.contribution(), images.y
    made.model.eval()
    with torch.no_grad():
        h = made.forward(normalised(images, made.setup.images))[0].numpy()
    assert sent["counts"].tolist() == np.bincount(y, minlength=C).tolist()
    for k in range(C):
        wanted = h[y == k].mean(axis=0) if (y == k).any() else np.zeros(h.shape[1])
        np.testing.assert_allclose(sent["prototypes"][k], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", BY_EPOCH)
def test_prototypes_of_the_last_epoch_are_means_of_what_it_saw(method: str) -> None:
    made = CASES[method].ready({"proto_source": "last_epoch"})
    for epoch in range(2):  # the first one is forgotten
        made.start_epoch(epoch)
        batches = [batch(6, 10 * epoch + i, [0, 1, 2, 0, 1, 1]) for i in range(2)]
        for given in batches:
            made.terms_of(given)
    with torch.no_grad():
        h = np.concatenate([made.forward(given.x)[0].numpy() for given in batches])
    y = np.concatenate([given.y.numpy() for given in batches])
    sent = made.finish_round(ROUND)
    assert sent["counts"].tolist() == [4, 6, 2, 0]
    for k in range(C - 1):
        np.testing.assert_allclose(sent["prototypes"][k], h[y == k].mean(axis=0), rtol=1e-4, atol=1e-5)
    assert not sent["prototypes"][3].any()
    ends = []  # where prototypes come from changes nothing of the training
    for source in ("after_training", "last_epoch"):
        trained = CASES[method].client({"proto_source": source})
        ends.append((fit(trained, ROUND)[1], whole(trained), trained.contribution()))
    assert ends[0][0] == ends[1][0] and same(ends[0][1], ends[1][1])
    assert not np.allclose(ends[0][2]["prototypes"], ends[1][2]["prototypes"])


VIEWS = IMAGES.model_copy(update={"views": 2})
#: Clients that keep something between rounds: class, parameters, what the server sends, and options.
KEEPING: dict[str, tuple[type[DomainClient], dict[str, Any], dict[str, Any]]] = {
    "fdse": (FDSEClient, {}, {}), "fedicon": (FedICONClient, {"gis": False}, {"images": VIEWS}),
    "fedala": (FedALAClient, {}, {}),
    "fedbn": (DomainClient, {}, {"model": "cnn_bn", "bn": "local"}), "feddyn": (FedDynClient, {}, {}),
    "feddyn, private norm": (FedDynClient, {}, {"model": "cnn_bn", "bn": "local"}), "fedrep": (FedRepClient, {}, {}),
    "fedsr": (FedSRClient, {}, {}), "gperxan": (GPerXANClient, {}, {"model": "cnn_bn"}),
    "gperxan, averaged": (GPerXANClient, {"batch_norm": "averaged"}, {"model": "cnn_bn"}),
    "i2pfl": (I2PFLClient, {"augproto_scope": "round"}, {}), "local": (LocalClient, {}, {"model": "cnn_bn"}),
    "moon": (MoonClient, {"projection": "mlp"}, {}),
    "moon, private norm": (MoonClient, {}, {"model": "cnn_bn", "bn": "local"}),
    "scaffold": (ScaffoldClient, {}, {}),
    "modules": (DomainClient, {}, {"modules": [Extra()]}),
    "f2dc": (DomainClient, {}, {
        "modules": [F2DCModules(F2DCParams(local_modules="local", eval_modules="client_mean"))],
    }),
} | {name: (case.kind, {}, {"knowledge": case.sent(), "scalars": case.scalars})
     for name, case in CASES.items() if case.stays}  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
def test_a_client_made_anew_goes_on_from_its_memory(name: str) -> None:
    """Both engines make a client for each message; what does not travel is kept, and nothing else of the model."""
    kind, params, options = KEEPING[name]
    before = new_client(kind, params, **options)
    start = shared(before)
    fit(before, 1, start)
    private = {f"model/{part}" for part in before.model.state_dict() if part not in before.shared_names}
    assert private == {part for part in before.memory if part.startswith("model/")}
    anew = new_client(kind, params, **options)
    anew.memory = {part: array.copy() for part, array in before.memory.items()}
    assert anew.memory
    (arrays, metrics), (wanted, expected) = fit(anew, 4, start), fit(before, 4, start)
    assert same(arrays, wanted) and same(whole(anew), whole(before))
    assert metrics == expected
    forgetful = new_client(kind, params, **options)
    fit(forgetful, 4, start)
    assert not same(whole(forgetful), whole(before))


@pytest.mark.parametrize("method", CASES)
def test_what_travels_and_what_stays(method: str) -> None:
    case, made = CASES[method], CASES[method].client()
    assert parts_of(made.model.state_dict().keys() - set(made.shared_names)) == case.stays
    assert case.kind.personal(made.model, made.setup.model, made.params) is (
        method == "fedpac" or "classifier" in case.stays
    )


OFF_SEPROTO = {"schedule": "joint", "use_kd": False, "use_mi": False, "use_proto": False}
#: Clients with their own terms off, and what the server sends them all the same.
OFF: dict[str, tuple[type[DomainClient], dict[str, Any], dict[str, Any]]] = {
    "f2dc": (DomainClient, {}, {"modules": [F2DCModules(F2DCParams(use_dfd_loss=False, use_dfc_loss=False))]}),
    "fedccrl": (FedCCRLClient, {"copies": 0}, {}),
    "fedgh": (FedGHClient, {}, {}),
    "fedicon": (FedICONClient, {"lie": False}, {}),
    "fediir": (CASES["fediir"].kind, {"lambda_iir": 0.0}, {"knowledge": head_gradient()}),
    "fedmd": (FedMDClient, {"public_epochs": 0, "first_epochs": None, "digest_epochs": 0}, {}),
    "fedpall": (FedPallClient, {"lambda_adv": 0, "lambda_con": 0, "take": 0}, {}),
    "fedprox": (FedProxClient, {"mu": 0.0}, {}),
    "fedproto": (CASES["fedproto"].kind, {"lambda_proto": 0.0}, {"knowledge": CASES["fedproto"].sent()}),
    "fedseproto": (CASES["fedseproto"].kind, OFF_SEPROTO, {"knowledge": CASES["fedseproto"].sent()}),
    "local": (LocalClient, {}, {}),
    "stablefdg": (StableFDGClient, {"shift": 0.0, "explore": 0.0, "attention": False}, {}),
}


@pytest.mark.parametrize("name", OFF)
def test_switched_off_it_is_fedavg_bit_for_bit(name: str) -> None:
    """Of one node, where weights do not travel."""
    kind, params, options = OFF[name]
    made = new_client(kind, params, epochs=1, **options)
    plain = fedavg(epochs=1, network=new_client(kind, params).model if name == "fedseproto" else None)
    for server_round in (1, 2):
        assert fit(made, server_round)[1] == fit(plain, server_round)[1]
    state, wanted = made.model.state_dict(), plain.model.state_dict()
    assert all(torch.equal(state[part], wanted[part]) for part in wanted if not part.startswith(("domain", "decoder")))


def test_copa_in_a_federation_of_one_domain_is_fedavg() -> None:
    plain = fedavg(epochs=1)
    state = plain.model.state_dict()
    only = {name: state[name.replace("heads", "classifier").replace("/", ".")].numpy()[None] for name in domain_heads()}
    made = new_client(CopaClient, knowledge=only, scalars={"head": 0}, epochs=1)
    assert fit(made)[1] == fit(plain)[1]
    assert same(whole(made), whole(plain))


INITIAL: dict[str, tuple[type[DomainClient], dict[str, Any], dict[str, Any]]] = {
    "f2dc": (DomainClient, {}, {"modules": [F2DCModules(F2DCParams())]}), "fdse": (FDSEClient, {}, {}),
    "fedicon": (FedICONClient, {"projection": "mlp"}, {}), "fedsr": (FedSRClient, {}, {}),
    "gperxan": (GPerXANClient, {}, {}), "moon": (MoonClient, {"projection": "mlp"}, {}),
    "stablefdg": (StableFDGClient, {}, {}),
} | {name: (case.kind, {}, {}) for name, case in CASES.items()}  # fmt: skip


@pytest.mark.parametrize("name", INITIAL)
def test_initial_weights_depend_on_the_seed_alone_and_the_network_starts_as_in_fedavg(name: str) -> None:
    kind, params, options = INITIAL[name]
    ends = []
    for noise, initial in ((1, 0), (2, 0), (1, 1)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        made = new_client(kind, params, model="cnn_bn", initial=initial, **options)
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(made.model.state_dict())
    assert all(torch.equal(tensor, ends[1][part]) for part, tensor in ends[0].items())
    other = {part for part, tensor in ends[0].items() if not torch.equal(tensor, ends[2][part])}
    assert parts_of(other) == parts_of(ends[0]) - {"reference"}  # FedSR's, which begin at 0 and 1
    plain = build("cnn_bn", C, 0).encoder.state_dict()
    begins = {part: ends[0][f"encoder.{part}"] for part in plain if f"encoder.{part}" in ends[0]}
    assert begins and all(torch.equal(tensor, plain[part]) for part, tensor in begins.items())


def test_a_node_that_trains_alone_is_scored_with_its_own_model() -> None:
    made = new_client(LocalClient, epochs=1)
    fresh, requested = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})[0], {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a"]}
    trained = made.fit([], requested)[2]
    loss, _, scores = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})
    assert scores[CORRECT + "a"] == trained[LOCAL_CORRECT + "a"] and loss != fresh

"""Every method's rounds: a node's contribution and memory, initial weights, and the way back to FedAvg."""

from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CASES, domain_heads
from support import (
    IMAGES,
    ROUND,
    C,
    Extra,
    batch,
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

from fedshift_app.config import registry
from fedshift_clients.models.networks import build
from fedshift_clients.modules.f2dc import F2DCModules
from fedshift_clients.modules.params import F2DCParams
from fedshift_core.wire.names import CORRECT, DOMAINS, LOCAL_CORRECT, LOCAL_DOMAINS, SERVER_ROUND

STRATEGIES = [name for name in CASES if name not in ("copa", "fediir", "fedrcl")]
#: Methods whose prototypes may be those of the last epoch.
BY_EPOCH = ["fedcode", "feddap", "fedmlp", "fedproto", "fedsa", "fpl", "i2pfl"]
EPOCHS = {"fedseproto": 2}  # one of each phase


@pytest.mark.parametrize("classes", [C - 1, 1])
@pytest.mark.parametrize("method", [name for name in STRATEGIES if name != "fedplvm"])
def test_prototypes_are_the_class_means_in_evaluation_mode(method: str, classes: int) -> None:
    """Not augmented, running statistics in BatchNorm, weights as they are after training."""
    images = image_set(12, classes=classes)
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
        trained = CASES[method].client({"proto_source": source}, epochs=1)
        ends.append((fit(trained, ROUND)[1], whole(trained), trained.contribution()))
    assert ends[0][0] == ends[1][0] and same(ends[0][1], ends[1][1])
    assert not np.allclose(ends[0][2]["prototypes"], ends[1][2]["prototypes"])


VIEWS = IMAGES.model_copy(update={"views": 2})
PRIVATE = {"model": "cnn_bn", "bn": "local"}
NORMED = {"model": "cnn_bn"}


def f2dc(**params: Any) -> dict[str, Any]:
    """Return the option of a client with F2DC's modules."""
    return {"modules": [F2DCModules(F2DCParams(**params))]}


def client_of(method: str, params: dict[str, Any], **options: Any) -> Any:
    return new_client(registry.get(method.split(",")[0]).client_class(), params, **options)


def sent_to(method: str) -> dict[str, Any]:
    return {"knowledge": CASES[method].sent(), "scalars": CASES[method].scalars}


Rows = dict[str, tuple[dict[str, Any], dict[str, Any]]]
#: Clients that keep something between rounds: parameters and options, with what the server sends.
KEEPING: Rows = {
    "fdse": ({}, {}), "fedicon": ({"gis": False}, {"images": VIEWS}), "fedala": ({}, {}), "fedbn": ({}, PRIVATE),
    "feddyn": ({}, {}), "feddyn, private norm": ({}, PRIVATE), "fedrep": ({}, {}), "fedsr": ({}, {}),
    "ditto": ({}, PRIVATE),
    "gperxan": ({}, NORMED), "gperxan, averaged": ({"batch_norm": "averaged"}, NORMED),
    "i2pfl": ({"augproto_scope": "round"}, {}), "local": ({}, NORMED), "moon": ({"projection": "mlp"}, {}),
    "moon, private norm": ({}, PRIVATE), "scaffold": ({}, {}), "fedavg": ({}, {"modules": [Extra()]}),
    "f2dc": ({}, f2dc(local_modules="local", eval_modules="client_mean")),
} | {name: ({}, sent_to(name)) for name, case in CASES.items() if case.stays}  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
def test_a_client_made_anew_goes_on_from_its_memory(name: str) -> None:
    """Both engines make a client for each message; what does not travel is kept, and nothing else of the model."""
    params, options = KEEPING[name]
    given = {"train_set": image_set(12), "epochs": EPOCHS.get(name, 1), **options}
    before, anew, forgetful = (client_of(name, params, **given) for _ in range(3))
    start = shared(before)
    fit(before, 1, start)
    private = {f"model/{part}" for part in before.model.state_dict() if part not in before.shared_names}
    assert private == {part for part in before.memory if part.startswith("model/")}
    anew.memory = {part: array.copy() for part, array in before.memory.items()}
    assert anew.memory
    (arrays, metrics), (wanted, expected) = fit(anew, 4, start), fit(before, 4, start)
    assert same(arrays, wanted) and same(whole(anew), whole(before))
    assert metrics == expected
    fit(forgetful, 4, start)
    assert not same(whole(forgetful), whole(before))


@pytest.mark.parametrize("method", CASES)
def test_what_travels_and_what_stays(method: str) -> None:
    case, made = CASES[method], CASES[method].client()
    assert parts_of(made.model.state_dict().keys() - set(made.shared_names)) == set(case.stays.split())
    personal = method == "fedpac" or "classifier" in case.stays
    assert case.kind.personal(made.model, made.setup.model, made.params) is personal


def test_copa_in_a_federation_of_one_domain_is_fedavg() -> None:
    plain = fedavg(epochs=1)
    state = plain.model.state_dict()
    only = {name: state[name.replace("heads", "classifier").replace("/", ".")].numpy()[None] for name in domain_heads()}
    made = client_of("copa", {}, knowledge=only, scalars={"head": 0}, epochs=1)
    assert fit(made)[1] == fit(plain)[1]
    assert same(whole(made), whole(plain))


INITIAL: Rows = dict.fromkeys(("fdse", "fedsr", "gperxan", "stablefdg", *CASES), ({}, {})) | {
    "f2dc": ({}, f2dc()), "fedicon": ({"projection": "mlp"}, {}), "moon": ({"projection": "mlp"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", INITIAL)
def test_initial_weights_depend_on_the_seed_alone_and_the_network_starts_as_in_fedavg(name: str) -> None:
    params, options = INITIAL[name]
    ends = []
    for noise, initial in ((1, 0), (2, 0), (1, 1)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        made = client_of(name, params, model="cnn_bn", initial=initial, **options)
        assert torch.equal(torch.get_rng_state(), state)
        ends.append(made.model.state_dict())
    assert all(torch.equal(tensor, ends[1][part]) for part, tensor in ends[0].items())
    other = {part for part, tensor in ends[0].items() if not torch.equal(tensor, ends[2][part])}
    assert parts_of(other) == parts_of(ends[0]) - {"reference"}  # FedSR's, which begin at 0 and 1
    plain = build("cnn_bn", C, 0).encoder.state_dict()
    begins = {part: ends[0][f"encoder.{part}"] for part in plain if f"encoder.{part}" in ends[0]}
    assert begins and all(torch.equal(tensor, plain[part]) for part, tensor in begins.items())


def test_a_node_that_trains_alone_is_scored_with_its_own_model() -> None:
    made = client_of("local", {}, epochs=1)
    fresh, requested = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})[0], {SERVER_ROUND: 1, LOCAL_DOMAINS: ["a"]}
    trained = made.fit([], requested)[2]
    loss, _, scores = made.evaluate([], {SERVER_ROUND: 1, DOMAINS: ["a"]})
    assert scores[CORRECT + "a"] == trained[LOCAL_CORRECT + "a"] and loss != fresh

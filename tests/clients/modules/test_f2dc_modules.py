"""F2DC's modules: shapes and counts, where they go in, Eqs 3 to 9 against NumPy, and any host."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from support import Float, drawn, new_client, rng, shared
from support import batch as batch_of
from torch import Tensor, nn

from fedshift_clients.base import DomainClient
from fedshift_clients.models.networks import Blueprint, SplitModel, build
from fedshift_clients.models.stages import feature_stages
from fedshift_clients.modules.f2dc import F2DCModel, F2DCModules, convolutions
from fedshift_clients.modules.params import F2DCParams
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig, ModelConfig
from fedshift_core.errors import ConfigError
from fedshift_core.wire.names import SERVER_ROUND
from fedshift_datasets.base import ImageSet

C, SEED = 4, 5
CNNS = ("cnn", "cnn_bn", "cnn2", "cnn3")


def plan(name: str = "cnn", classes: int = C) -> Blueprint:
    return Blueprint(ModelConfig.model_validate({"name": name}), classes, 32, SEED)


def plain(name: str = "cnn", classes: int = C) -> SplitModel:
    return build(name, classes, SEED)


def modules(**params: Any) -> F2DCModules:
    return F2DCModules(F2DCParams(**params))


def wrapped(name: str = "cnn", classes: int = C, **params: Any) -> F2DCModel:
    model = modules(**params).wrap(plain(name, classes), plan(name, classes))
    assert isinstance(model, F2DCModel)
    model.start_round(rng(1))
    return model


def images(b: int = 6, seed: int = 0, size: int = 32) -> Tensor:
    return drawn(seed, b, 3, size, size)


def batch(b: int = 6, seed: int = 0, y: list[int] | None = None) -> Batch:
    return batch_of(b, seed, y, classes=C)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def enlarged(model: F2DCModel) -> F2DCModel:
    """Make attributions large, so that masks differ clearly from one half."""
    with torch.no_grad():
        for at in model.decoupling.values():
            at.decoupler[-1].weight.mul_(5)  # type: ignore[index, union-attr]
    return model


# --- shapes and counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(("hidden", "layers", "number"), [(64, 2, 589_952), (50, 3, 483_500)])
def test_modules_have_the_sizes_of_the_papers_code(hidden: int, layers: int, number: int) -> None:
    made = convolutions(512, hidden, layers)
    assert count(made) == number
    kinds = [type(layer) for layer in made]
    assert kinds == [nn.Conv2d] + [nn.BatchNorm2d, nn.ReLU, nn.Conv2d] * (layers - 1)
    assert all(layer.bias is None for layer in made if isinstance(layer, nn.Conv2d))
    made.eval()
    assert made(torch.randn(2, 512, 4, 4)).shape == (2, 512, 4, 4)


def test_backbone_of_the_paper_with_its_modules() -> None:
    model = wrapped("resnet10", 7)
    backbone = count(model.encoder) + count(model.classifier)
    assert backbone == 4_901_703
    assert count(model) - backbone == 2 * 589_952 + 512 * 7 + 7  # A_D, A_C, m
    assert (count(model) - backbone) / backbone == pytest.approx(0.24, abs=0.005)  # methods A1


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("cnn", (32, 64)), ("cnn_bn", (32, 64)), ("cnn2", (32, 64)), ("cnn3", (32, 64, 128)),
        ("resnet10", (64, 128, 256, 512)), ("resnet18", (64, 128, 256, 512)),
    ],
)  # fmt: skip
def test_encoder_in_stages_is_the_encoder_to_the_bit(name: str, widths: tuple[int, ...]) -> None:
    model = plain(name).eval()
    stages = feature_stages(model.encoder)
    assert stages is not None
    assert stages.widths == widths
    h = images(2)
    with torch.no_grad():
        whole = model.encoder(h)
        for stage, width in zip(stages.maps, widths, strict=True):
            h = stage(h)
            assert (h.dim(), h.shape[1]) == (4, width)
        assert torch.equal(stages.rest(h), whole)
    if name == "cnn":
        assert h.shape == (2, 64, 5, 5)


@pytest.mark.parametrize(
    "encoder",
    [
        nn.Flatten(),
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 8)),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)),
    ],
)
def test_network_without_stages_is_refused_by_name(encoder: nn.Module) -> None:
    assert feature_stages(encoder) is None
    result = Blueprint(ModelConfig(name="mlp"), C, 32, SEED)
    with pytest.raises(ConfigError, match="the network 'mlp' has no feature map"):
        modules().wrap(SplitModel(encoder, 8, C), result)


# --- names and initial weights ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CNNS, "resnet10"])
def test_names_and_initial_weights_of_the_network_stay(name: str) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    model, alone = wrapped(name), plain(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    state = model.state_dict()
    own = [key for key in state if not key.startswith("decoupling.")]
    assert own == list(alone.state_dict())
    assert list(state)[: len(own)] == own
    assert all(torch.equal(state[key], value) for key, value in alone.state_dict().items())
    assert len(state) > len(own)
    again = wrapped(name).state_dict()
    assert all(torch.equal(again[key], value) for key, value in state.items())


def test_both_switches_off_leave_the_model_as_it_is() -> None:
    model, off = plain(), modules(use_dfd_loss=False, use_dfc_loss=False)
    assert off.wrap(model, plan()) is model
    assert off.terms(model, batch()) == {}
    assert off.private(model) == frozenset()
    off.start_round(model, rng(1))


@pytest.mark.parametrize(
    ("params", "stages"),
    [({}, ["stage2"]), ({"insert_after": [2]}, ["stage2"]), ({"insert_after": [2, 1]}, ["stage1", "stage2"])],
)
def test_each_insertion_has_modules_of_its_own(params: dict[str, Any], stages: list[str]) -> None:
    model = wrapped(**params)
    assert list(model.decoupling) == stages
    for stage, width in (("stage1", 32), ("stage2", 64)):
        if stage in stages:
            at = model.decoupling[stage]
            assert count(at.decoupler) == count(at.corrector) == 2 * width * 64 * 9 + 128  # type: ignore[arg-type]
            assert at.auxiliary.weight.shape == (C, width)  # type: ignore[union-attr]


def test_without_dfc_there_is_no_corrector() -> None:
    model = wrapped(use_dfc_loss=False)
    assert not [name for name in model.state_dict() if "corrector" in name]


def test_private_names_are_those_of_the_modules() -> None:
    model = wrapped()
    local = modules(local_modules="local", eval_modules="none")
    assert local.private(model) == {name for name in model.state_dict() if name.startswith("decoupling.")}
    assert any("running_mean" in name for name in local.private(model))  # methods A11
    assert modules().private(model) == frozenset()


@pytest.mark.parametrize(("eval_modules", "personal"), [("none", False), ("client_mean", True)])
def test_personal_where_each_node_scores_with_its_own_modules(eval_modules: str, personal: bool) -> None:
    assert modules(local_modules="local", eval_modules=eval_modules).personal is personal
    assert modules().personal is False


# --- Eqs 3 to 9 ------------------------------------------------------------------------------------


def as64(x: Tensor) -> Float:
    return x.detach().float().numpy().astype(np.float64)


def slow_terms(model: F2DCModel, given: Batch, noise: Tensor, p: F2DCParams) -> dict[str, float]:
    """Eqs 3 to 7 in NumPy for the insertion after the last stage; modules in training mode, as they are."""
    at = model.decoupling[f"stage{len(model._stages.maps)}"]
    h = given.x
    with torch.no_grad():
        for stage in model._stages.maps:
            h = stage(h)
        f, s = as64(h), as64(at.decoupler(h))  # type: ignore[operator]
        mask = 1 / (1 + np.exp(-(s + as64(noise)) / p.sigma))
        plus, minus = mask * f, (1 - mask) * f
        corrected = as64(at.corrector(torch.from_numpy(minus.astype(np.float32))))  # type: ignore[operator]
        star = minus + (1 - mask) * corrected
        fused = f + (1 - mask) * corrected  # the identity of section 2
        tilde = model._stages.rest(torch.from_numpy(fused.astype(np.float32)))
        logits = as64(model.classifier(tilde))
    weight, bias = as64(at.auxiliary.weight), as64(at.auxiliary.bias)  # type: ignore[arg-type, union-attr]
    y = given.y.tolist()
    content = {"ce": 0.0, "dfd": 0.0, "dfc": 0.0}
    for i, label in enumerate(y):
        latent = {name: value[i].mean(axis=(1, 2)) for name, value in (("+", plus), ("-", minus), ("*", star))}
        entropy = {name: -log_softmax(weight @ value + bias) for name, value in latent.items()}
        source = logits[i] if p.y_hat_from == "classifier" else weight @ latent["-"] + bias
        wrong = max((k for k in range(C) if k != label), key=lambda k, source=source: source[k])  # type: ignore[misc]
        cosine = latent["+"] @ latent["-"] / np.linalg.norm(latent["+"]) / np.linalg.norm(latent["-"])
        content["ce"] -= log_softmax(logits[i])[label] / len(y)
        content["dfd"] += p.lambda1 * (cosine / p.tau + entropy["+"][label] + entropy["-"][wrong]) / len(y)
        content["dfc"] += p.lambda2 * entropy["*"][label] / len(y)
    return content


def log_softmax(z: Float) -> Float:
    return np.asarray(z - np.log(np.exp(z).sum()))


def training_noise(model: F2DCModel, f: Tensor, seed: int, kind: str) -> Tensor:
    """Draw what the first training pass of a round draws."""
    drawn = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=rng(seed))))
    pair = [torch.empty(f.shape).uniform_(generator=drawn).logit_() for _ in range(2 if kind == "logistic_pair" else 1)]
    return pair[0] - pair[1] if len(pair) == 2 else pair[0]


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("cnn", {}),
        ("cnn", {"sigma": 0.5, "tau": 0.3, "lambda1": 2.0, "lambda2": 0.7}),
        ("cnn_bn", {"noise": "gumbel_pair", "y_hat_from": "aux"}),
        ("resnet10", {}),
    ],
)
def test_terms_against_numpy(name: str, params: dict[str, Any]) -> None:
    p, model, given = F2DCParams(**params), enlarged(wrapped(name, **params)), batch()
    model.train()
    size = {"cnn": (64, 5, 5), "cnn_bn": (64, 5, 5), "resnet10": (512, 4, 4)}[name]
    noise = training_noise(model, torch.empty(6, *size), 3, p.noise)
    expected = slow_terms(model, given, noise, p)
    model.start_round(rng(3))
    _, logits = model(given.x)
    terms = F2DCModules(p).terms(model, given)
    ce = nn.functional.cross_entropy(logits, given.y)
    assert list(terms) == ["dfd", "dfc"]
    assert float(ce.detach()) == pytest.approx(expected["ce"], rel=1e-4)
    for key, term in terms.items():
        assert float(term.detach()) == pytest.approx(expected[key], rel=1e-3), key


def test_terms_are_averaged_over_insertions() -> None:
    # Eq. 9 with |L| = 2 against the terms of each insertion, read from what the pass left.
    model, p = enlarged(wrapped(insert_after=[1, 2])), F2DCParams(insert_after=(1, 2))
    given = batch()
    model.train()
    model(given.x)
    seen = model._seen
    assert seen is not None and len(seen.latents) == 2
    single = []
    for latents in seen.latents:
        model._seen = type(seen)(seen.logits, [latents])
        single.append(F2DCModules(p).terms(model, given))
    model._seen = seen
    both = F2DCModules(p).terms(model, given)
    for key in ("dfd", "dfc"):
        expected = sum(float(each[key].detach()) for each in single) / 2
        assert float(both[key].detach()) == pytest.approx(expected, rel=1e-6)
    assert float(single[0]["dfd"].detach()) != float(single[1]["dfd"].detach())


def test_fused_map_replaces_the_map() -> None:
    model = enlarged(wrapped()).eval()
    x = images()
    at = model.decoupling["stage2"]
    with torch.no_grad():
        f = model._stages.maps[1](model._stages.maps[0](x))
        mask = torch.sigmoid(at.decoupler(f) / 0.1)  # type: ignore[operator]
        fused = f + (1 - mask) * at.corrector((1 - mask) * f)  # type: ignore[operator]
        features, logits = model(x)
        assert torch.allclose(features, model._stages.rest(fused), atol=1e-6)
        assert torch.allclose(logits, model.classifier(features))
        assert not torch.allclose(features, model.encoder(x), atol=1e-4)


@pytest.mark.parametrize("feature", ["f_plus", "f_minus", "f_star"])
@pytest.mark.parametrize("insert_after", [[2], [1, 2]])
def test_test_feature_chooses_the_last_map_at_test_only(feature: str, insert_after: list[int]) -> None:
    fused = enlarged(wrapped(insert_after=insert_after))
    chosen = enlarged(wrapped(insert_after=insert_after, test_feature=feature))
    x = images()
    for model in (fused, chosen):
        model.start_round(rng(2))
        model.train()
    assert torch.equal(fused(x)[1], chosen(x)[1])
    for model in (fused, chosen):
        model.eval()
    with torch.no_grad():
        h = x
        for n, stage in enumerate(fused._stages.maps, start=1):
            h = stage(h)
            if n in insert_after:
                maps = fused._insertion(n)(h, None)
                h = maps.fused
        wanted = {"f_plus": maps.plus, "f_minus": maps.minus, "f_star": maps.star}[feature]
        assert torch.equal(chosen(x)[0], chosen._stages.rest(wanted))
        assert not torch.equal(chosen(x)[0], fused(x)[0])


def test_without_dfc_the_fused_map_is_the_map_to_the_bit() -> None:
    model, alone = enlarged(wrapped(use_dfc_loss=False)), plain()
    for one in (model, alone):
        one.train()
    assert torch.equal(model(images())[1], alone(images())[1])
    star = enlarged(wrapped(use_dfc_loss=False, test_feature="f_star")).eval()
    minus = enlarged(wrapped(use_dfc_loss=False, test_feature="f_minus")).eval()
    assert torch.equal(star(images())[1], minus(images())[1])


# --- noise -----------------------------------------------------------------------------------------


def test_noise_of_training_comes_from_the_rounds_generator_alone() -> None:
    model, x = enlarged(wrapped()), images()
    model.train()

    def two_passes(seed: int) -> list[Tensor]:
        model.start_round(rng(seed))
        state = torch.random.get_rng_state()
        values = [model(x)[1].detach() for _ in range(2)]
        assert torch.equal(torch.random.get_rng_state(), state)
        return values

    first, again, other = two_passes(1), two_passes(1), two_passes(2)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_mask_at_test_has_no_noise_unless_asked_for() -> None:
    x = images()
    model = enlarged(wrapped()).eval()
    noisy = enlarged(wrapped(eval_noise=True)).eval()
    with torch.no_grad():
        assert torch.equal(model(x)[1], model(x)[1])
        first, second = noisy(x)[1], noisy(x)[1]
        assert not torch.equal(first, second) and not torch.equal(first, model(x)[1])
        noisy.eval()  # each scoring begins so
        assert torch.equal(noisy(x)[1], first)


def test_training_before_the_round_has_begun_is_an_error() -> None:
    model = modules().wrap(plain(), plan())
    model.train()
    with pytest.raises(RuntimeError, match="start_round"):
        model(images())


def test_eval_modules_none_scores_the_plain_network() -> None:
    model = enlarged(wrapped(local_modules="local", eval_modules="none"))
    alone = plain()
    assert torch.equal(model.eval()(images())[1], alone.eval()(images())[1])
    assert not torch.allclose(model.train()(images())[1], alone.train()(images())[1], atol=1e-4)


# --- what a pass leaves ----------------------------------------------------------------------------


def test_first_training_pass_counts() -> None:
    model, given, p = enlarged(wrapped()), batch(), modules()
    model.train()
    model(given.x)
    alone = p.terms(model, given)
    model.start_round(rng(1))
    model.train()
    model.eval()
    model(images(3))
    model.train()
    with torch.no_grad():
        model(images(9))
    model.start_round(rng(1))
    model(given.x)
    model(images(4, seed=8))  # another view, say
    assert {k: float(v.detach()) for k, v in p.terms(model, given).items()} == {
        k: float(v.detach()) for k, v in alone.items()
    }


def test_host_that_made_no_pass_is_an_error() -> None:
    model, p = wrapped(), modules()
    model.train()
    model(images())
    p.terms(model, batch())
    with pytest.raises(RuntimeError, match="no training pass"):
        p.terms(model, batch())
    model(images(5))
    with pytest.raises(RuntimeError, match="5 images, the batch has 6"):
        p.terms(model, batch())
    model(images(5))
    p.start_round(model, rng(1))  # forgets what the round before left
    with pytest.raises(RuntimeError, match="no training pass"):
        p.terms(model, batch())


@pytest.mark.parametrize("b", [2, 6])
@pytest.mark.parametrize("one_class", [False, True])
def test_gradients_are_finite(b: int, one_class: bool) -> None:
    model, given = enlarged(wrapped()), batch(b, y=[1] * b if one_class else None)
    model.train()
    model(given.x)
    torch.stack(list(modules().terms(model, given).values())).sum().backward()  # type: ignore[no-untyped-call]
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert all(grad.isfinite().all() for grad in grads.values())
    for part in ("encoder.0", "decoupler", "corrector", "auxiliary"):  # nothing is detached (A5)
        assert any(part in name and grad.any() for name, grad in grads.items()), part


def test_dead_map_gives_no_nan() -> None:
    model, given = wrapped(), batch()
    with torch.no_grad():
        for layer in model.encoder.children():
            if isinstance(layer, nn.Conv2d):
                layer.weight.zero_()
                layer.bias.fill_(-1)  # type: ignore[union-attr]
    model.train()
    _, logits = model(given.x)
    terms = modules().terms(model, given)
    (torch.stack(list(terms.values())).sum() + logits.sum()).backward()  # type: ignore[no-untyped-call]
    assert all(term.isfinite() for term in terms.values())
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_batch_of_one_sample() -> None:
    model, given = wrapped(), batch(1)
    model.train()
    model(given.x)
    assert all(term.isfinite() for term in modules().terms(model, given).values())


def test_mask_and_terms_are_float32_under_autocast() -> None:
    model, given = wrapped("cnn_bn"), batch()
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        maps = model._insertion(2)(torch.rand(2, 64, 5, 5).bfloat16(), rng(1))
        model(given.x)
        terms = modules().terms(model, given)
    assert maps.plus.dtype == maps.fused.dtype == torch.float32
    assert all(term.dtype == torch.float32 and term.isfinite() for term in terms.values())


# --- refusals --------------------------------------------------------------------------------------


class OtherModel(SplitModel):
    pass


def test_model_that_is_not_plain_is_refused() -> None:
    inner = plain()
    with pytest.raises(ConfigError, match="OtherModel"):
        modules().wrap(OtherModel(inner.encoder, 64, C), plan())
    with pytest.raises(ConfigError, match="F2DCModel"):
        modules().wrap(wrapped(), plan())


def test_stage_that_a_network_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"insert_after: cnn has the stages 1 to 2, found \[1, 4\]"):
        modules(insert_after=[4, 1]).wrap(plain(), plan())
    with pytest.raises(ConfigError, match="only one class"):
        modules().wrap(plain(classes=1), plan(classes=1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"local_modules": "local"}, "needs local_modules=aggregate"),
        ({"eval_modules": "client_mean"}, "needs local_modules=local"),
        ({"eval_modules": "none", "test_feature": "f_plus"}, "test_feature=f_plus needs modules at test"),
        ({"use_dfd_loss": False, "use_dfc_loss": False, "test_feature": "f_star"}, "test_feature=f_star needs"),
        ({"eval_modules": "none", "eval_noise": True}, "eval_noise=true needs"),
        ({"insert_after": []}, "insert_after"),
        ({"insert_after": [2, 2]}, r"found \[2, 2\]"),
        ({"insert_after": [0]}, "insert_after"),
        ({"insert_after": "first"}, "insert_after"),
        ({"sigma": 0.0}, "sigma"),
        ({"tau": 0.0}, "tau"),
        ({"lambda1": -0.1}, "lambda1"),
        ({"lambda2": -0.1}, "lambda2"),
        ({"conv_layers": 4}, "conv_layers"),
        ({"hidden": 0}, "hidden"),
        ({"noise": "normal"}, "noise"),
        ({"test_feature": "f+"}, "test_feature"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        F2DCParams(**params)


def test_parameters_survive_the_way_to_the_node() -> None:
    for given in (F2DCParams(), F2DCParams(insert_after=(2, 1))):
        assert F2DCParams.model_validate_json(given.model_dump_json()) == given


# --- in another method -----------------------------------------------------------------------------


def host(entry: F2DCModules | None, name: str = "cnn", **train: Any) -> DomainClient:
    noise = np.random.default_rng(0).integers(0, 60, size=(24, 32, 32, 3), dtype=np.uint8)
    y = np.arange(24, dtype=np.int64) % C
    for i, label in enumerate(y):  # a bright bar that tells the class
        noise[i, 8 * label : 8 * label + 8] += 180
    entries = [] if entry is None else [entry]
    return new_client(
        DomainClient, train_set=ImageSet(noise, y), model=name, modules=entries, initial=SEED, seed=7, index=0,
        images=ImageConfig(eval_batch=8), **train,
    )  # fmt: skip


def fit(of: DomainClient, server_round: int = 1, weights: list[NDArray[Any]] | None = None) -> Any:
    return of.fit(weights or shared(of), {SERVER_ROUND: server_round})


def test_any_method_gets_the_terms_and_the_loss_falls() -> None:
    made = host(modules(lambda1=0.1), "cnn_bn", epochs=3)
    weights: list[NDArray[Any]] | None = None
    first: dict[str, Any] = {}
    for server_round in range(1, 6):
        weights, _, metrics = fit(made, server_round, weights)
        first = first or metrics
    assert {key for key in first if key.startswith("loss/")} == {"loss/ce", "loss/dfd", "loss/dfc"}
    assert metrics["loss"] < first["loss"] - 0.3
    assert metrics["loss/ce"] < first["loss/ce"]


def test_same_round_twice_gives_the_same_weights() -> None:
    one, other = fit(host(modules()))[0], fit(host(modules()))[0]
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_modules_switched_off_are_the_host_to_the_bit() -> None:
    off, bare = host(modules(use_dfd_loss=False, use_dfc_loss=False)), host(None)
    assert off.shared_names == bare.shared_names
    one, other = fit(off), fit(bare)
    assert all(np.array_equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    assert one[2] == other[2]


@pytest.mark.parametrize("local", [True, False])
def test_local_modules_stay_on_the_node(local: bool) -> None:
    params = {"local_modules": "local", "eval_modules": "client_mean"} if local else {}
    made = host(modules(**params))
    travels = [name for name in made.shared_names if name.startswith("decoupling.")]
    assert bool(travels) is not local
    weights, _, _ = fit(made)
    kept = [name for name in made.memory if "decoupling." in name]
    assert bool(kept) is local
    trained = {name: value.clone() for name, value in made.model.state_dict().items()}
    fresh = host(modules(**params))  # as for the next message
    fresh.memory = made.memory
    fresh.evaluate(weights, {"domains": ["a"], SERVER_ROUND: 1})
    assert all(torch.equal(trained[name], value) for name, value in fresh.model.state_dict().items())

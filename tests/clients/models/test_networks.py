"""Networks: the numbers the papers give, the split in two, and what happens to BatchNorm."""

import pytest
import torch
from torch import nn

from fedshift_app.config.resolving import resolve
from fedshift_clients.models.catalog import NETWORKS
from fedshift_clients.models.networks import SplitModel, batchnorm_names, build, initialised, set_training
from fedshift_clients.models.resnet import BasicBlock
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import OURS

NAMES = sorted(name for name in NETWORKS if NETWORKS.origin(name) == OURS)
FEATURE_DIM = {"cnn": 64, "cnn_bn": 64, "cnn2": 512, "cnn3": 512, "resnet10": 512, "resnet18": 512}
ENTRIES = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


def images(b: int, size: int = 32, seed: int = 0) -> torch.Tensor:
    return torch.randn(b, 3, size, size, generator=torch.Generator().manual_seed(seed))


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# --- shapes and sizes ------------------------------------------------------------------------------


def test_resnet10_has_the_published_number_of_parameters() -> None:
    # Stem 3*64*9 + 2*64 = 1,856. A block a -> b: 9ab + 9bb + 4b, and with a shortcut ab + 2b more.
    # 64 -> 64: 73,984; 64 -> 128: 230,144; 128 -> 256: 919,040; 256 -> 512: 3,673,088.
    # Classifier 512*7 + 7 = 3,591. Sum 4,901,703.
    def block(a: int, b: int) -> int:
        return 9 * a * b + 9 * b * b + 4 * b + (0 if a == b else a * b + 2 * b)

    by_hand = 1856 + block(64, 64) + block(64, 128) + block(128, 256) + block(256, 512) + 3591
    assert sum(p.numel() for p in build("resnet10", 7, 0).parameters()) == by_hand == 4_901_703


def test_cnn_has_the_parameters_of_its_description() -> None:
    # 5x5 convolutions 3 -> 32 -> 64, FC 1600 -> 64 -> 10, all with biases.
    by_hand = (75 * 32 + 32) + (25 * 32 * 64 + 64) + (1600 * 64 + 64) + (64 * 10 + 10)
    assert sum(p.numel() for p in build("cnn", 10, 0).parameters()) == by_hand


def test_fedseprotos_networks_have_the_parameters_of_their_description() -> None:
    # 5x5 convolutions 3 -> 32 -> 64 (-> 128) that each halve the map, FC to 512, FC 512 -> 10.
    two = (75 * 32 + 32) + (25 * 32 * 64 + 64)
    three = two + (25 * 64 * 128 + 128)
    head = 512 * 10 + 10
    assert sum(p.numel() for p in build("cnn2", 10, 0).parameters()) == two + 64 * 64 * 512 + 512 + head
    assert sum(p.numel() for p in build("cnn3", 10, 0).parameters()) == three + 128 * 16 * 512 + 512 + head


def test_added_parts_depend_on_seed_and_purpose_alone() -> None:
    before = torch.random.get_rng_state()
    made = [
        initialised(seed, purpose, lambda: nn.Linear(3, 2))
        for seed, purpose in [(0, "a"), (0, "a"), (0, "b"), (1, "a")]
    ]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(made[0].weight, made[1].weight)
    assert not torch.equal(made[0].weight, made[2].weight)
    assert not torch.equal(made[0].weight, made[3].weight)


def test_configuration_names_the_models_that_exist() -> None:
    assert set(NAMES) == set(FEATURE_DIM)
    with pytest.raises(ConfigError, match="unknown model 'mlp'; there are cnn, cnn_bn, cnn2, cnn3, resnet10, resnet18"):
        build("mlp", 7, 0)
    with pytest.raises(ConfigError, match="unknown model 'mlp'; there are cnn, cnn_bn, cnn2, cnn3, resnet10, resnet18"):
        resolve({"set": "model.name=mlp"})


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_says_what_is_true_of_a_network(name: str) -> None:
    """It imports no torch, so it cannot look."""
    assert NETWORKS[name].name == name
    assert NETWORKS[name].batchnorm is bool(batchnorm_names(build(name, 7, 0)))
    if NETWORKS[name].size is not None:
        assert NETWORKS[name].size == 32
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            build(name, 7, 0, 28)(images(2, 28))
    else:
        assert build(name, 7, 0, 28).eval()(images(2, 28))[1].shape == (2, 7)


@pytest.mark.parametrize("name", NAMES)
def test_forward_gives_features_and_logits(name: str) -> None:
    model = build(name, 7, 0).eval()
    assert (model.feature_dim, model.num_classes) == (FEATURE_DIM[name], 7)
    with torch.no_grad():
        features, logits = model(images(2))
        assert features.shape == (2, model.feature_dim)
        assert logits.shape == (2, 7)
        assert (features >= 0).all()
        assert (features > 0).any()
        torch.testing.assert_close(model.encoder(images(2)), features)
        torch.testing.assert_close(model.classifier(features), logits)


@pytest.mark.parametrize("size", [32, 20])
def test_resnet_features_are_the_average_of_the_last_map(size: int) -> None:
    model = build("resnet10", 7, 0).eval()
    with torch.no_grad():
        feature_map = model.encoder.feature_map(images(2, size))  # type: ignore[operator]
        features, _ = model(images(2, size))
    side = (size + 7) // 8  # three strides of 2, rounded up
    assert feature_map.shape == (2, 512, side, side)
    torch.testing.assert_close(features, feature_map.flatten(2).mean(2))


def test_batch_order_and_neighbours_do_not_matter_in_evaluation() -> None:
    model = build("resnet10", 7, 0).eval()
    with torch.no_grad():
        together, _ = model(images(3))
        alone, _ = model(images(3)[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-5)


# --- initial weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_build_depends_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(1)
    first = snapshot(build(name, 7, 3))
    torch.manual_seed(2)
    again, other = snapshot(build(name, 7, 3)), snapshot(build(name, 7, 4))
    assert list(first) == list(again)
    assert all(torch.equal(first[entry], again[entry]) for entry in first)
    assert any(not torch.equal(first[entry], other[entry]) for entry in first)


@pytest.mark.parametrize("name", ["cnn", "resnet10"])
def test_build_leaves_the_global_generator_alone(name: str) -> None:
    before = torch.get_rng_state()
    build(name, 7, 3)
    assert torch.equal(torch.get_rng_state(), before)


# --- BatchNorm -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    # The stem's, two in each block, one in the shortcut of each of three stages.
    ("name", "layers"),
    [("cnn", 0), ("resnet10", 1 + 4 * 2 + 3), ("resnet18", 1 + 8 * 2 + 3)],
)
def test_batchnorm_names_are_all_and_nothing_else(name: str, layers: int) -> None:
    model = build(name, 7, 0)
    names = batchnorm_names(model)
    state = model.state_dict()
    assert len(names) == layers * len(ENTRIES)
    assert names <= set(state)
    assert {entry.rsplit(".", 1)[1] for entry in names} <= ENTRIES
    # What is left: convolutions (4 axes), matrices (2) and the biases of those.
    for entry in set(state) - names:
        prefix, kind = entry.rsplit(".", 1)
        assert kind in {"weight", "bias"}
        assert state[f"{prefix}.weight"].dim() in {2, 4}


def test_batchnorm_names_finds_it_in_the_shortcut() -> None:
    block = BasicBlock(4, 8, 2)
    expected = {f"{layer}.{entry}" for layer in ("bn1", "bn2", "shortcut.1") for entry in ENTRIES}
    assert batchnorm_names(block) == expected


def test_batchnorm_names_finds_every_kind_of_batchnorm() -> None:
    model = nn.ModuleDict({"flat": nn.BatchNorm1d(2), "deep": nn.BatchNorm3d(2), "group": nn.GroupNorm(1, 2)})
    assert batchnorm_names(model) == {f"{layer}.{entry}" for layer in ("flat", "deep") for entry in ENTRIES}


def one_step(model: SplitModel) -> None:
    """A step that would move every trained number: weight decay and momentum are on."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, weight_decay=0.1)
    features, logits = model(images(4, size=8))
    (logits.square().mean() + features.mean()).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@pytest.mark.parametrize("freeze", [True, False])
def test_training_step_and_batchnorm(freeze: bool) -> None:
    model = build("resnet10", 7, 0)
    # Numbers that are not the initial ones, so that a reset would show too.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 0.9)
            nn.init.constant_(module.bias, 0.1)
    before = snapshot(model)
    set_training(model, freeze_batchnorm=freeze)
    one_step(model)
    after = model.state_dict()
    norms = batchnorm_names(model)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == (norms if freeze else set())


def test_frozen_batchnorm_stays_frozen_after_evaluation() -> None:
    model = build("resnet10", 7, 0)
    for _ in range(2):
        model.eval()
        set_training(model, freeze_batchnorm=True)
        assert model.training
        for module in model.modules():
            is_norm = isinstance(module, nn.BatchNorm2d)
            assert module.training is not is_norm
    before = snapshot(model)
    one_step(model)
    assert all(torch.equal(before[name], model.state_dict()[name]) for name in batchnorm_names(model))

"""FedCCRL on a node: styles of other nodes' images, AugMix, its terms and their weights."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import ROUND, batch, begun, drawn, new_client
from torchvision.transforms import v2  # type: ignore[import-untyped]

from fedshift_clients.images.augmix import augmix
from fedshift_clients.methods import fedccrl as terms
from fedshift_clients.methods.fedccrl import FedCCRLClient, drawn_places
from fedshift_core.wire.image_styles import ImageStyles

client = partial(new_client, FedCCRLClient)
STYLES = ImageStyles(
    np.array([0, 0, 1, 1, 1]), np.linspace(0.1, 0.9, 15, dtype=np.float32).reshape(5, 3),
    np.linspace(0.05, 0.3, 15, dtype=np.float32).reshape(5, 3),
)  # fmt: skip


def with_styles(params: dict[str, Any] | None = None, styles: ImageStyles | None = STYLES) -> FedCCRLClient:
    made = client(params or {})
    made.image_styles = styles
    return begun(made)


def test_an_image_takes_the_style_of_another_nodes_image() -> None:
    made, x = with_styles({"alpha": 0.5, "use_augmix": False}), batch(6).x
    index, images = made.setup.index, made.setup.images
    state = made._draws.bit_generator.state
    got = made.changed(x).double().numpy()
    draws = np.random.default_rng()
    draws.bit_generator.state = state
    draws.random()
    others = [i for i in range(5) if STYLES.nodes[i] != index]
    places = drawn_places(len(others), len(x), draws)
    lam = draws.beta(0.5, 0.5, len(x))
    own = x.double().numpy()
    for b in range(len(x)):
        for c in range(3):
            mu, sigma = own[b, c].mean(), np.sqrt(own[b, c].var(ddof=1) + 1e-6)
            row = others[places[b]]
            mu_other = (float(STYLES.mean[row, c]) - images.mean[c]) / images.std[c]
            sigma_other = np.sqrt((float(STYLES.std[row, c]) / images.std[c]) ** 2 + 1e-6)
            wanted = (own[b, c] - mu) / sigma * (lam[b] * sigma + (1 - lam[b]) * sigma_other)
            np.testing.assert_allclose(got[b, c], wanted + lam[b] * mu + (1 - lam[b]) * mu_other, atol=1e-4)


def test_without_other_nodes_styles_or_with_probability_0_the_style_stays() -> None:
    x = batch(4).x
    own_alone = replace(STYLES, nodes=np.full(5, client().setup.index))
    for made in (
        with_styles({"use_augmix": False}, None), with_styles({"use_augmix": False, "probability": 0.0}),
        with_styles({"use_augmix": False}, own_alone),
    ):  # fmt: skip
        assert torch.equal(made.changed(x), x)
    assert not torch.equal(with_styles({"use_augmix": False}).changed(x), x)


def test_augmix_is_torchvisions_on_bytes_and_leaves_the_global_generator_as_it_is() -> None:
    x = (drawn(0, 4, 3, 16, 16).abs() * 90).clamp(0, 255).to(torch.uint8)
    before = torch.get_rng_state()
    got = augmix(x, 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augmix(x, 5), got)
    assert not torch.equal(augmix(x, 6), got)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        assert torch.equal(v2.AugMix()(x), got)


def test_values_outside_the_range_of_bytes_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr("fedshift_clients.images.augmix.augmix", lambda x, seed: seen.append(x) or x)
    made = with_styles({"probability": 0.0})
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (made.setup.images.mean, made.setup.images.std))
    pixels = torch.tensor([-30.0, 0.0, 127.0, 127.6, 255.0, 400.0]).view(1, 1, 1, 6).expand(1, 3, 1, 6)
    out = made.changed((pixels / 255 - mean) / std)
    assert seen[0].dtype == torch.uint8
    assert seen[0][0, 0, 0].tolist() == [0, 0, 127, 128, 255, 255]
    torch.testing.assert_close(out, (seen[0].float() / 255 - mean) / std)


def test_terms_are_those_of_the_images_and_two_copies() -> None:
    given, made = batch(), with_styles({"lambda_align": 2.0, "lambda_js": 3.0, "tau": 0.3})
    got = {name: float(value.detach()) for name, value in made.loss(given).items()}
    again = with_styles({"lambda_align": 2.0, "lambda_js": 3.0, "tau": 0.3})
    with torch.no_grad():
        z, own = again.forward(given.x)
        (z1, one), (z2, two) = (again.forward(again.changed(given.x)) for _ in range(2))
        ce = torch.nn.functional.cross_entropy
        wanted = {
            "ce": ce(own, given.y), "copies": ce(one, given.y) + ce(two, given.y),
            "align": terms.aligned(z1, z, given.y, 0.3) + terms.aligned(z2, z, given.y, 0.3),
            "js": 3 * terms.divergence([own, one, two]),
        }  # fmt: skip
    assert list(got) == ["ce", "copies", "align", "js"]
    assert got == pytest.approx({name: float(value) for name, value in wanted.items()}, rel=1e-5)


def test_draws_depend_on_the_round() -> None:
    x, other = batch().x, with_styles()
    other.start_round(ROUND + 1)
    first = with_styles().changed(x)
    assert torch.equal(first, with_styles().changed(x))
    assert not torch.equal(first, other.changed(x))


@pytest.mark.parametrize(("weight", "term"), [("lambda_align", "align"), ("lambda_js", "js")])
def test_a_weight_of_zero_takes_exactly_its_term_away(weight: str, term: str) -> None:
    whole, without = (with_styles(params).loss(batch()) for params in ({}, {weight: 0.0}))
    assert whole.keys() - without.keys() == {term}
    assert all(torch.equal(value, whole[name]) for name, value in without.items())
